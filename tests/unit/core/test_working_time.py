"""Working time is the length of the union of the intervals that workers measured, independent of workflow tasks."""

from itertools import permutations

import pytest

from waystation.core.budget import Spent
from waystation.core.contract import Call, InvocationInput, InvocationResult, ModelReply, ToolOutcome
from waystation.core.log import (
    START,
    Began,
    Body,
    CallLost,
    CallRef,
    CallReturned,
    ChildReturned,
    Failure,
    Log,
    ModelCalled,
    ModelCallRef,
    ModelReplied,
    ModelReplyRef,
)
from waystation.core.projection import Snapshot

LATE = 1_000.0
"""The time of late results, in seconds after the start: no workflow task ran before."""


def log_with_calls(*kinds: str) -> Log:
    """Return the log of an invocation whose model call took 1 s and whose reply, after 5 s, calls tools or agents."""
    log = Log("invocation")
    log.record(START, 0, Began(InvocationInput(agent="boss", message="go")))
    log.record(ModelCallRef(1), 0, ModelCalled(1))
    ids = [f"fc-{number}" for number in range(1, len(kinds) + 1)]
    parts = [{"functionCall": {"id": id, "name": "work", "args": {}}} for id in ids]
    reply = ModelReply(
        content={"role": "model", "parts": parts},
        calls=tuple(Call(id=id, kind=kind) for id, kind in zip(ids, kinds, strict=True)),  # type: ignore[arg-type]
        duration_s=1,
        measured=True,
    )
    log.record(ModelReplyRef(1), 5, ModelReplied(1, reply))
    return log


def returned(id: str, duration_s: float, *, measured: bool = True) -> Body:
    """Return the result of a tool that ran for this duration."""
    return CallReturned(ToolOutcome(function_call_id=id, response={}, duration_s=duration_s, measured=measured))


def returned_agent(id: str, working_s: float) -> Body:
    """Return the result of an agent that worked for this duration."""
    result = InvocationResult(status="completed", text="", invocation_id="child", spent=Spent(working_s=working_s))
    return ChildReturned(id, result)


def working_time(log: Log, *results: tuple[str, float, Body]) -> float:
    """Apply results of calls at these times, and return the working time."""
    for id, time, body in results:
        log.record(CallRef(id), time, body)
    return log.state.used.spent.working_s


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_parallel_calls_count_once(order: tuple[int, ...]) -> None:
    """Parallel calls count once, whatever the order and time of their results; a called agent is like a tool."""
    results = [("fc-1", LATE, returned("fc-1", 2)), ("fc-2", LATE, returned_agent("fc-2", 4))]
    results.append(("fc-3", LATE, returned("fc-3", 3)))
    assert (
        working_time(log_with_calls("function", "agent", "function"), *(results[number] for number in order)) == 1 + 4
    )


@pytest.mark.parametrize(
    "body",
    [returned("fc-1", 2, measured=False), CallLost("fc-1", Failure(kind="heartbeat"))],
    ids=["of an older version", "lost"],
)
def test_a_call_without_a_measured_duration_lasts_until_its_result(body: Body) -> None:
    """A call without a duration counts from the model's reply to its result, and may overlap with other calls."""
    results = ("fc-1", 8, body), ("fc-2", LATE, returned("fc-2", 2))
    assert working_time(log_with_calls("function", "function"), *results) == 1 + 3


def test_an_agent_that_reports_no_usage_counts_no_time() -> None:
    """An agent without usage counts no time, because it may have waited for people most of the time."""
    assert working_time(log_with_calls("agent"), ("fc-1", LATE, CallLost("fc-1", Failure(kind="cancelled")))) == 1


def test_intervals_are_carried_over_to_the_next_run() -> None:
    """A call that continues in the next run still overlaps with one that returned in this run."""
    log = log_with_calls("function", "agent")
    working_time(log, ("fc-1", 9, returned("fc-1", 3)))
    assert log.state.input
    restored = Snapshot.of(log).restored(log.invocation_id, log.state.input)
    assert working_time(restored, ("fc-2", LATE, returned_agent("fc-2", 4))) == 1 + 4
