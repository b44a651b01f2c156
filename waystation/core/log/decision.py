"""Decide what kind of message arrived (an invocation's input, a session message or an answer) and whether it counts.

Signals, updates, replays and all readers share these decisions. An answer is parsed, its call is looked up, and then
digest, authority, deadline, duplicates and the action are checked, in this order. The order matters because a forged
duplicate must not reveal more than a forged first answer does.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from waystation.core import errors, ids
from waystation.core.actions import ACTIONS, Action, ActionSpec
from waystation.core.approval import (
    MACHINE,
    PLAIN_TOKEN,
    Answer,
    ApprovalPolicy,
    Verification,
    Verified,
    is_among_people,
    is_encrypted,
    is_machine,
    parse_answer,
)
from waystation.core.budget import parse_grant
from waystation.core.contract import ANSWER_SIGNAL
from waystation.core.errors import (
    AlreadyAnswered,
    AnswerRefused,
    DigestMismatch,
    Expired,
    InvalidAnswer,
    NotAllowed,
    UnknownCall,
)
from waystation.core.log.answers import is_repeated
from waystation.core.log.answers import receipt as receipt  # the other decisions about an update are here, too
from waystation.core.log.call import CallState, count_missing_approvals, question_of
from waystation.core.log.entry import AnswerCounted, AnswerIgnored, AnswerVerified, Body, VerificationRequested
from waystation.core.log.entry_ref import MessageRef
from waystation.core.log.log import NOT_SUBMITTED, Log
from waystation.core.secrets import secret_keys

MAX_VERIFICATIONS = 50
"""Maximum number of an invocation's answers that are verified at the same time. Any more are refused and can be sent
again later."""

REPEATED = (
    "The answer {id!r} was already recorded and was not applied again. For an answer with other content, choose a new "
    "`answer_id`."
)

Decided = AnswerCounted | AnswerIgnored | VerificationRequested


def ref_with_verdict(ref: MessageRef, body: Body) -> MessageRef:
    """Return `ref` with the verdict `!` if `body` ignores the message, or `?` if its answer must be verified first.

    Otherwise, return it unchanged.
    """
    match body:
        case AnswerIgnored():
            return replace(ref, verdict="!")
        case VerificationRequested():
            return replace(ref, verdict="?")
        case _:
            return ref


def decide_answer(log: Log, name: str, payloads: Sequence[bytes], now: float) -> Decided:
    """Return the entry for a signal that should contain an answer, whatever its name and payloads. Never raises.

    The caller must first have advanced the log's deadlines to `now`, so that every reader decides on the same log.
    """
    if name != ANSWER_SIGNAL:
        return AnswerIgnored("InvalidAnswer", f"No signal is named {name[:100]!r}; answers go to {ANSWER_SIGNAL!r}.")
    if len(payloads) != 1:
        return AnswerIgnored(
            "InvalidAnswer", f"An answer must be one argument, an object, but {len(payloads)} arrived."
        )
    answer: Answer | None = None
    try:
        answer = parse_answer(payloads[0])
        return accept(log, answer, now)
    except AnswerRefused as refused:
        return _ignored(refused, answer)


def accept(log: Log, answer: Answer, now: float) -> AnswerCounted | VerificationRequested:
    """Return `VerificationRequested` if an answer must be verified first, or else `AnswerCounted`.

    Raises:
        AnswerRefused: The answer fails a check of `check_answer`, its token is not encrypted, or too many answers are
            being verified. Most checks of an answer with a token follow only after its verification.
    """
    call = _find_call(log, answer)
    if not needs_verification(call, answer):
        return AnswerCounted(check_answer(log, answer, now).id, answer)
    if answer.token is None:
        check_answer(log, answer, now)
    else:
        # Until the sender is verified, the reply must not reveal that an answer is late or a duplicate.
        _check_digest(call, answer)
        if not is_encrypted(answer.token):
            raise NotAllowed(PLAIN_TOKEN)
    if (count := len(log.state.approvals.submitted)) >= MAX_VERIFICATIONS:
        raise NotAllowed(f"{count} answers are already being verified. Send this one again later.")
    return VerificationRequested(call.id, answer)


def accept_update(log: Log, answer: Answer, now: float) -> None:
    """Check that an answer that was sent as an update counts, or that it repeats one that has counted.

    Raises:
        AnswerRefused: See `accept`.
    """
    call = log.state.calls.get(ids.requesting_call(answer.function_call_id))
    if call is None or not is_repeated(call, answer):
        accept(log, answer, now)


def decide_update(call: CallState, answer: Answer) -> Decided:
    """Return the entry for an answer in an accepted update."""
    if is_repeated(call, answer):
        return AnswerIgnored("AlreadyAnswered", REPEATED.format(id=answer.answer_id), call.id, answer.by)
    return (VerificationRequested if needs_verification(call, answer) else AnswerCounted)(call.id, answer)


def needs_verification(call: CallState, answer: Answer) -> bool:
    """Return whether an answer must be verified: it has a token, edited arguments, or a response with a schema.

    Always false if the digest of the tool's parameters was not recorded, or if the answer repeats one without a token.
    """
    if call.declared is None or is_repeated(call, answer):
        return False
    completes = call.call.response_schema is not None and ACTIONS[answer.action].completes
    return answer.token is not None or answer.action == "edit" or completes


def decide_verified(log: Log, ref: str, verification: Verification, now: float) -> AnswerVerified:
    """Return the entry for the result of an answer's verification. Never raises."""
    answer = log.state.approvals.submitted.get(ref)
    if answer is None:
        return AnswerVerified(ref, verification, NOT_SUBMITTED)
    call = log.state.calls.get(ids.requesting_call(answer.function_call_id))
    if call and ref in call.held_by and call.deadline is not None:
        now = math.nextafter(call.deadline, 0.0)
    try:
        if verification.refused:
            raise refusal_from_name(verification.refused, verification.message)
        applied = verification.applied_to(answer)
        call = check_answer(log, applied, now, verification.who, submitted_to=verification.question)
        if verification.nonce and verification.nonce in call.answer_ids:
            raise AlreadyAnswered("The token was already used, and a token is accepted only once.")
    except AnswerRefused as refused:
        return AnswerVerified(ref, verification, _ignored(refused, answer))
    return AnswerVerified(ref, verification)


