"""Reducers for model calls and their replies."""

from waystation.core.contract import UNUSABLE_REPLY, Call, ModelReply, ToolOutcome, parts_of
from waystation.core.log.agent_runs import begin_run, next_phase
from waystation.core.log.budget_use import admit, count_reply
from waystation.core.log.call import CallState
from waystation.core.log.entry import ModelCalled, ModelLost
from waystation.core.log.function_calls import emit_callback_result, emit_for, emit_requests, settle
from waystation.core.log.invocation_state import AgentRun, InvocationState, emit
from waystation.core.payload import JsonObject


def apply_model_call(state: InvocationState, called: ModelCalled) -> None:
    """Record that a model activity was scheduled."""
    state.steps = max(state.steps, called.number)
    run = state.runs[called.turn]
    run.phase_in_flight = next_phase(state, run) or "turn"
    run.in_flight, run.unread, run.wrapping = called.number, False, called.wrap_up
    if run.shape.kind == "custom":
        run.asked_at = state.event_count
    state.runs.asked[called.number] = run.index


def apply_model_loss(state: InvocationState, lost: ModelLost) -> None:
    """Fail the invocation because a model call was lost, unless its agent has been stopped."""
    index = state.runs.asked.pop(lost.number, None)
    if index is not None and not state.runs.is_over(index):
        run = state.runs[index]
        run.in_flight = run.phase_in_flight = None
        state.outcome.failure = lost.failure
        state.endpoints = lost.failure.endpoints or state.endpoints


def apply_reply(state: InvocationState, now: float, number: int, reply: ModelReply) -> None:
    """Apply the result of a model activity: count its usage, emit its events and open its calls.

    If the agent has been stopped, only count the usage.
    """
    if (index := state.runs.asked.pop(number, None)) is None:
        return
    signed, known = reply.signed_request, state.signed_request
    if signed and (known is None or signed.messages >= known.messages):
        state.signed_request = signed
    state.stores = reply.stores or state.stores
    run, runs, outcome = state.runs[index], state.runs, state.outcome
    phase, run.in_flight, run.phase_in_flight = run.phase_in_flight, None, None
    count_reply(state, run, phase, reply)
    state.approvals.channels = reply.notify or state.approvals.channels
    state.approvals.operators = reply.notify_operators or state.approvals.operators
    state.endpoints = reply.endpoints or state.endpoints
    if run.over:  # it was stopped in the meantime
        return
    if phase == "leave":
        run.left = True
        emit_callback_result(state, now, run, reply.after)
        return
    if reply.scopes:
        state.session.underlay(reply.scopes)
    run.shape = reply.shape or run.shape
    run.entered = True
    emit_callback_result(state, now, run, reply.before)
    run.spoken_for = reply.skipped
    outcome.concluded = outcome.concluded or reply.ends_invocation
    if reply.skipped or run.shape.kind not in ("llm", "custom"):
        run.unread = False
        runs.spoken_for += reply.skipped and run.shape.kind == "llm"
        return
    if run.shape.kind == "custom":
        _continue_body(state, now, run, reply)
        return
    outcome.output = reply.output
    if run.shape.keeps_turn:
        runs.next_turn = run.agent
    run.closing = reply.closing
    _take_up(state, now, run, number, reply)
    run.unread = run.unread or reply.remedy is not None
    if run.wrapping:
        run.wrapping, run.wrapped, run.unread = False, True, False


def _continue_body(state: InvocationState, now: float, run: AgentRun, reply: ModelReply) -> None:
    """Emit the events that a body yielded, and start the sub-agent that it runs next, if any."""
    first = state.event_count
    for event in reply.yielded:
        about = event.model_dump(include={"error_code", "error_message", "custom_metadata"})
        state.session.apply(event.actions)
        emit_for(state, now, run, event.content, event.actions, author=event.author or run.agent, **about)
    if reply.begins is None:
        run.finished = True
        return
    # The children before have ended. Drop them, or they would accumulate in an endless body.
    run.children = []
    last = state.event_count
    child = begin_run(state, reply.begins, run, run.branch)
    run.segments.append((run.asked_at or run.entered_at, first, last, child.index))


def _take_up(state: InvocationState, now: float, run: AgentRun, number: int, reply: ModelReply) -> None:
    """Emit the reply and open its calls, as far as the budget allows."""
    parts = parts_of(reply.content, "functionCall")
    called = [_call(call, part, now, number, run) for call, part in zip(reply.calls, parts, strict=True)]
    run.batch = [*(call.id for call in state.batch(run) if call.performing), *(call.id for call in called)]
    run.calls_made += len(called)
    state.calls.update((call.id, call) for call in called)
    admit(state, run, called)
    run.open.extend(call.id for call in called if call.answerable)
    _emit_reply(state, now, run, reply, called)
    emit_requests(state, now, run, [call for call in called if call.gate == "waiting"])
    for call in called:
        if call.call.standing:
            note: JsonObject = {"function_call_id": call.id, "action": "standing", "origin": call.call.standing}
            emit(state, now, None, None, custom_metadata={"approval": note})
        if call.call.kind == "answered" and not call.closed:
            call.close(call.call.response or {})
            call.outcome = ToolOutcome(
                function_call_id=call.id,
                response=call.call.response,
                actions=call.call.actions,
                transfer=call.call.transfer,
            )
    settle(state, now, run)


def _emit_reply(state: InvocationState, now: float, run: AgentRun, reply: ModelReply, called: list[CallState]) -> None:
    state.session.apply(reply.actions)
    compaction = reply.compaction
    if compaction and (actions := compaction.actions()):
        emit(state, now, run, None, actions, author="user", **compaction.fields())
    notes = (compaction.failed() if compaction else None) or {}
    if reply.remedy:
        problem = {"code": reply.error_code, "message": reply.error_message or reply.error_code, "remedy": reply.remedy}
        notes = {**notes, UNUSABLE_REPLY: problem}
    long_running = tuple(call.id for call in called if call.call.kind == "long_running" and not call.closed)
    emit_for(
        state,
        now,
        run,
        reply.content,
        reply.actions,
        long_running_tool_ids=long_running if called else None,
        finish_reason=reply.finish_reason,
        error_code=None if reply.remedy else reply.error_code,
        error_message=None if reply.remedy else reply.error_message,
        usage_metadata=reply.usage.model_dump(exclude_defaults=True) if reply.usage else None,
        model_version=reply.model_version,
        grounding_metadata=reply.grounding_metadata,
        citation_metadata=reply.citation_metadata,
        custom_metadata={**(reply.custom_metadata or {}), **notes} or None,
    )


def _call(call: Call, part: JsonObject, now: float, number: int, run: AgentRun) -> CallState:
    args = part.get("args") or {} if call.args is None else call.args
    state = CallState(call=call, name=part.get("name") or "", args=args, agent=run.agent, reply=number, turn=run.index)
    if call.standing:
        state.gate = "passed"
    elif call.confirmation:
        state.ask(now, "confirmation", call.confirmation.resolved(state.name))
    return state
