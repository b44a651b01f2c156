"""Whether an answer counts; the checks run in a fixed order."""

import json
from typing import Any

import pytest

from tests.unit.core.story import answered, called, expired, log_of, returned, said
from tests.unit.core.test_snapshot import restored
from waystation.core import (
    DEFAULT_DEADLINE_S,
    AlreadyAnswered,
    Answer,
    AnswerCounted,
    AnswerIgnored,
    AnswerRefused,
    ApprovalPolicy,
    DigestMismatch,
    Expired,
    InvalidAnswer,
    JsonObject,
    Log,
    UnknownCall,
    Verified,
    check_answer,
    decide_answer,
    parse_ref,
)
from waystation.core.approval import decision
from waystation.core.log.answers import MAX_RECEIPTS, is_repeated, receipt


def waiting(**fields: Any) -> Log:
    """A confirmation waits since 1,001 s."""
    return log_of(said("pay"), called("pay", gated=True, **fields))


def answer(**fields: Any) -> Answer:
    """An approval of fc-1, unless told otherwise."""
    return Answer(**{"function_call_id": "fc-1", "action": "approve", **fields})


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"function_call_id": "fc-9", "digest": "wrong", "action": "respond"}, UnknownCall),
        ({"digest": "wrong", "action": "respond"}, DigestMismatch),
        ({"action": "respond"}, Expired),
    ],
)
def test_the_first_check_that_fails_is_the_one_that_is_told(given: dict[str, Any], refusal: type) -> None:
    """Known call before digest before deadline before the rest, whatever else is wrong."""
    with pytest.raises(refusal):
        check_answer(waiting(), answer(**given), now=1_001 + DEFAULT_DEADLINE_S)


def test_a_duplicate_with_a_wrong_digest_learns_nothing() -> None:
    """The digest is checked before the duplicate is noticed."""
    log = log_of(said("pay"), called("pay", gated=True), answered("fc-1"))
    with pytest.raises(DigestMismatch):
        check_answer(log, answer(digest="wrong"), now=1_002)


def test_the_first_answer_stands() -> None:
    """An opposite answer after it is refused and told what was recorded."""
    log = log_of(said("pay"), called("pay", gated=True), answered("fc-1", by="dana"))
    with pytest.raises(AlreadyAnswered, match="already answered by 'dana': approve"):
        check_answer(log, answer(action="reject"), now=1_002)


def test_an_answer_at_the_deadline_is_too_late_and_one_before_it_counts() -> None:
    """The clock decides, not which of timer and answer was delivered first."""
    log = waiting(deadline_s=100)
    assert check_answer(log, answer(), now=1_100.9).id == "fc-1"
    with pytest.raises(Expired):
        check_answer(log, answer(), now=1_101)


def test_an_answer_after_expiry_is_told_so() -> None:
    """Expired, not already answered."""
    with pytest.raises(Expired):
        check_answer(log_of(said("pay"), called("pay", gated=True), expired("fc-1")), answer(), now=2_000)


def test_the_digest_of_what_was_shown_is_accepted() -> None:
    """It covers agent, tool and arguments."""
    log = waiting(args={"amount": 5})
    assert check_answer(log, answer(digest=log.state.pending()[0].digest), now=1_002).id == "fc-1"


def test_a_digest_of_other_arguments_is_refused() -> None:
    """What was shown is what runs."""
    shown = waiting(args={"amount": 5}).state.pending()[0].digest
    with pytest.raises(DigestMismatch):
        check_answer(waiting(args={"amount": 500}), answer(digest=shown), now=1_002)


def test_a_confirmation_is_not_answered_with_a_response() -> None:
    """`respond` is for long-running calls."""
    with pytest.raises(InvalidAnswer, match="accepts approve, edit, reject, but not 'respond'"):
        check_answer(waiting(), answer(action="respond", response={}), now=1_002)


def test_one_person_does_not_answer_a_long_running_call_that_several_have_to_approve() -> None:
    """`respond` would settle the call alone, without the other approvals that its quorum asks for."""
    policy = ApprovalPolicy(quorum=2)
    asked = called("ask", kind="long_running", approval=policy, declared="schema")
    log = log_of(said("ask"), asked, returned("fc-1", final=False))
    with pytest.raises(InvalidAnswer, match="not 'respond'"):
        check_answer(log, answer(action="respond", response={}), now=1_003, who=Verified(subject="ann"))