def check_answer(
    log: Log, answer: Answer, now: float, who: Verified | None = None, *, submitted_to: int | None = None
) -> CallState:
    """Return the call that an answer applies to, after checking that the answer counts at time `now`.

    Args:
        log: The log of the invocation.
        answer: The answer to check.
        now: The current time, in seconds since 1970.
        who: The verified identity of the approver, if the answer was verified.
        submitted_to: Number of the question that was open when the answer was submitted, or None if it is unknown.

    Raises:
        AnswerRefused: The answer does not count. The subclass indicates the reason.
    """
    call = _find_call(log, answer)
    _check_digest(call, answer)
    check_authority(call, answer, who, log.state.requesters)
    if call.expired or (call.deadline is not None and call.deadline <= now):
        raise Expired(f"The deadline of call {call.id!r} has passed; the call was not approved.")
    if not call.answerable:
        raise already_answered_error(call)
    if any(question not in (None, question_of(call)) for question in (answer.question, submitted_to)):
        raise AlreadyAnswered(
            f"The answer is not for the question that call {call.id!r} asks now. Fetch the call again, and answer it "
            "if it still waits."
        )
    if answer.answer_id is not None and answer.answer_id in call.answer_ids:
        raise AlreadyAnswered(REPEATED.format(id=answer.answer_id))
    name = who.subject if who else answer.by
    if answer.action == "approve" and is_among_people(name, call.approved_by):
        more = f"{(count := count_missing_approvals(call))} more {'approval' if count == 1 else 'approvals'}"
        raise AlreadyAnswered(f"{name!r} has already approved call {call.id!r}. It needs {more} from other people.")
    _check_action(call, answer)
    check_claim(call, answer, who)
    if call.gate == "waiting" and call.asked == "credential":
        _refuse_secrets(answer)
    if call.gate == "waiting" and call.asked == "budget" and answer.action == "approve":
        try:
            parse_grant(answer.response, log.state.budget, call.args["limits"])
        except ValueError as error:
            raise InvalidAnswer(f"The `response` to {call.id!r} is not a valid grant: {error}.") from None
    return call


