"""Counting approvers of a call with a quorum."""

import pytest

from tests.unit.core.story import answered, log_of, model_calls, tool_returned, user_message
from tests.unit.core.test_asking import request_confirmation
from waystation.core.approval import Answer, ApprovalPolicy, Verification, Verified
from waystation.core.errors import AlreadyAnswered
from waystation.core.log import MessageRef, VerificationRef, VerificationRequested, parse_ref
from waystation.core.log.decision import check_answer, decide_verified

OF_TWO = ApprovalPolicy(quorum=2, verified=False)


def test_a_vote_counts_for_the_verified_person_and_not_for_the_claimed_name() -> None:
    """One person under two names is one approver, so the call still waits for another."""
    log = log_of(
        user_message("pay"), model_calls("pay", gated=True, approval=ApprovalPolicy(quorum=2), declared="schema")
    )
    for number, claimed in ((1, "ben"), (2, "cleo")):
        message = MessageRef("s", number)
        vote = Answer(function_call_id="fc-1", action="approve", by=claimed)
        log.append(MessageRef("s", number, "?"), 1_002, VerificationRequested("fc-1", vote))
        log.append(
            VerificationRef(message),
            1_003,
            decide_verified(log, str(message), Verification(who=Verified(subject="ann")), 1_003),
        )
    assert [call.approved_by for call in log.state.pending()] == [("ann",)]


def test_another_spelling_of_a_name_is_not_another_approver() -> None:
    """Names that differ only in case, accents or prefix belong to one approver, who has one vote."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True, approval=OF_TWO, declared="schema"))
    log.append(parse_ref("s1"), 1_002, answered("fc-1", by="Jos\u00e9@example.com"))
    for alias in ("jose\u0301@example.com", " JOS\u00c9@EXAMPLE.COM", "mailto:jos\u00e9@example.com"):
        with pytest.raises(AlreadyAnswered, match="has already approved call 'fc-1'"):
            check_answer(log, Answer(function_call_id="fc-1", action="approve", by=alias), 1_003)


def test_a_vote_before_the_function_returned_counts() -> None:
    """The receipt counts the early vote, and afterward the call needs only the other approvals."""
    votes = [answered("fc-1", by="ann"), answered("fc-1", "claim", by="ben")]
    asking_call = model_calls("ask", kind="long_running", approval=OF_TWO, declared="schema")
    log = log_of(user_message("ask"), asking_call, votes, tool_returned("fc-1", {"status": "pending"}, final=False))
    assert [(call.approved_by, call.claimed_by) for call in log.state.pending()] == [(("ann",), "ben")]
    log.append(parse_ref("s3"), 1_005, answered("fc-1", by="ben"))
    assert log.state.pending() == []


def test_votes_to_run_a_long_running_function_do_not_count_as_its_answer() -> None:
    """The question of a function needs two approvals of its own, after two people approved its run."""
    asking_call = model_calls("ask", kind="long_running", gated=True, approval=OF_TWO, declared="schema")
    votes = [answered("fc-1", by="ann"), answered("fc-1", by="ben")]
    log = log_of(user_message("ask"), asking_call, votes, tool_returned("fc-1", {"status": "pending"}, final=False))
    assert [call.approved_by for call in log.state.pending()] == [()]


def test_votes_for_one_question_do_not_count_for_the_next() -> None:
    """A confirmed tool that asks again needs all approvals anew."""
    confirmed = [answered("fc-1", by="ann"), answered("fc-1", by="ben")]
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True, approval=OF_TWO, declared="schema"),
        confirmed,
        request_confirmation("fc-1"),
    )
    assert [call.approved_by for call in log.state.pending()] == [()]
    log.append(parse_ref("s3"), 1_005, answered("fc-1", by="cleo"))
    assert [call.approved_by for call in log.state.pending()] == [("cleo",)]
