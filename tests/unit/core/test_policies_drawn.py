"""With any answers in any order, no call runs or counts as approved against its policy."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import drawn_examples
from tests.unit.core.drawn import POLICIES, Story
from tests.unit.core.simulation import Simulation
from tests.unit.core.test_interleavings import observable
from waystation.core import ids
from waystation.core.approval import Answer, ApprovalPolicy, Verified
from waystation.core.contract import AgentSpec, Call, Confirmation, InvocationInput, ModelReply
from waystation.core.log import (
    AgentRun,
    AnswerCounted,
    AnswerVerified,
    CallState,
    Log,
    VerificationRequested,
    question_of,
    without_verdict,
)
from waystation.core.payload import JsonObject
from waystation.core.projection import Projection


class Asking(Story):
    """A random invocation that often asks people, who mostly answer."""

    MOVES = ("task", "task", "answer", "answer", "update", "update", "update", "result", "result", "result")

    def __init__(self, data: st.DataObject) -> None:
        super().__init__(data)
        self.simulation = Simulation(InvocationInput(agent="ag", message="go"))
        self.shape = AgentSpec(name="ag")

    def play(self) -> Simulation:
        """Play about sixty moves."""
        simulation = self.simulation
        simulation.task()
        simulation.reply("m1", self._said(simulation.log.state.runs[0]))
        for _ in range(self.draw(st.integers(10, 60))):
            if not simulation.finished:
                self._move()
        if not simulation.finished:
            simulation.task()
        return simulation

    def _move(self) -> None:
        simulation = self.simulation
        simulation.now += self.draw(st.sampled_from([0.0, 0.0, 0.1, 20.0]))
        if self.draw(st.integers(0, 9)) == 0:
            simulation.cut(inline=self.draw(st.booleans()))
        match self.draw(st.sampled_from(self.MOVES)):
            case "answer":
                simulation.answer(**self._answer())
            case "update":
                simulation.update(**self._answer())
            case "result" if simulation.in_flight:
                self._result(self.draw(st.sampled_from(sorted(simulation.in_flight))))
            case _:
                simulation.task()

    def _answer(self) -> JsonObject:
        log = self.simulation.log
        # Includes calls that have an answer.
        known = [call.id for call in log.state.calls.values() if call.ever_waits] or ["fc-1"]
        answer: JsonObject = {"function_call_id": self.draw(st.sampled_from(known)), "args": {"edited": True}}
        self._by_somebody(answer)
        return answer

    def _said(self, work: AgentRun) -> ModelReply:
        asks = self.draw(st.lists(st.booleans(), min_size=1, max_size=3))
        calls, parts = [], []
        for number, gated in enumerate(asks, work.calls_made + 1):
            call_id = ids.function_call(number, work.index)
            parts.append({"functionCall": {"id": call_id, "name": "tool", "args": {"n": number}}})
            kind: dict[str, Any] = {"confirmation": Confirmation(hint="ok?")} if gated else {"kind": "long_running"}
            calls.append(Call(id=call_id, deadline_s=100, approval=self.draw(POLICIES), declared="schema", **kind))
        return ModelReply(content={"role": "model", "parts": parts}, calls=tuple(calls))


class Counted(NamedTuple):
    """An answer that counted."""

    answer: Answer
    who: Verified | None
    submitted_to: int
    """Number of the question that was open when the answer was submitted."""
    question: int
    """Number of the question for which the answer counted."""


def counted_answers(log: Log, call: CallState) -> Iterator[Counted]:
    """Yield the answers that counted for a call."""
    submitted: dict[str, tuple[Answer, int]] = {}
    replayed = Log("inv")
    for entry in log.entries:
        question = question_of(replayed.state.calls[call.id]) if call.id in replayed.state.calls else 0
        match entry.body:
            case VerificationRequested(_, answer):
                submitted[str(without_verdict(entry.ref))] = answer, question
            case AnswerCounted(_, answer) if ids.requesting_call(answer.function_call_id) == call.id:
                yield Counted(answer, None, question, question)
            case AnswerVerified(ref, verification, None):
                answer, submitted_to = submitted[ref]
                if ids.requesting_call(answer.function_call_id) == call.id:
                    yield Counted(answer, verification.who, submitted_to, question)
        replayed.extend([entry])


def approvers(log: Log, call: CallState) -> list[tuple[str | None, Verified | None]] | None:
    """Return everyone whose approval counted for the confirmation of a call, or None if an operator waived it."""
    votes: list[tuple[str | None, Verified | None]] = []
    for answer, who, _, question in counted_answers(log, call):
        if question != question_of(call) - 1:
            continue
        by = who.subject if who else answer.by
        if answer.action == "waive":
            return None
        if answer.action == "edit":
            votes = [(by, who)]
        if answer.action == "approve":
            votes.append((by, who))
    return votes


def may_approve(policy: ApprovalPolicy, by: str | None, who: Verified | None) -> bool:
    """Return whether a person may approve after all escalations."""
    if policy.must_verify and who is None:
        return False
    if policy.not_requester and by == "user":
        return False
    approvers_asked = policy.asked(len(policy.escalation))
    return (
        not approvers_asked
        or by in approvers_asked
        or bool(who and "role:boss" in approvers_asked and "boss" in who.roles)
    )


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_a_call_runs_only_with_enough_authorized_approvals(data: st.DataObject) -> None:
    """Each approver counts once, is authorized, and approved the arguments with which the call runs."""
    log = Asking(data).play().whole
    for call in log.state.calls.values():
        policy = call.policy
        if policy is None or call.asked != "confirmation" or call.gate != "passed":
            continue
        # A tool with its own confirmation runs again after a rejection.
        if call.answer and call.answer.action == "reject":
            continue
        approved = approvers(log, call)
        if approved is None:
            continue
        assert len({by for by, _ in approved}) == len(approved) >= policy.quorum
        assert all(may_approve(policy, by, who) for by, who in approved)


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_an_answer_counts_only_for_the_question_to_which_it_was_submitted(data: st.DataObject) -> None:
    """No answer counts for a later question, whether or not it names its own."""
    log = Asking(data).play().whole
    for call in log.state.calls.values():
        for answer, _, submitted_to, question in counted_answers(log, call):
            assert submitted_to == question
            assert answer.question in (None, question)


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_only_operators_waive_or_cancel_a_call_that_requires_verification(data: st.DataObject) -> None:
    """Only operators may waive or cancel such a call; without verified identities, anyone may."""
    log = Asking(data).play().whole
    for call in log.state.calls.values():
        for answer, who, *_ in counted_answers(log, call):
            if answer.action in ("waive", "cancel") and call.policy and call.policy.must_verify:
                assert who is not None
                assert who.subject in call.policy.operators


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_nothing_counts_without_the_comment_or_digest_that_a_policy_requires(data: st.DataObject) -> None:
    """Every action that closes a call needs the comment or digest."""
    log = Asking(data).play().whole
    for call in log.state.calls.values():
        if not call.policy:
            continue
        for answer, *_ in counted_answers(log, call):
            if answer.action in ("approve", "reject", "edit", "respond", "waive", "cancel"):
                assert answer.comment or not call.policy.comment
                assert answer.digest or not call.policy.digest


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_a_token_counts_once_per_call(data: st.DataObject) -> None:
    """A token names its call, so the log does not compare tokens of different calls."""
    log = Asking(data).play().whole
    of_call: dict[str, str] = {}
    used: list[tuple[str, str]] = []
    for entry in log.entries:
        match entry.body:
            case VerificationRequested(call_id, _):
                of_call[str(without_verdict(entry.ref))] = call_id
            case AnswerVerified(ref, verification, None) if verification.nonce:
                used.append((of_call[ref], verification.nonce))
    assert len(used) == len(set(used))


@given(st.data())
@settings(max_examples=drawn_examples(150), deadline=None)
def test_every_reader_sees_the_same_approvers_and_votes(data: st.DataObject) -> None:
    """The projection of the history equals the workflow's log across runs, verifications, notifications and votes."""
    simulation = Asking(data).play()
    reader = Projection("inv")
    reader.feed(simulation.facts)
    reader.flush()
    assert observable(reader.log) == observable(simulation.whole)
    assert reader.log.state.approvals.standing == simulation.log.state.approvals.standing