def allowed_actions(call: CallState) -> frozenset[Action]:
    """Return the actions that a pending call accepts, given its kind and its policy.

    A policy does not restrict what it cannot list. Calls without a recorded digest of their tool's parameters accept
    only what it can.
    """
    kind = (call.asked or "confirmation") if call.gate == "waiting" else "long_running"
    listed = call.policy.actions if call.policy else None
    actions = frozenset(
        row.name
        for row in ACTIONS.values()
        if kind in row.kinds
        and (not row.of_machines or (call.policy is not None and call.policy.machine))
        and (listed is None or row.name in listed if row.listable else call.declared is not None)
    )
    if call.call.target:
        actions -= {"start_again"}  # the ID of the user's code allows no second run
    if call.approvals_needed > 1:
        actions -= {"respond"}  # several approvers could give different responses
    return actions


def _find_call(log: Log, answer: Answer) -> CallState:
    call = log.state.calls.get(ids.requesting_call(answer.function_call_id))
    if call is None or not call.ever_waits:
        raise UnknownCall(
            f"No call {answer.function_call_id!r} waits in invocation {log.invocation_id!r}. "
            f"Waiting: {', '.join(c.id for c in log.state.waiting()) or 'none'}."
        )
    return call


def _check_digest(call: CallState, answer: Answer) -> None:
    if answer.digest is not None and answer.digest != call.digest:
        raise DigestMismatch(
            f"The answer refers to different arguments than call {call.id!r} has. Fetch the call again."
        )
    if answer.digest is None and call.policy and call.policy.digest and ACTIONS[answer.action].decides:
        raise DigestMismatch(f"An answer to call {call.id!r} must contain the `digest` of the call as it was shown.")


def _check_action(call: CallState, answer: Answer) -> None:
    policy, possible = call.policy, allowed_actions(call)
    if answer.action not in possible:
        raise InvalidAnswer(
            f"Call {call.id!r} of {call.name!r} accepts {', '.join(sorted(possible))}, but not {answer.action!r}."
        )
    row = ACTIONS[answer.action]
    needs_comment = row.needs_comment or (policy is not None and policy.comment and row.decides)
    if needs_comment and not (answer.comment or "").strip():
        raise InvalidAnswer(f"An answer to call {call.id!r} requires a `comment`.")
    if answer.remember and not (policy and policy.remember and answer.action == "approve"):
        raise InvalidAnswer(f"This answer to call {call.id!r} cannot also cover later calls. Omit `remember`.")


def refusal_from_name(kind: str, message: str) -> AnswerRefused:
    """Return an error of the `AnswerRefused` subclass with this recorded name, or `InvalidAnswer` if there is none."""
    refusal_class = getattr(errors, kind, None)
    if isinstance(refusal_class, type) and issubclass(refusal_class, AnswerRefused):
        return refusal_class(message)
    return InvalidAnswer(message)


def _ignored(refused: AnswerRefused, answer: Answer | None) -> AnswerIgnored:
    named = (answer.function_call_id, answer.by) if answer else ()
    return AnswerIgnored(type(refused).__name__, str(refused), *named)


def _refuse_secrets(answer: Answer) -> None:
    if paths := secret_keys({"response": answer.response, "payload": answer.payload, "comment": answer.comment}):
        raise InvalidAnswer(
            f"The answer contains what looks like a secret: {', '.join(paths)}. Answers are recorded in the history, "
            "so save the credential in the credential store with `waystation authorize`, then approve. A secret that "
            "was sent as a signal is already in the history, so revoke it."
        )


