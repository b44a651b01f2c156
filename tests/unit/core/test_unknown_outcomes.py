"""It is unknown whether a call took effect: who is asked, who may answer, and what the answer changes."""

from typing import Any

import pytest

from tests.unit.core.stage import Stage, call, llm
from waystation.core.approval import ApprovalPolicy, Verified, parse_answer
from waystation.core.contract import Fork, InvocationInput, Target
from waystation.core.errors import AnswerRefused, InvalidAnswer, NotAllowed
from waystation.core.log import (
    AnswerCounted,
    Began,
    CallLost,
    CallModel,
    Failure,
    Finish,
    Log,
    OutcomeFound,
    Perform,
    Refused,
    Wait,
    begin_entry,
    create_question,
    decision,
    next_step,
    parse_ref,
)
from waystation.core.payload import encode
from waystation.core.projection import Snapshot
from waystation.core.projection.fork import make_fork_log

LOST = Failure(kind="heartbeat")
OPERATORS = ApprovalPolicy(approvers=("ann",), operators=("olga",))


def lost(**fields: Any) -> Log:
    """Return the log of an invocation that lost the worker of its only call."""
    stage = Stage(llm("agent"), agent=[call("fc-1", "pay", **{"kind": "function", **fields})])
    stage.play()
    stage.log.append(parse_ref("fc-1"), 1.0, CallLost("fc-1", LOST))
    return stage.log


def question(log: Log) -> Log:
    """Return the log of the invocation that asks about the call."""
    asking = Log("inv/fc-1-outcome")
    asking.append(parse_ref("start"), 2.0, Began(create_question(log.state, "fc-1")))
    return asking


def answer(log: Log, action: str, who: Verified | None = None, **fields: Any) -> None:
    """Send an answer to the question.

    Raises:
        AnswerRefused: It does not count.
    """
    sent = parse_answer(encode({"function_call_id": "fc-1", "action": action, **fields}))
    call = decision.check_answer(log, sent, 3.0, who)
    log.append(parse_ref("s1"), 3.0, AnswerCounted(call.id, sent))


def found(log: Log, action: str, run: int = 0) -> None:
    """Deliver an answer to the invocation that made the call."""
    log.append(parse_ref("fc-1-outcome"), 4.0, OutcomeFound("fc-1", run, {"action": action, "by": "olga"}))


@pytest.mark.parametrize(
    ("fields", "is_asked"),
    [
        ({"effect": "once"}, True),
        ({"standing": "inv/fc-0"}, True),
        ({"effect": "repeatable"}, False),
        ({"effect": "read"}, False),
        ({"effect": "once", "kind": "agent"}, False),
        ({"effect": "once", "kind": "long_running"}, False),
    ],
)
def test_operators_are_asked_about_calls_that_must_not_be_repeated(fields: dict[str, Any], is_asked: bool) -> None:
    """Called agents ask about their own calls, and a long-running call still waits for an answer."""
    assert lost(**fields).state.unknown == ({"fc-1": 0} if is_asked else {})


@pytest.mark.parametrize("failure", [Failure(kind="schedule_to_start"), Failure(kind="error", error_type="NoMoney")])
def test_operators_are_not_asked_about_known_outcomes(failure: Failure) -> None:
    """A tool that did not start or that raised has a known outcome."""
    stage = Stage(llm("agent"), agent=[call("fc-1", "pay", kind="function", effect="once")])
    stage.play()
    stage.log.append(parse_ref("fc-1"), 1.0, CallLost("fc-1", failure))
    assert stage.log.state.unknown == {}


def test_the_question_calls_no_model_and_ends_with_its_answer() -> None:
    """The answer is the output of the invocation that asks."""
    asking = question(lost(effect="once"))
    [pending] = asking.state.pending()
    assert (pending.kind, pending.tool, next_step(asking)) == ("unknown", "pay", Wait())
    assert "inv/fc-1" in pending.hint
    answer(asking, "ran", by="olga", response={"paid": 5})
    assert next_step(asking) == Finish()
    assert asking.state.result().output == {"action": "ran", "by": "olga", "response": {"paid": 5}}


@pytest.mark.parametrize("action", ["approve", "reject", "edit", "respond", "progress", "waive", "cancel"])
def test_only_statements_about_the_outcome_close_the_question(action: str) -> None:
    """An operator cannot close it without saying what happened."""
    with pytest.raises(InvalidAnswer, match="accepts claim, not_run, ran, release, start_again, view"):
        answer(question(lost(effect="once")), action, args={}, response={})


