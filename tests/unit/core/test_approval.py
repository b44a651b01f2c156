"""Answers to pending calls are checked in a fixed order before they count."""

import json
from typing import Any

import pytest

from tests.unit.core.story import answered, expired, log_of, model_calls, tool_returned, user_message
from tests.unit.core.test_snapshot import restored
from waystation.core.approval import Answer, ApprovalPolicy, Verified
from waystation.core.errors import AlreadyAnswered, AnswerRefused, DigestMismatch, Expired, InvalidAnswer, UnknownCall
from waystation.core.log import AnswerCounted, AnswerIgnored, Log, decision, is_repeated, parse_ref
from waystation.core.log.answers import MAX_RECEIPTS, receipt
from waystation.core.log.call import DEFAULT_DEADLINE_S
from waystation.core.log.decision import check_answer, decide_answer
from waystation.core.payload import JsonObject


def pending_log(**fields: Any) -> Log:
    """Return a log with a confirmation pending since 1,001 s."""
    return log_of(user_message("pay"), model_calls("pay", gated=True, **fields))


def answer(**fields: Any) -> Answer:
    """Return an answer to fc-1; its default action is `approve`."""
    return Answer(**{"function_call_id": "fc-1", "action": "approve", **fields})


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"function_call_id": "fc-9", "digest": "wrong", "action": "respond"}, UnknownCall),
        ({"digest": "wrong", "action": "respond"}, DigestMismatch),
        ({"action": "respond"}, Expired),
    ],
)
def test_the_first_failed_check_is_reported(fields: dict[str, Any], refusal: type) -> None:
    """The checks run in one order: known call, digest, deadline, then all others."""
    with pytest.raises(refusal):
        check_answer(pending_log(), answer(**fields), now=1_001 + DEFAULT_DEADLINE_S)


def test_a_duplicate_with_a_wrong_digest_is_refused_for_its_digest() -> None:
    """The digest is checked before duplicates, so a wrong one does not reveal that an answer exists."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), answered("fc-1"))
    with pytest.raises(DigestMismatch):
        check_answer(log, answer(digest="wrong"), now=1_002)


def test_the_first_answer_wins() -> None:
    """A later opposite answer is refused, and the error names the recorded answer."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), answered("fc-1", by="dana"))
    with pytest.raises(AlreadyAnswered, match="already answered by 'dana': approve"):
        check_answer(log, answer(action="reject"), now=1_002)


def test_an_answer_counts_only_before_the_deadline() -> None:
    """An answer at the deadline is too late, whether or not the timer was delivered first."""
    log = pending_log(deadline_s=100)
    assert check_answer(log, answer(), now=1_100.9).id == "fc-1"
    with pytest.raises(Expired):
        check_answer(log, answer(), now=1_101)


def test_an_answer_after_expiry_is_refused_as_expired() -> None:
    """An answer to an expired call is refused as expired, not as a duplicate."""
    with pytest.raises(Expired):
        check_answer(log_of(user_message("pay"), model_calls("pay", gated=True), expired("fc-1")), answer(), now=2_000)


def test_the_digest_of_the_displayed_call_is_accepted() -> None:
    """The digest covers agent, tool and arguments."""
    log = pending_log(args={"amount": 5})
    assert check_answer(log, answer(digest=log.state.pending()[0].digest), now=1_002).id == "fc-1"


def test_a_digest_of_other_arguments_is_refused() -> None:
    """An approval whose digest was made from other arguments is refused."""
    displayed = pending_log(args={"amount": 5}).state.pending()[0].digest
    with pytest.raises(DigestMismatch):
        check_answer(pending_log(args={"amount": 500}), answer(digest=displayed), now=1_002)


def test_a_confirmation_is_not_answered_with_a_response() -> None:
    """A response is refused for a confirmation, because only long-running calls accept it."""
    with pytest.raises(InvalidAnswer, match="accepts approve, edit, reject, but not 'respond'"):
        check_answer(pending_log(), answer(action="respond", response={}), now=1_002)


def test_a_response_of_one_person_does_not_replace_a_quorum() -> None:
    """A response to a call with a quorum is refused, because it would skip the other approvers."""
    policy = ApprovalPolicy(quorum=2)
    asking_call = model_calls("ask", kind="long_running", approval=policy, declared="schema")
    log = log_of(user_message("ask"), asking_call, tool_returned("fc-1", final=False))
    with pytest.raises(InvalidAnswer, match="not 'respond'"):
        check_answer(log, answer(action="respond", response={}), now=1_003, who=Verified(subject="ann"))


