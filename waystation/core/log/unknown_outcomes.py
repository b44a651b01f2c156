"""Reducers for calls whose outcome is unknown: operators state whether the call took effect.

An invocation of its own asks them, so that the question outlives the invocation that made the call. The functions up to
`record_answer` belong to the invocation that asks, the others to the one that made the call.
"""

from collections.abc import Mapping

from waystation.core import ids
from waystation.core.approval import Answer, ApprovalPolicy, SignedApproval, Verified
from waystation.core.contract import Call, Confirmation, InvocationInput, UnknownOutcome
from waystation.core.log import responses
from waystation.core.log.agent_runs import join_batch
from waystation.core.log.call import CallState, origin_of
from waystation.core.log.entry import OutcomeFound
from waystation.core.log.function_calls import settle
from waystation.core.log.invocation_state import AgentRun, InvocationState, emit
from waystation.core.payload import JsonObject

DEADLINE_S = 365 * 24 * 3600.0
"""How long operators are asked. No call may wait forever."""
NOT_DECLARED = "-"
"""Stands for the digest of the tool's parameters if that was not recorded, so that operators may answer."""


def open_question(state: InvocationState, now: float, run: AgentRun, about: UnknownOutcome) -> None:
    """Ask operators about a call of the parent workflow."""
    key = ids.idempotency_key(state.invocation_id.rpartition("/")[0], about.function_call_id)
    hint = (
        f"It is unknown whether `{about.tool}` took effect. Look for the idempotency key {key} in the service that "
        "the tool uses."
    )
    call = CallState(
        call=Call(
            id=about.function_call_id,
            kind="answered",
            approval=about.policy,
            declared=about.declared,
            tool_origin=about.tool_origin,
            title=about.title,
            target=about.target,
            deadline_s=DEADLINE_S,
        ),
        name=about.tool,
        args=about.args,
        agent=state.agent,
    )
    call.ask(now, "unknown", Confirmation(hint=hint))
    state.calls[call.id] = call
    run.open.append(call.id)


def record_answer(
    state: InvocationState, now: float, call: CallState, answer: Answer, approver: Verified | None
) -> None:
    """Close the question with an operator's answer, which becomes the `output` of the invocation that asks."""
    call.answer, call.answered_at, call.gate, call.closed = answer, now, "passed", True
    found: JsonObject = {"action": answer.action, "by": approver.subject if approver else answer.by}
    if approver:
        found["verified"] = approver.model_dump(mode="json", exclude_defaults=True)
    if call.signed:
        found["signed"] = call.signed[-1].model_dump(mode="json")
    state.outcome.output = found | {
        name: value for name in ("comment", "response") if (value := getattr(answer, name)) is not None
    }


def create_question(state: InvocationState, function_call_id: str) -> InvocationInput:
    """Return the input of the invocation that asks operators about a call of this invocation."""
    started, call = state.input, state.calls[function_call_id]
    assert started is not None
    policy, channels = call.policy, state.approvals.operators or state.approvals.channels
    people: JsonObject = {}
    if policy and policy.must_verify:  # even if the policy has no operators, no one else may answer
        people = {"approvers": policy.operators, "operators": policy.operators, "verified": True, "chat": policy.chat}
    copied = ("user_id", "session_id", "app", "tenant", "requester", "traceparent")
    return InvocationInput(
        agent=call.agent,
        message=f"Did `{call.name}` take effect?",
        root=state.root,
        depth=started.depth + 1,
        origin=started.family or state.invocation_id,
        unknown=UnknownOutcome(
            function_call_id=call.id,
            tool=call.name,
            args=call.args,
            policy=ApprovalPolicy(**people, notify=channels),
            declared=call.declared or NOT_DECLARED,
            tool_origin=origin_of(call),
            title=call.call.title,
            target=call.call.target,
        ),
        **{name: getattr(started, name) for name in copied},
    )


def apply_found(state: InvocationState, now: float, body: OutcomeFound) -> None:
    """Apply an operator's answer. If the agent that made the call still works, its model receives the answer, or the
    call starts once more.
    """
    if state.unknown.get(body.function_call_id) != body.run:
        return
    del state.unknown[body.function_call_id]
    call, found = state.calls[body.function_call_id], body.answer
    if found is None:
        return
    public = {name: value for name, value in found.items() if name != "signed"}
    emit(state, now, None, None, custom_metadata={"unknown_outcome": {"function_call_id": call.id, **public}})
    run = state.runs.by_index.get(call.turn)
    if run is None or run.over:
        return
    if found["action"] == "start_again" and call.call.target is None:
        _start_again(state, run, call, found)
    else:
        call.response = responses.found(call, found)
        run.held.append(("user", [responses.response_part(call, call.response)]))
        run.unread = True
    settle(state, now, run)


def _start_again(state: InvocationState, run: AgentRun, call: CallState, found: Mapping[str, object]) -> None:
    asked = call.provisional  # the run that asked an approver, if one did
    call.run_again()
    call.provisional, call.closed = asked or call.provisional, False
    if signed := found.get("signed"):
        call.signed.append(SignedApproval.model_validate(signed))
    join_batch(state, run, call.id)
