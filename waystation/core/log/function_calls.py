"""Reducers for function calls: apply outcomes, refuse and close calls, and merge responses into events.

As in ADK 2.13, each batch of calls results in one event, with its parts and actions in call order.
"""

from collections.abc import Sequence
from typing import Any

from waystation.core.contract import (
    NO_ACTIONS,
    AgentSpec,
    CallbackResult,
    Confirmation,
    EventActions,
    ToolOutcome,
    merge_actions,
)
from waystation.core.log import responses
from waystation.core.log.agent_runs import begin_run, drop_over, is_busy, join_batch, subtree
from waystation.core.log.call import Asked, CallState, stage_of
from waystation.core.log.entry import Failure
from waystation.core.log.entry_ref import CallRef, ModelReplyRef
from waystation.core.log.invocation_state import AgentRun, InvocationState, emit
from waystation.core.payload import JsonObject


def apply_outcome(
    state: InvocationState, now: float, call: CallState | None, outcome: ToolOutcome | None, run_number: int = 0
) -> None:
    """Apply the outcome of one run of a call.

    Do nothing if `call` or `outcome` is None, if the call already has an outcome, or if `run_number` is not its current
    run.
    """
    if call is None or outcome is None or call.run != run_number:
        return
    # This includes calls that were closed in the meantime, because their agent was stopped.
    if stage_of(call) in ("tool", "target") and responses.is_unknown(call, outcome):
        state.unknown[call.id] = call.run
    if call.outcome is not None:
        return
    call.outcome = outcome
    if outcome.fatal:
        state.outcome.failure = Failure(
            kind="error", error_type=outcome.error_type or "ToolFailed", message=f"The tool {call.name!r} raised."
        )
    run = state.runs[call.turn]
    if outcome.proceed if stage_of(call) == "check" else call.call.after and stage_of(call) == "target":
        call.run_again()
        return
    if (asked := _asked(call.id, outcome)) and not call.closed:
        call.args = call.args if outcome.args is None else outcome.args
        call.ask(now, *asked)
        call.response, call.responded = outcome.response, call.asked == "confirmation"
        if call.id not in run.open:
            run.open.append(call.id)
    elif call.call.kind == "long_running" and not outcome.final:
        call.wait(now)
        if not call.closed and outcome.response is not None:
            # Progress that was reported before the function returned takes precedence over its return value.
            call.response = _response(call, outcome.response) if call.response is None else call.response
            call.responded = True
    elif not call.closed:
        call.close(_response(call, outcome.response or {}))
    settle(state, now, run)


def refuse(state: InvocationState, call: CallState, response: JsonObject) -> None:
    """Close a call with a response that says why it was not approved or answered.

    A call that has already run keeps its outcome.
    """
    if call.gate == "waiting":
        call.gate = "refused"
    run = state.runs[call.turn]
    run.unread = True
    call.close(response)
    if call.outcome is None:
        call.outcome = ToolOutcome(function_call_id=call.id, response=response)
        join_batch(state, run, call.id)
    else:
        run.held.append((call.agent, [responses.response_part(call, response)]))


def settle(state: InvocationState, now: float, run: AgentRun) -> None:
    """Merge new outcomes into one event, then emit what was held. Do nothing while the run is busy.

    The agent's closing content, if any, follows once all calls have responses.
    """
    if is_busy(state, run):
        return
    _flush(state, now, run)
    for author, parts in run.held:
        emit(state, now, run, {"role": "user", "parts": parts}, author=author)
    run.held.clear()
    run.open = [id for id in run.open if (call := state.calls[id]).answerable or call.waiting]
    if run.closing and all(call.responded for call in state.batch(run)):
        closing, run.closing = run.closing, None
        emit_callback_result(state, now, run, closing)
        run.unread = False


def emit_callback_result(state: InvocationState, now: float, run: AgentRun, result: CallbackResult | None) -> None:
    """Apply and emit an agent's final content or the result of its callbacks. Do nothing if there is none."""
    if result and (result.content or result.actions):
        state.session.apply(result.actions)
        emit_for(state, now, run, result.content, result.actions)


def emit_for(
    state: InvocationState,
    now: float,
    run: AgentRun,
    content: JsonObject | None,
    actions: EventActions | None,
    **fields: Any,
) -> None:
    """Emit an event from an agent. If it escalates, stop the agent's parallel siblings and end the enclosing loops."""
    emit(state, now, run, content, actions, **fields)
    if actions and actions.escalate:
        _escalate(state, now, run)