def test_progress_with_the_same_answer_id_is_applied_once() -> None:
    """A client that retries a progress report is refused, and the report counts once."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"s": 1}, final=False),
        answered("fc-1", "progress", response={"p": 1}, answer_id="a1"),
    )
    with pytest.raises(AlreadyAnswered):
        check_answer(log, answer(action="progress", response={"p": 1}, answer_id="a1"), now=1_005)


def test_an_ordinary_call_cannot_be_answered() -> None:
    """An answer to a call that never waits is refused as unknown."""
    with pytest.raises(UnknownCall):
        check_answer(log_of(user_message("go"), model_calls("read")), answer(), now=1_002)


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
def test_a_malformed_signal_leaves_the_call_pending(payloads: list[bytes]) -> None:
    """A malformed signal becomes an ignored entry with its reason and changes nothing else."""
    log = pending_log()
    body = decide_answer(log, "answer", payloads, 1_002)
    assert isinstance(body, AnswerIgnored)
    assert body.reason == "InvalidAnswer"
    log.record(parse_ref("s1!"), 1_002, body)
    assert [call.function_call_id for call in log.state.pending()] == ["fc-1"]


def test_a_signal_with_an_unknown_name_is_ignored() -> None:
    """A signal with an unknown name is recorded as ignored, and not buffered."""
    body = decide_answer(pending_log(), "aprove", [b"{}"], 1_002)
    assert body == AnswerIgnored("InvalidAnswer", "No signal is named 'aprove'; answers go to 'answer'.")


def test_an_answer_may_name_the_confirmation_request() -> None:
    """Clients that read ADK events may answer with the ID of the confirmation request."""
    data = json.dumps({"function_call_id": "fc-1-confirmation", "action": "approve"}).encode()
    body = decide_answer(pending_log(), "answer", [data], 1_002)
    assert isinstance(body, AnswerCounted)
    assert body.function_call_id == "fc-1"


def test_each_refusal_has_its_own_class() -> None:
    """The class name is the failure type of the update in the wire contract."""
    names = {refusal.__name__ for refusal in AnswerRefused.__subclasses__()}
    assert names == {"UnknownCall", "AlreadyAnswered", "Expired", "NotAllowed", "DigestMismatch", "InvalidAnswer"}


FIRST = answer(by="ann", answer_id="a-1", comment="fine")


def log_with_one_vote() -> Log:
    """Return the log of a call with one of two approvals."""
    log = pending_log(approval=ApprovalPolicy(quorum=2, verified=False), declared="schema")
    log.append(parse_ref("u1"), 1_002, decision.accept(log, FIRST, 1_002))
    return log


def test_a_repeated_answer_gets_the_first_receipt_and_has_no_effect() -> None:
    """A repeated answer gets the first receipt, even after the call was decided or the invocation continued as new."""
    log = log_with_one_vote()
    first = receipt(log.state.calls["fc-1"], FIRST)
    log.append(parse_ref("u2"), 1_003, answered("fc-1", by="bob"))
    for later in (log, restored(log)):
        call = later.state.calls["fc-1"]
        decision.accept_update(later, FIRST, 1_004)
        assert receipt(call, FIRST) == first
        assert (first["approved_by"], first["lacking"]) == (["ann"], 1)
        assert isinstance(decision.decide_update(call, FIRST), AnswerIgnored)


def test_only_the_latest_receipts_of_a_call_are_kept() -> None:
    """The number of kept receipts is bounded, and a repetition of an older answer still does not count."""
    log = log_of(user_message("ask"), model_calls("ask", kind="long_running"))
    for number in range(MAX_RECEIPTS + 1):
        log.append(
            parse_ref(f"u{number + 1}"), 1_002, answered("fc-1", "progress", response={}, answer_id=f"a-{number}")
        )
    first = Answer(function_call_id="fc-1", action="progress", response={}, answer_id="a-0")
    assert list(log.state.calls["fc-1"].receipts) == [f"a-{number + 1}" for number in range(MAX_RECEIPTS)]
    with pytest.raises(AlreadyAnswered, match="'a-0' was already recorded"):
        decision.accept_update(log, first, 1_003)


@pytest.mark.parametrize("change", [{"comment": "other"}, {"by": "bob"}, {"action": "reject"}])
def test_a_used_answer_id_with_other_content_is_a_conflict(change: JsonObject) -> None:
    """A different answer under a recorded answer ID is refused."""
    log = log_with_one_vote()
    with pytest.raises(AlreadyAnswered, match="'a-1' was already recorded"):
        decision.accept_update(log, FIRST.model_copy(update=change), 1_003)


def test_an_answer_with_a_token_is_recognized_only_after_verification() -> None:
    """A forged repetition does not reveal the recorded answer, and another person's answer is not a repetition."""
    call, forged = log_with_one_vote().state.calls["fc-1"], FIRST.model_copy(update={"token": "x"})
    assert not any(is_repeated(call, forged, who) for who in (None, Verified(subject="eve")))
