"""Reducers for answers, passed deadlines, and requests for more budget.

These reducers receive only answers that count. `approval.decision` decides which ones do.
"""

from waystation.core import ids
from waystation.core.actions import ACTIONS
from waystation.core.approval import Answer, Notice, RememberedApproval, Verification, Verified, merge_remembered
from waystation.core.budget import NOTHING, parse_grant
from waystation.core.contract import Call, Confirmation
from waystation.core.log import responses
from waystation.core.log.agent_runs import join_batch, next_phase
from waystation.core.log.budget_use import admit, exhausted, held_calls, policy_of, reason_of, turn_away
from waystation.core.log.call import CallState, count_missing_approvals, origin_of
from waystation.core.log.entry import Failure
from waystation.core.log.function_calls import credential_key, refuse, settle
from waystation.core.log.invocation_state import InvocationState, announce, emit
from waystation.core.log.notification import Occasion, due_notification
from waystation.core.log.unknown_outcomes import record_answer
from waystation.core.payload import JsonObject

MAX_RECEIPTS = 50
"""Number of receipts that are kept for each call. Each run carries them over to the next one, and a long-running call
may receive any number of answers that leave it open."""


def count_answer(
    state: InvocationState, now: float, call: CallState, sent: Answer, verification: Verification | None = None
) -> None:
    """Apply an answer that counts, and keep its receipt.

    `verification` is the result of its verification, or None if it did not have to be verified.
    """
    verification = verification or Verification()
    if verification.nonce:
        call.answer_ids[verification.nonce] = None
    if verification.signed:
        call.signed.append(verification.signed)
    answer = verification.applied_to(sent)
    apply_answer(state, now, call, answer, verification.who)
    if sent.answer_id:
        subject = verification.who.subject if verification.who else None
        call.receipts[sent.answer_id] = sent.content_digest, subject, receipt(call, answer)
        for oldest in list(call.receipts)[:-MAX_RECEIPTS]:
            del call.receipts[oldest]


def is_repeated(call: CallState, answer: Answer, who: Verified | None = None) -> bool:
    """Return whether an answer with the same ID and content, from the same verified approver, has counted before.

    An answer with a token must be verified first. Until then, nothing may reveal that it is a repetition.
    """
    subject = who.subject if who else None
    return (
        answer.answer_id in call.receipts
        and (answer.token is None) is (who is None)
        and call.receipts[answer.answer_id][:2] == (answer.content_digest, subject)
    )


def receipt(call: CallState, answer: Answer) -> JsonObject:
    """Return the result of the update `submit_answer` for an answer that has counted.

    It does not change if the answer has an ID and is sent again.
    """
    if answer.answer_id in call.receipts:
        return call.receipts[answer.answer_id][2]
    result: JsonObject = {"accepted": True, "function_call_id": call.id, "tool": call.name, "action": answer.action}
    if call.approved_by and call.answer is None:
        result |= {"approved_by": [*call.approved_by], "lacking": count_missing_approvals(call)}
    if answer.action == "edit" and call.declared is not None:
        result["digest"] = call.approved_digest or call.digest
    return result


def apply_answer(
    state: InvocationState, now: float, call: CallState, answer: Answer, approver: Verified | None = None
) -> None:
    """Apply an answer that counts. `approver` is its author, or None if the author was not verified."""
    if ids.is_budget(call.id):
        _answer_ask(state, now, call, answer)
        return
    run, row = state.runs[call.turn], ACTIONS[answer.action]
    name = approver.subject if approver else answer.by
    if answer.answer_id:
        call.answer_ids[answer.answer_id] = None
    match answer.action:
        case "view":
            call.viewed_by[name or ""] = None
            return
        case "claim" | "release":
            call.claimed_by = name if answer.action == "claim" else None
            _note(state, now, call, answer, approver)
            return
        case "revoke":
            call.revoked += 1
            _note(state, now, call, answer, approver)
            return
    _keep_additions(call, answer, name or "")
    if row.approves and call.approvals_needed > 1:
        # Editing the arguments discards earlier approvals and counts as the first approval of the changed call.
        if answer.action == "edit":
            call.approved_by = {}
        call.approved_by[name or ""] = answer.remember
        if len(call.approved_by) < call.approvals_needed:
            _note(state, now, call, answer, approver)
            return
    if row.decides:
        call.decided_by = approver
        notify(state, call, "decided")
    if approver or row.operators_only:
        _note(state, now, call, answer, approver)
    if answer.remember and all(call.approved_by.values()):
        _remember(state, now, call, name or "")
    if answer.action == "cancel":
        call.answer, call.answered_at = answer, now
        refuse(state, call, responses.with_additions(call, responses.withdrawn()))
    elif call.asked == "unknown":
        record_answer(state, now, call, answer, approver)
    elif call.gate == "waiting":
        _answer_request(state, now, call, answer)
    else:
        call.response = responses.answered(call, answer)
        if row.decides:
            call.answer, call.answered_at, call.closed = answer, now, True
        elif call.policy and call.policy.machine:
            call.progress_at = now
        # If no other call waits, no later answer would call the model.
        wakes = answer.wake or (row.decides and not any(state.calls[other].waiting for other in run.open))
        call.responded = call.responded or row.decides or wakes
        run.unread = run.unread or wakes
        run.held.append(("user", [responses.response_part(call, call.response)]))
    settle(state, now, run)