def test_a_repeated_progress_of_the_same_answer_id_is_not_applied_twice() -> None:
    """Clients may retry."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"s": 1}, final=False),
        answered("fc-1", "progress", response={"p": 1}, answer_id="a1"),
    )
    with pytest.raises(AlreadyAnswered):
        check_answer(log, answer(action="progress", response={"p": 1}, answer_id="a1"), now=1_005)


def test_a_call_that_never_waits_is_unknown_to_approvers() -> None:
    """An ordinary call cannot be answered from outside."""
    with pytest.raises(UnknownCall):
        check_answer(log_of(said("go"), called("read")), answer(), now=1_002)


@pytest.mark.parametrize(
    "payloads",
    [
        [],
        [b"{", b"}"],
        [b""],
        [b"{broken"],
        [b"[]"],
        [b"null"],
        [b'"text"'],
        [b"{}"],
        [b'{"function_call_id":"fc-1"}'],
        [b'{"function_call_id":"fc-1","action":"destroy"}'],
        [b'{"function_call_id":1,"action":"approve"}'],
        [b'{"function_call_id":"","action":"approve"}'],
        [b'{"function_call_id":"fc-1","action":"reject","action":"approve"}'],
        [b'{"function_call_id":"fc-1","action":"approve","response":{"a":1,"a":2}}'],
        [b'{"function_call_id":"fc-1","action":"respond"}'],
        [b'{"function_call_id":"fc-1","action":"edit"}'],
        [b'{"function_call_id":"fc-1","action":"approve","response":[]}'],
        [b'{"function_call_id":"fc-1","action":"approve","response":{"x":NaN}}'],
        [b'{"function_call_id":"\\ud800","action":"approve"}'],
        [b"[" * 100_000],
        [b"\xff\xfe\x00"],
    ],
)
def test_a_malformed_signal_is_ignored_and_the_call_still_waits(payloads: list[bytes]) -> None:
    """It becomes an entry that says why, and nothing else."""
    log = waiting()
    body = decide_answer(log, "answer", payloads, 1_002)
    assert isinstance(body, AnswerIgnored)
    assert body.reason == "InvalidAnswer"
    log.record(parse_ref("s1!"), 1_002, body)
    assert [call.function_call_id for call in log.state.pending()] == ["fc-1"]


def test_a_signal_of_another_name_is_ignored_by_name() -> None:
    """It is recorded; nothing is buffered without end."""
    body = decide_answer(waiting(), "aprove", [b"{}"], 1_002)
    assert body == AnswerIgnored("InvalidAnswer", "No signal is named 'aprove'; answers go to 'answer'.")


def test_the_id_of_the_confirmation_request_names_the_call_too() -> None:
    """Clients that read ADK's events answer the request they saw."""
    data = json.dumps({"function_call_id": "fc-1-confirmation", "action": "approve"}).encode()
    body = decide_answer(waiting(), "answer", [data], 1_002)
    assert isinstance(body, AnswerCounted)
    assert body.function_call_id == "fc-1"


def test_every_refusal_has_a_class_of_its_own() -> None:
    """The class's name is the update failure's type in the wire contract."""
    names = {refusal.__name__ for refusal in AnswerRefused.__subclasses__()}
    assert names == {"UnknownCall", "AlreadyAnswered", "Expired", "NotAllowed", "DigestMismatch", "InvalidAnswer"}


FIRST = answer(by="ann", answer_id="a-1", comment="fine")


def counted() -> Log:
    """Return the log of a call with one of two approvals."""
    log = waiting(approval=ApprovalPolicy(quorum=2, verified=False), declared="schema")
    log.append(parse_ref("u1"), 1_002, decision.accept(log, FIRST, 1_002))
    return log


def test_repeated_answer_has_the_first_receipt_and_no_effect() -> None:
    """Also after the call was decided, and after the invocation has continued in another run."""
    log = counted()
    first = receipt(log.state.calls["fc-1"], FIRST)
    log.append(parse_ref("u2"), 1_003, answered("fc-1", by="bob"))
    for later in (log, restored(log)):
        call = later.state.calls["fc-1"]
        decision.accept_update(later, FIRST, 1_004)
        assert receipt(call, FIRST) == first
        assert (first["approved_by"], first["lacking"]) == (["ann"], 1)
        assert isinstance(decision.decide_update(call, FIRST), AnswerIgnored)


def test_only_the_latest_receipts_of_a_call_are_kept() -> None:
    """A long-running call may report any number of steps. An older answer still does not count twice."""
    log = log_of(said("ask"), called("ask", kind="long_running"))
    for number in range(MAX_RECEIPTS + 1):
        log.append(
            parse_ref(f"u{number + 1}"), 1_002, answered("fc-1", "progress", response={}, answer_id=f"a-{number}")
        )
    first = Answer(function_call_id="fc-1", action="progress", response={}, answer_id="a-0")
    assert list(log.state.calls["fc-1"].receipts) == [f"a-{number + 1}" for number in range(MAX_RECEIPTS)]
    with pytest.raises(AlreadyAnswered, match="'a-0' was already recorded"):
        decision.accept_update(log, first, 1_003)


@pytest.mark.parametrize("change", [{"comment": "other"}, {"by": "bob"}, {"action": "reject"}])
def test_same_id_with_other_content_is_a_conflict(change: JsonObject) -> None:
    """The first answer counts."""
    log = counted()
    with pytest.raises(AlreadyAnswered, match="'a-1' was already recorded"):
        decision.accept_update(log, FIRST.model_copy(update=change), 1_003)


def test_answer_with_a_token_is_not_known_before_its_verification() -> None:
    """A forged repetition must not learn that the answer exists, and another person's answer is not a repetition."""
    call, forged = counted().state.calls["fc-1"], FIRST.model_copy(update={"token": "x"})
    assert not any(is_repeated(call, forged, who) for who in (None, Verified(subject="eve")))
