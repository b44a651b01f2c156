"""Calls that no worker can run are held; the log records the reason and the outcome."""

import pytest

from tests.unit.core.story import model_calls, responses, user_message
from waystation.core.contract import ToolOutcome
from waystation.core.log import (
    Body,
    CallLost,
    CallModel,
    CallReturned,
    Fail,
    Failure,
    GivenUp,
    Held,
    Log,
    ModelCalled,
    ModelReplied,
    Perform,
    is_working,
    next_step,
    parse_ref,
)
from waystation.core.projection import entries_from_json, entries_to_json, with_attempt

TOOL = Failure(kind="error", error_type="UnknownTool", message="No `pay` here.", hold="tool_missing", mark="a1")
MODEL = Failure(kind="error", error_type="ModelUnavailable", message="Busy.", hold="model_unavailable", mark="b2")


def log_of(*happened: tuple[str, Body]) -> Log:
    """Return the log of an invocation whose model called `pay`, and whose later entries are given."""
    log = Log("inv")
    began, model_call = user_message("pay 5")
    reply = model_calls("pay")
    assert isinstance(reply, ModelReplied)
    bodies = [("start", began), (">1", model_call), ("m1", ModelReplied(1, reply.reply)), *happened]
    for second, (ref, body) in enumerate(bodies):
        log.append(with_attempt(parse_ref(ref), body) if isinstance(body, Held) else parse_ref(ref), second, body)
    return log


def held(failure: Failure = TOOL, activity: str = "fc-1") -> tuple[str, Body]:
    """Return an entry that holds an activity."""
    return activity, Held(activity, failure)


def reasons(log: Log) -> list[str]:
    """Return the reasons of the events that report holds."""
    return [event.custom_metadata["held"]["reason"] for event in log.state.events if event.custom_metadata]


def test_a_held_call_is_due_but_does_not_count_as_working_time() -> None:
    """A budget of working time is not used up while the invocation is held."""
    log = log_of(held())
    assert next_step(log) == Perform(("fc-1",))
    assert not is_working(log.state)
    assert reasons(log) == ["tool_missing"]


def test_a_hold_is_reported_once_for_each_reason() -> None:
    """A hold that workers report again keeps its first time."""
    store = TOOL.model_copy(update={"hold": "store_failed", "mark": "c3"})
    log = log_of(held(), held(TOOL.model_copy(update={"mark": "d4"})), held(store))
    assert reasons(log) == ["tool_missing", "store_failed"]
    assert [hold.since for hold in log.state.holds.values()] == [3]


def test_a_result_ends_the_hold() -> None:
    """The result counts as if the call had not been held."""
    log = log_of(held(), ("fc-1.x", CallReturned(ToolOutcome(function_call_id="fc-1", response={"paid": 5}))))
    assert log.state.holds == {}
    assert responses(log) == [("fc-1", {"paid": 5})]


def test_an_expired_held_tool_call_fails_with_the_reason_of_the_hold() -> None:
    """The failure has the reason of the hold, which is more useful than the failure of the last attempt."""
    late = Failure(kind="schedule_to_close", error_type="StoreFailed", message="And now this.")
    log = log_of(held(), ("fc-1", CallLost("fc-1", late)))
    assert responses(log) == [("fc-1", {"error": "No `pay` here.", "error_type": "UnknownTool"})]
    assert isinstance(next_step(log), CallModel)


def test_a_held_call_whose_worker_is_lost_has_an_unknown_outcome() -> None:
    """The tool had started, so the reason of the hold no longer applies."""
    for failure in (Failure(kind="heartbeat"), Failure(kind="schedule_to_close", started=True)):
        log = log_of(held(), ("fc-1", CallLost("fc-1", failure)))
        assert responses(log)[0][1]["error_type"] == "OutcomeUnknown"


def test_an_abandoned_held_tool_call_is_answered_with_the_reason() -> None:
    """The activity of an abandoned call is unwanted, and a late result does not count."""
    result = CallReturned(ToolOutcome(function_call_id="fc-1", response={"paid": 5}))
    log = log_of(held(), ("s1", GivenUp()), ("fc-1.x", result))
    assert log.state.runs.unwanted == {"fc-1"}
    error = (
        "No `pay` here. An operator gave up waiting. If a worker had started the tool by then, it is unknown whether "
        "it took effect."
    )
    assert responses(log) == [("fc-1", {"error": error, "error_type": "UnknownTool"})]


def test_an_abandoned_held_model_call_fails_the_invocation() -> None:
    """The failure type names the missing resource."""
    paid = CallReturned(ToolOutcome(function_call_id="fc-1", response={"paid": 5}))
    log = log_of(("fc-1.x", paid))
    log.append(parse_ref(">2"), 4, ModelCalled(2))
    log.append(parse_ref("h:m2.b2"), 5, Held("m2", MODEL))
    log.append(parse_ref("s1"), 6, GivenUp())
    step = next_step(log)
    assert isinstance(step, Fail)
    assert (step.failure.error_type, step.failure.message) == ("ModelUnavailable", "Busy. An operator gave up waiting.")


def test_holds_are_written_and_read_like_other_entries() -> None:
    """An archived log contains holds, so events keep their numbers."""
    log = log_of(held(), ("s1", GivenUp()))
    assert entries_from_json(entries_to_json(log.entries)) == log.entries


@pytest.mark.parametrize("text", ["h:m3.a1b2c3", "h:fc-1.a1b2c3", "h:fc-2-1~1.a1b2c3"])
def test_a_reference_to_a_hold_is_parsed(text: str) -> None:
    """A reference to a hold contains the activity and the attempt."""
    assert str(parse_ref(text)) == text
