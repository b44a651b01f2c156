"""Which people's answers a policy accepts, and how often."""

from typing import Any

import pytest

from tests.unit.core.story import answered, log_of, model_calls, rejected, responses, user_message
from waystation.core.approval import Answer, ApprovalPolicy, Verification, Verified
from waystation.core.errors import AlreadyAnswered, DigestMismatch, InvalidAnswer, NotAllowed
from waystation.core.log import (
    MAX_IGNORED_EVENTS,
    AnswerIgnored,
    Log,
    MessageJoined,
    MessageRef,
    VerificationRef,
    VerificationRequested,
    parse_ref,
)
from waystation.core.log.decision import check_answer, decide_verified
from waystation.core.payload import JsonObject

PAIR: JsonObject = {"quorum": 2, "approvers": ("ann", "bob", "user"), "not_requester": True, "verified": False}
STRICT: JsonObject = {"actions": ("approve", "reject"), "comment": True, "digest": True}
STRANGERS: JsonObject = {"not_requester": True, "verified": False}


def pending(policy: JsonObject, *happened: Any) -> Log:
    """Return the log of a call with this policy, which `eve` requested in an invocation of `user`."""
    call = model_calls("pay", gated=True, approval=ApprovalPolicy(**policy), declared="schema")
    return log_of(user_message("pay", user_id="user", requester="eve"), call, *happened)


@pytest.mark.parametrize(
    ("policy", "answer", "refusal"),
    [
        (PAIR, {"action": "approve", "by": "ann"}, AlreadyAnswered),
        (PAIR, {"action": "approve"}, NotAllowed),
        (PAIR, {"action": "approve", "by": "user"}, NotAllowed),
        (PAIR, {"action": "approve", "by": "mallory"}, NotAllowed),
        (PAIR, {"action": "respond", "by": "bob", "response": {}}, InvalidAnswer),
        *(({}, {"action": action}, NotAllowed) for action in ("claim", "release", "view")),
        *(
            ({"approvers": ("role:finance",)}, {"action": action, "by": "op"}, NotAllowed)
            for action in ("waive", "cancel", "approve", "reject", "claim")
        ),
        *((STRANGERS, {"action": "approve", "by": by}, NotAllowed) for by in ("Eve ", "mailto:eve", "USER")),
        (STRICT, {"action": "approve", "comment": "fine"}, DigestMismatch),
    ],
)
def test_an_answer_that_the_policy_excludes_is_refused(policy: JsonObject, answer: JsonObject, refusal: type) -> None:
    """Refuses second votes, nameless answers, strangers, requesters in any spelling, and unverified operators."""
    log = pending(policy, *([answered("fc-1", by="ann")] if policy is PAIR else []))
    with pytest.raises(refusal):
        check_answer(log, Answer(function_call_id="fc-1", **answer), 1_003)


def test_the_sender_of_a_joined_message_is_a_requester() -> None:
    """This also holds for calls that were pending before, and for agents that the invocation calls."""
    log = pending(STRANGERS, MessageJoined("and pay more", requester="bob"), MessageJoined("thanks", requester="eve"))
    with pytest.raises(NotAllowed):
        check_answer(log, Answer(function_call_id="fc-1", action="approve", by="Bob"), 1_009)
    check_answer(log, Answer(function_call_id="fc-1", action="approve", by="dana"), 1_009)
    [call] = log.state.pending()
    assert (call.requesters, call.joined_requesters) == (("eve", "user", "bob"), ("bob",))
    called = log_of(user_message("pay", joined_requesters=call.joined_requesters), model_calls("pay", gated=True))
    assert called.state.pending()[0].requesters == ("user", "bob")


@pytest.mark.parametrize(
    "fields",
    [{"comment": " "}, {"action": "edit", "args": {}, "comment": "less"}, {"comment": "fine", "remember": True}],
)
def test_a_policy_limits_actions_and_requires_fields(fields: JsonObject) -> None:
    """Only a comment that is not blank counts; other actions and remembered approvals are refused."""
    log = pending(STRICT)
    answer = {"action": "approve", "digest": log.state.pending()[0].digest, **fields}
    with pytest.raises(InvalidAnswer):
        check_answer(log, Answer(function_call_id="fc-1", **answer), 1_003)


def test_one_rejection_closes_the_call() -> None:
    """The call closes although two of three people have approved it."""
    votes = [answered("fc-1", by="ann"), answered("fc-1", by="bob"), rejected("fc-1", by="cleo")]
    log = pending({"quorum": 3, "verified": False}, *votes)
    assert log.state.pending() == []
    assert responses(log)[-1] == ("fc-1", {"error": "This tool call is rejected."})


def test_a_token_counts_once() -> None:
    """A copied token cannot add another approver to a quorum."""
    log, verified = pending({"quorum": 2}), []
    for number, subject in enumerate(("ann", "bob"), 1):
        message = MessageRef("s", number)
        vote = Answer(function_call_id="fc-1", action="approve", token="sealed")
        log.append(MessageRef("s", number, "?"), 1_002, VerificationRequested("fc-1", vote))
        verification = Verification(who=Verified(subject=subject), nonce="once")
        verified.append(decide_verified(log, str(message), verification, 1_003))
        log.append(VerificationRef(message), 1_003, verified[-1])
    refused = verified[1].refused
    assert verified[0].refused is None
    assert refused is not None
    assert (refused.reason, "already used" in refused.message) == ("AlreadyAnswered", True)


def test_a_flood_of_ignored_answers_adds_a_bounded_number_of_events() -> None:
    """Repeated refusals add a bounded number of events, but all of them are counted."""
    log = pending({})
    before = len(log.state.events)
    for number in range(MAX_IGNORED_EVENTS + 30):
        log.append(parse_ref(f"s{number + 1}!"), 1_002, AnswerIgnored("UnknownCall", "No such call."))
    assert (log.state.ignored, len(log.state.events) - before) == (MAX_IGNORED_EVENTS + 30, MAX_IGNORED_EVENTS)


@pytest.mark.parametrize(
    ("policy", "action", "is_named"),
    [
        ({"quorum": 2}, "approve", False),
        ({"verified": True}, "approve", False),
        ({"approvers": ("ann",)}, "waive", False),
        ({"approvers": ("robot",)}, "approve", True),
        ({"approvers": ("ann",), "operators": ("robot",)}, "waive", True),
    ],
)
def test_a_program_counts_only_where_a_policy_names_it(policy: JsonObject, action: Any, is_named: bool) -> None:
    """The provider vouches for it, but it is none of the people of a quorum."""
    who = Verified(subject="robot", is_program=True)
    answer = Answer(function_call_id="fc-1", action=action)
    if is_named:
        assert check_answer(pending(policy), answer, 1_003, who).id == "fc-1"
    else:
        with pytest.raises(NotAllowed, match=r"'robot' is a program"):
            check_answer(pending(policy), answer, 1_003, who)