def already_answered_error(call: CallState) -> AlreadyAnswered:
    """Return the error for an answer to a call that no longer accepts answers."""
    if call.answer is None:
        return AlreadyAnswered(f"Call {call.id!r} is closed.")
    by = f" by {call.answered_by!r}" if call.answered_by else ""
    return AlreadyAnswered(f"Call {call.id!r} was already answered{by}: {call.answer.action}. That answer counts.")


def check_authority(call: CallState, answer: Answer, who: Verified | None, requesters: Sequence[str] | None) -> None:
    """Check that the approver may give this answer.

    `requesters` is None if the policy excludes the requester, but the requester is not verified.

    Raises:
        NotAllowed: The approver may not give this answer, must verify their identity first, or must state a name.
    """
    policy, name, row = call.policy, who.subject if who else answer.by, ACTIONS[answer.action]
    if row.needs_name and not name:
        raise NotAllowed(f"To {answer.action} call {call.id!r}, specify your name in `by`.")
    if policy is None:
        return
    _check_kind(call, policy, name, row)
    if policy.must_verify and who is None:
        raise NotAllowed(f"Call {call.id!r} only accepts answers with a verified identity. Send a `token`.")
    named = policy.operators if row.operators_only else policy.asked(call.level)
    if who and who.is_program and who.subject not in named:
        raise NotAllowed(f"{name!r} is a program, so it may {answer.action} only calls whose policy names it.")
    if row.operators_only:
        if who and policy.must_verify and not who.is_among(policy.operators):
            raise NotAllowed(
                f"{name!r} may not {answer.action} call {call.id!r}. Its operators: {_join_names(policy.operators)}."
            )
        return
    if answer.action == "view":
        return
    if named and not (who.is_among(named) if who else name in named):
        person = repr(name) if name else "A sender without a name in `by`"
        raise NotAllowed(f"{person} may not answer call {call.id!r}. Its approvers: {_join_names(named)}.")
    if policy.not_requester and requesters is None and row.advances:
        raise NotAllowed(
            f"The requester may not answer call {call.id!r}, but the requester is not verified: the invocation was "
            "started without a token, or received a message without a valid one. Reject the call and make the request "
            "again with a token (`waystation run --token-file FILE`), or have an operator waive the approval."
        )
    if policy.not_requester and is_among_people(name, requesters or ()):
        raise NotAllowed(f"{name!r} requested call {call.id!r}, so someone else must answer it.")
    if policy.quorum > 1 and not name:
        raise NotAllowed(f"{policy.quorum} people must approve call {call.id!r}, so specify your name in `by`.")


def _check_kind(call: CallState, policy: ApprovalPolicy, name: str | None, row: ActionSpec) -> None:
    """Check that a machine answers only its own calls, and that only operators act in its place.

    Raises:
        NotAllowed: A person answers the call of a machine, or a machine another call.
    """
    own = f"{MACHINE}{policy.machine}" if policy.machine else None
    if own and name != own and not row.operators_only:
        raise NotAllowed(
            f"The machine {policy.machine!r} answers call {call.id!r}, so people cannot. If it does not answer, an "
            "operator may `replace` its answer or `cancel` the call."
        )
    if is_machine(name) and (name != own or row.operators_only):
        raise NotAllowed(f"{name!r} is a machine, so it may not {row.name} call {call.id!r}, which is for people.")


def check_claim(call: CallState, answer: Answer, who: Verified | None) -> None:
    """Check that no one else has claimed the call, unless the action is allowed despite the claim.

    Raises:
        NotAllowed: Another approver has claimed the call.
    """
    name = who.subject if who else answer.by
    if not (call.claimed_by in (None, name) or ACTIONS[answer.action].despite_claim):
        raise NotAllowed(
            f"{call.claimed_by!r} has claimed call {call.id!r}. Any approver may `release` it and then answer."
        )


def _join_names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