def emit_requests(state: InvocationState, now: float, run: AgentRun, calls: list[CallState]) -> None:
    """Emit one event with the credential requests of the calls, and one with their confirmation requests.

    Requests for the same credential are emitted once. An event without requests is left out.
    """
    for kind in ("credential", "confirmation"):
        distinct = {credential_key(call) or call.id: call for call in reversed(calls) if call.asked == kind}
        if asking := list(reversed(distinct.values())):
            role, parts = (
                "model" if kind == "confirmation" else "user",
                [responses.request_part(call) for call in asking],
            )
            request_ids = tuple(responses.request_id(call) for call in asking)
            emit(state, now, run, {"role": role, "parts": parts}, long_running_tool_ids=request_ids)


def close_all(state: InvocationState, now: float, run: AgentRun) -> None:
    """Close all open calls of an agent run that is ending."""
    for function_call_id in dict.fromkeys((*run.batch, *run.open)):
        call = state.calls[function_call_id]
        if not call.closed:
            refuse(state, call, responses.ended(call))
        call.outcome = call.outcome or ToolOutcome(function_call_id=call.id)
    run.in_flight = run.phase_in_flight = run.closing = None
    settle(state, now, run)
    run.unread = False


def credential_key(call: CallState) -> str | None:
    """Return the key of the credential that a call requests, or None if it does not request one."""
    match call.asks:
        case Confirmation(payload={"credentialKey": str(key)}) if call.asked == "credential":
            return key
    return None


def _escalate(state: InvocationState, now: float, run: AgentRun) -> None:
    child, parent = run, state.runs.by_index.get(-1 if run.parent is None else run.parent)
    while parent:
        if parent.shape.kind == "loop":
            parent.escalated = True
        elif parent.shape.kind == "parallel" and child is run:
            for index in parent.children:
                if index != child.index and not state.runs.is_over(index):
                    _stop(state, now, state.runs[index])
        child, parent = parent, state.runs.by_index.get(-1 if parent.parent is None else parent.parent)


def _stop(state: InvocationState, now: float, run: AgentRun) -> None:
    """End an agent run and all runs below it, and close their calls."""
    for ended in subtree(state, run):
        if ended.over:
            continue
        if ended.in_flight is not None:
            state.runs.unwanted.add(str(ModelReplyRef(ended.in_flight)))
        performing = (call for call in state.batch(ended) if call.performing)
        state.runs.unwanted.update(str(CallRef(call.id, call.run)) for call in performing)
        ended.over = True  # before its calls are closed, so that closing them starts nothing new
        close_all(state, now, ended)
    drop_over(state)


def _flush(state: InvocationState, now: float, run: AgentRun) -> None:
    fresh = [(call, call.outcome) for call in state.batch(run) if call.outcome is not None and not call.flushed]
    if not fresh:
        return
    parts: list[JsonObject] = []
    for call, outcome in fresh:
        call.flushed = True
        # If an answer arrived before the function returned, the interim response is outdated.
        if outcome.response is not None and not (call.answer and call.gate == "none"):
            parts.append(responses.response_part(call, _response(call, outcome.response), outcome.parts))
            parts.extend(outcome.beside)
    actions = merge_actions([outcome.actions or NO_ACTIONS for _, outcome in fresh])
    requests = [call for call, _ in fresh if call.gate == "waiting"]
    first = [call for call in requests if call.asked == "credential" or len(requests) == len(fresh)]
    state.session.apply(actions)
    emit_requests(state, now, run, first)
    if parts or actions != NO_ACTIONS:
        emit_for(state, now, run, {"role": "user", "parts": parts} if parts else None, actions)
    emit_requests(state, now, run, [call for call in requests if call not in first])
    if actions.transfer_to_agent and not run.over:
        # The target agent sees this batch, but held responses belong to the agent that made the calls.
        run.unread = bool(run.held)
        begin_run(state, _target(actions.transfer_to_agent, [outcome for _, outcome in fresh]), run, run.branch)
    elif any(call.responded for call, _ in fresh):
        run.unread = run.unread or not actions.skip_summarization


def _response(call: CallState, response: JsonObject) -> JsonObject:
    """Return the response that the model receives. Approvers add to it if the call ran with their approval."""
    return responses.with_additions(call, response) if call.gate == "passed" else response


def _asked(function_call_id: str, outcome: ToolOutcome) -> tuple[Asked, Confirmation] | None:
    """Return the credential or confirmation request that a tool made while running, or None."""
    actions = outcome.actions or NO_ACTIONS
    if config := actions.requested_auth_configs.get(function_call_id):
        return "credential", Confirmation(payload=config)
    if confirmation := actions.requested_tool_confirmations.get(function_call_id):
        return "confirmation", Confirmation(hint=confirmation.hint, payload=confirmation.payload)
    return None


def _target(name: str, outcomes: Sequence[ToolOutcome]) -> AgentSpec:
    """Return the spec of the agent `name` from the outcome that transfers to it, or a default spec if there is none."""
    specs = (outcome.transfer for outcome in reversed(outcomes))
    return next((spec for spec in specs if spec and spec.name == name), AgentSpec(name=name))
