"""Who counts as an approver of a call that several people have to approve."""

import pytest

from tests.unit.core.story import answered, called, log_of, returned, said
from tests.unit.core.test_asking import asks
from waystation.core import (
    AlreadyAnswered,
    Answer,
    AnswerSubmitted,
    ApprovalPolicy,
    MessageRef,
    Verification,
    VerificationRef,
    Verified,
    check_answer,
    decide_verified,
    parse_ref,
)

OF_TWO = ApprovalPolicy(quorum=2, verified=False)


def test_a_vote_counts_for_the_verified_person_and_not_for_the_name_that_the_answer_claims() -> None:
    """One person under two names is one approver, so the call still waits for somebody else."""
    log = log_of(said("pay"), called("pay", gated=True, approval=ApprovalPolicy(quorum=2), declared="schema"))
    for number, claimed in ((1, "ben"), (2, "cleo")):
        message = MessageRef("s", number)
        vote = Answer(function_call_id="fc-1", action="approve", by=claimed)
        log.append(MessageRef("s", number, "?"), 1_002, AnswerSubmitted("fc-1", vote))
        log.append(
            VerificationRef(message),
            1_003,
            decide_verified(log, str(message), Verification(who=Verified(subject="ann")), 1_003),
        )
    assert [call.approved_by for call in log.state.pending()] == [("ann",)]


def test_another_spelling_of_a_name_is_not_another_approver() -> None:
    """Providers differ in case, in accents and in prefixes; a person has one vote all the same."""
    log = log_of(said("pay"), called("pay", gated=True, approval=OF_TWO, declared="schema"))
    log.append(parse_ref("s1"), 1_002, answered("fc-1", by="Jos\u00e9@example.com"))
    for alias in ("jose\u0301@example.com", " JOS\u00c9@EXAMPLE.COM", "mailto:jos\u00e9@example.com"):
        with pytest.raises(AlreadyAnswered, match="has already approved call 'fc-1'"):
            check_answer(log, Answer(function_call_id="fc-1", action="approve", by=alias), 1_003)


def test_a_vote_counts_that_comes_before_a_long_running_function_has_returned() -> None:
    """The approver is told that it counts, so the call lacks only the other approvals afterward."""
    votes = [answered("fc-1", by="ann"), answered("fc-1", "claim", by="ben")]
    asked = called("ask", kind="long_running", approval=OF_TWO, declared="schema")
    log = log_of(said("ask"), asked, votes, returned("fc-1", {"status": "pending"}, final=False))
    assert [(call.approved_by, call.claimed_by) for call in log.state.pending()] == [(("ann",), "ben")]
    log.append(parse_ref("s3"), 1_005, answered("fc-1", by="ben"))
    assert log.state.pending() == []


def test_votes_to_run_a_long_running_function_do_not_count_as_its_answer() -> None:
    """Two people let it run; what it then waits for needs two approvals of its own."""
    asked = called("ask", kind="long_running", gated=True, approval=OF_TWO, declared="schema")
    votes = [answered("fc-1", by="ann"), answered("fc-1", by="ben")]
    log = log_of(said("ask"), asked, votes, returned("fc-1", {"status": "pending"}, final=False))
    assert [call.approved_by for call in log.state.pending()] == [()]


def test_votes_for_one_question_do_not_count_for_the_next() -> None:
    """A tool that was confirmed, and then asks from inside, waits for all approvals anew."""
    confirmed = [answered("fc-1", by="ann"), answered("fc-1", by="ben")]
    log = log_of(said("pay"), called("pay", gated=True, approval=OF_TWO, declared="schema"), confirmed, asks("fc-1"))
    assert [call.approved_by for call in log.state.pending()] == [()]
    log.append(parse_ref("s3"), 1_005, answered("fc-1", by="cleo"))
    assert [call.approved_by for call in log.state.pending()] == [("cleo",)]