def _keep_additions(call: CallState, answer: Answer, name: str) -> None:
    """Keep what an answer adds to the response of its call, and apply an edit of the arguments."""
    if ACTIONS[answer.action].requires == "response":  # the model receives exactly their `response`
        return
    if answer.comment:
        call.comments.append((name, answer.comment))
    call.fields |= answer.response or {}
    if answer.action == "edit":
        call.shown = call.args if call.approvals_needed == 1 else None
        call.requested = call.args if call.requested is None else call.requested
        call.args = dict(answer.args or {})
        call.edited_by |= {name: None} if name else {}


def apply_deadline(state: InvocationState, now: float, call: CallState) -> None:
    """Refuse a call whose deadline has passed, and fail the invocation if the call's policy requires it."""
    call.expired = True
    notify(state, call, "expired")
    if ids.is_budget(call.id):
        _deny(state, now, call)
        return
    if call.policy and call.policy.on_expiry == "fail":
        state.outcome.failure = Failure(
            kind="error",
            error_type="Expired",
            message=f"Nobody answered the call of {call.name!r} before its deadline.",
        )
    refuse(state, call, responses.expired(call))
    settle(state, now, state.runs[call.turn])


def notify(state: InvocationState, call: CallState, occasion: Occasion, notice: Notice | None = None) -> None:
    """Add a notification about a call if it has channels to notify and `notify_of_waits` has seen its current wait."""
    if call.told == call.waits and (notification := due_notification(call, occasion, state.approvals.channels, notice)):
        state.approvals.due.append(notification)


def notify_of_waits(state: InvocationState, now: float) -> None:
    """Mark the calls that have started to wait as seen, and add notifications and events about them."""
    for call in state.open_calls():
        if call.waiting and call.told < call.waits:
            call.told = call.waits
            notify(state, call, "asked")
            announce(state, now, "waiting", f"{call.id}.{call.waits}", call)


def _remember(state: InvocationState, now: float, call: CallState, approver: str) -> None:
    policy = call.policy
    if policy and policy.remember:
        approval = RememberedApproval(
            root=call.call.root,
            agent=call.agent,
            tool=call.name,
            args=policy.alike(call.args),
            bound_to=policy.bound_to(call.declared, origin_of(call)),
            by=approver,
            until=now + policy.remember.total_seconds(),
            origin=ids.approval(state.invocation_id, call.id),
            signed=tuple(approval for approval in call.signed if approval.remember),
        )
        state.approvals.standing = merge_remembered(state.approvals.standing, [approval])


def _note(state: InvocationState, now: float, call: CallState, answer: Answer, approver: Verified | None) -> None:
    """Emit an event without content that records an approver's action."""
    name = approver.subject if approver else answer.by
    note: JsonObject = {"function_call_id": call.id, "action": answer.action, "by": name}
    if approver:
        note["verified"] = approver.model_dump(mode="json", exclude_defaults=True)
    if call.approvals_needed > 1 and ACTIONS[answer.action].approves:
        note |= {"approved_by": [*call.approved_by], "needed": call.approvals_needed}
    if answer.comment:
        note["comment"] = answer.comment
    emit(state, now, None, None, custom_metadata={"approval": note})