@pytest.mark.parametrize("action", ["ran", "not_run", "start_again"])
def test_no_other_call_accepts_a_statement_about_its_outcome(action: str) -> None:
    """A call that waits for an approval has not run."""
    stage = Stage(llm("agent"), agent=[call("fc-1", "pay", kind="long_running", declared="d")])
    stage.play()
    with pytest.raises(InvalidAnswer):
        answer(stage.log, action)


@pytest.mark.parametrize("who", [None, Verified(subject="ann"), Verified(subject="mallory")])
def test_only_verified_operators_answer_if_the_policy_verifies_approvers(who: Verified | None) -> None:
    """A raw signal that claims that the call ran changes nothing, and neither does an approver of the call."""
    asking = question(lost(approval=OPERATORS, effect="once", declared="d"))
    with pytest.raises(NotAllowed):
        answer(asking, "ran", who, by="olga")
    answer(asking, "ran", Verified(subject="olga"))
    assert next_step(asking) == Finish()


def test_no_one_answers_if_the_policy_has_no_operators() -> None:
    """An empty list of operators does not mean that everyone is one."""
    asking = question(lost(approval=ApprovalPolicy(approvers=("ann",), operators=()), effect="once", declared="d"))
    for who in (None, Verified(subject="ann")):
        with pytest.raises(NotAllowed):
            answer(asking, "ran", who)


def test_the_users_code_cannot_be_started_again() -> None:
    """The ID of the activity or workflow was used."""
    asking = question(lost(effect="once", target=Target(kind="activity", name="pay")))
    with pytest.raises(AnswerRefused):
        answer(asking, "start_again")
    answer(asking, "not_run")


@pytest.mark.parametrize(("action", "field"), [("ran", "status"), ("not_run", "error")])
def test_the_model_receives_the_answer(action: str, field: str) -> None:
    """The response replaces the one that said that the outcome is unknown."""
    log = lost(effect="once")
    found(log, action)
    assert field in (log.state.calls["fc-1"].response or {})
    assert isinstance(next_step(log), CallModel)


def test_a_call_starts_again_exactly_once() -> None:
    """A repeated or outdated answer starts nothing."""
    log = lost(effect="once")
    found(log, "start_again", run=7)
    assert log.state.calls["fc-1"].run == 0
    found(log, "start_again")
    found(log, "start_again")
    assert (next_step(log), log.state.calls["fc-1"].run) == (Perform(("fc-1",)), 1)
    log.append(parse_ref("fc-1~1"), 5.0, CallLost("fc-1", LOST, 1))
    assert log.state.unknown == {"fc-1": 1}


def test_an_answer_after_the_agent_has_finished_is_only_recorded() -> None:
    """Its event is the record."""
    log = lost(effect="once")
    run = log.state.runs[0]
    run.over = True
    found(log, "start_again")
    assert log.state.calls["fc-1"].run == 0
    assert log.state.events[-1].custom_metadata == {
        "unknown_outcome": {"function_call_id": "fc-1", "action": "start_again", "by": "olga"}
    }


def test_a_call_keeps_its_arguments_in_later_runs_of_the_workflow() -> None:
    """An operator may start it again after the invocation has continued as new."""
    log = lost(effect="once", args={"amount": 5})
    assert log.state.input is not None
    later = Snapshot.of(log).restored("inv", log.state.input)
    found(later, "start_again")
    assert (later.state.calls["fc-1"].args, next_step(later)) == ({"amount": 5}, Perform(("fc-1",)))


@pytest.mark.parametrize("action", [None, "start_again"])
def test_a_fork_does_not_start_the_call_again(action: str | None) -> None:
    """Its idempotency key is another one, so the effect could happen twice."""
    log = lost(effect="once")
    if action:
        found(log, action)
    given = InvocationInput(agent="agent", message="go", fork=Fork(invocation_id="inv", event=log.state.event_count))
    fork = make_fork_log(log, given, 9.0)
    assert (fork.state.unknown, fork.state.calls["fc-1"].run) == ({}, 0)


def test_an_outsider_cannot_start_a_question() -> None:
    """Without a parent workflow, the call in the input is dropped."""
    asked = create_question(lost(effect="once").state, "fc-1")
    began = begin_entry([asked.encode()])
    assert not isinstance(began, Refused)
    assert began.input.unknown is None
