"""Who counts as an approver of a call that several people have to approve."""

from tests.unit.core.story import answered, called, log_of, said
from tests.unit.core.test_asking import asks
from waystation.core import ids
from waystation.core.answer import Answer
from waystation.core.approval import judge
from waystation.core.entry import AnswerSubmitted
from waystation.core.policy import ApprovalPolicy, Verified
from waystation.core.review import Review

OF_TWO = ApprovalPolicy(quorum=2, verified=False)


def test_a_vote_counts_for_the_verified_person_and_not_for_the_name_that_the_answer_claims() -> None:
    """One person under two names is one approver, so the call still waits for somebody else."""
    log = log_of(said("pay"), called("pay", gated=True, approval=ApprovalPolicy(quorum=2), declared="schema"))
    for ref, claimed in (("s1", "ben"), ("s2", "cleo")):
        vote = Answer(function_call_id="fc-1", action="approve", by=claimed)
        log.append(ids.submitted(ref), 1_002, AnswerSubmitted("fc-1", vote))
        log.append(ids.review(ref), 1_003, judge(log, ref, Review(who=Verified(subject="ann")), 1_003))
    assert [call.approved_by for call in log.pending()] == [("ann",)]


def test_votes_for_one_question_do_not_count_for_the_next() -> None:
    """A tool that was confirmed, and then asks from inside, waits for all approvals anew."""
    confirmed = [answered("fc-1", by="ann"), answered("fc-1", by="ben")]
    log = log_of(said("pay"), called("pay", gated=True, approval=OF_TWO, declared="schema"), confirmed, asks("fc-1"))
    assert [call.approved_by for call in log.pending()] == [()]
    log.append("s3", 1_005, answered("fc-1", by="cleo"))
    assert [call.approved_by for call in log.pending()] == [("cleo",)]