def _answer_request(state: InvocationState, now: float, call: CallState, answer: Answer) -> None:
    call.answer, call.answered_at = answer, now
    content = {"role": "user", "parts": [responses.request_response_part(call, answer)]}
    emit(state, now, state.runs[call.turn], content, author="user")
    if answer.action == "reject" and (call.outcome is None or call.asked != "confirmation"):
        refuse(state, call, responses.with_additions(call, responses.rejected()))
        return
    call.gate = "passed"
    if call.call.kind == "long_running":  # earlier approvals only let it run; its response needs new ones
        call.claimed_by, call.approved_by = None, {}
    if call.outcome is None:
        return
    # A single login provides the credential to every call that is waiting for it.
    key = credential_key(call)
    waiting = [other for other in state.open_calls() if other is not call and other.gate == "waiting"]
    for again in (call, *(other for other in waiting if key and credential_key(other) == key)):
        again.gate = "passed"
        again.run_again()
        join_batch(state, state.runs[again.turn], again.id)


# Requests for more budget.


def ask_for_budget(state: InvocationState, now: float) -> None:
    """Request more budget if a call or an agent cannot continue without it and the budget's policy is to ask."""
    use = state.budget_use
    if state.input is None or state.input.budget.on_exhausted != "ask":
        return
    if use.ask and state.calls[use.ask].waiting:
        return
    reasons = {limit: reason for limit, reason in exhausted(state).items() if policy_of(state, limit) == "ask"}
    if not reasons:
        return
    llm_runs = (run for run in state.runs.at_work() if run.shape.kind == "llm")
    if held_calls(state) or any(next_phase(state, run) in ("enter", "turn") for run in llm_runs):
        _open_ask(state, now, reasons)


def asked_call(state: InvocationState, now: float, function_call_id: str) -> CallState:
    """Return the call that an answer or a deadline refers to.

    Readers that do not have the workflow's times cannot tell when wall time runs out. They learn about a request for
    more wall time only from its answer, so the request is created here.
    """
    if ids.is_budget(function_call_id) and function_call_id not in state.calls:
        limit = "max_wall_s"
        return _open_ask(state, now, {limit: reason_of(limit, state.budget.limits().get(limit, 0))})
    return state.calls[function_call_id]


def close_ask(state: InvocationState) -> None:
    """Close the latest request for more budget if it is still pending."""
    call = state.calls[state.budget_use.ask] if state.budget_use.ask else None
    if call and call.waiting:
        call.gate, call.closed = "refused", True


def _open_ask(state: InvocationState, now: float, reasons: dict[str, str]) -> CallState:
    use, budget, reason = state.budget_use, state.budget.limits(), "; ".join(reasons.values())
    use.asks += 1
    args: JsonObject = {"reason": reason, "limits": {limit: budget.get(limit, 0) for limit in reasons}}
    call = CallState(call=Call(id=ids.budget(use.asks)), name="budget", args=args, agent=state.agent)
    hint = (
        f"{reason}. Approve to grant the same amount again, or the amounts in `response`. If rejected, the agent wraps "
        "up."
    )
    call.ask(now, "budget", Confirmation(hint=hint))
    state.calls[call.id] = call
    use.ask = call.id
    content = {"role": "model", "parts": [responses.request_part(call)]}
    emit(state, now, state.runs[0], content, long_running_tool_ids=(responses.request_id(call),))
    return call


def _answer_ask(state: InvocationState, now: float, call: CallState, answer: Answer) -> None:
    notify(state, call, "decided")
    call.answer, call.answered_at = answer, now
    content = {"role": "user", "parts": [responses.request_response_part(call, answer)]}
    emit(state, now, state.runs[0], content, author="user")
    if answer.action == "reject":
        _deny(state, now, call)
        return
    call.gate, call.closed = "passed", True
    try:
        grant = parse_grant(answer.response, state.budget, call.args["limits"])
    except (ValueError, KeyError):  # already checked when the answer arrived, but every log must stay readable
        grant = NOTHING
    state.budget_use.granted += grant
    state.budget_use.turned_away = False
    held = held_calls(state)
    for waiting_call in held:
        waiting_call.held = None
    for run in state.runs.at_work():
        if calls := [waiting_call for waiting_call in held if waiting_call.turn == run.index]:
            admit(state, run, calls)
            settle(state, now, run)


def _deny(state: InvocationState, now: float, call: CallState) -> None:
    held = held_calls(state)
    call.gate, call.closed = "refused", True
    state.budget_use.denied, state.budget_use.turned_away = True, bool(held)
    for waiting_call in held:
        turn_away(waiting_call, waiting_call.held or "")
        settle(state, now, state.runs[waiting_call.turn])
