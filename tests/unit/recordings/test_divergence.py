"""The first divergence of the present workflow code from a history, in agent terms."""

import dataclasses
import gc
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._workflow import _RunningWorkflow, _WorkflowWorker

from benchmarks.long_history import long_history
from tests.paths import HISTORIES
from waystation.core import (
    InvocationResult,
    InvocationState,
    JsonObject,
    Log,
    NotReplayable,
    WorkflowSettings,
    ids,
    responses,
)
from waystation.core.approval import decision
from waystation.history import SavedHistory, build_log, format_saved_history
from waystation.replay import Divergence, Recording, divergence_of, replay
from waystation.workflows import invocation, ports, scheduler, visibility
from waystation.workflows.scheduler import Scheduler


def kept(name: str) -> WorkflowHistory:
    """Return a history of the corpus."""
    id = json.loads((HISTORIES / f"{name}.held.json").read_text())["id"]
    return WorkflowHistory.from_json(id, (HISTORIES / f"{name}.json").read_text())


def kept_session(name: str) -> WorkflowHistory:
    """Return the history of a session of the corpus."""
    held = json.loads((HISTORIES / "sessions" / f"{name}.json").read_text())
    return WorkflowHistory.from_json(held["id"], held["history"])


async def parted(recorded: str | WorkflowHistory, settings: WorkflowSettings | None = None) -> Divergence:
    """Return the divergence of the present code from a history."""
    found = await divergence_of(kept(recorded) if isinstance(recorded, str) else recorded, settings=settings)
    assert found is not None
    return found


def altered(name: str, activity: str, change: Callable[[JsonObject], None]) -> WorkflowHistory:
    """Return a copy of a history in which the first activity of a name has another result."""
    history = kept(name)
    events = [type(event).FromString(event.SerializeToString()) for event in history.events]
    [scheduled, *_] = [e for e in events if e.activity_task_scheduled_event_attributes.activity_type.name == activity]
    for event in events:
        completed = event.activity_task_completed_event_attributes
        if completed.scheduled_event_id == scheduled.event_id:
            result = json.loads(completed.result.payloads[0].data)
            change(result)
            completed.result.payloads[0].data = json.dumps(result).encode()
    return WorkflowHistory(history.workflow_id, events)


def confirmed(reply: JsonObject) -> None:
    """Add a required approval to the call in a model reply."""
    reply["calls"] = [{"id": "fc-1", "confirmation": {"hint": "May it?"}}]


async def test_a_call_that_waits_for_approval_now() -> None:
    """A divergence has the recorded command, the present command, the place in the invocation and the line."""
    found = await parted(altered("one-tool", "call_model", confirmed))
    assert found.recorded == "call add(a=1, b=2)"
    assert found.now == "wait for approval of add(a=1, b=2)"
    assert (found.event, found.after, found.history_event) == (3, "model reply 1", 11)
    assert found.line is not None
    assert found.line.startswith("workflows/visibility.py:")
    told = str(found)
    assert told.startswith("recorded: call add(a=1, b=2), after model reply 1 (after event 3, history event 11); now: ")


async def test_another_argument_of_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of tools are compared, unlike in Temporal's replayer, which sees only kinds and names."""
    real = scheduler._tool_input

    def call(log: Log, call: Any, *rest: Any) -> Any:
        return real(log, dataclasses.replace(call, args={**call.args, "a": 100}), *rest)

    monkeypatch.setattr(scheduler, "_tool_input", call)
    found = await parted("one-tool")
    assert (found.recorded, found.now) == ("call add(a=1, b=2)", "call add(a=100, b=2)")
    assert [tuple(part) for part in found.parts] == [("input.args.a", 1, 100)]
    assert found.line is not None
    assert found.line.startswith("workflows/scheduler.py:")
    assert found.line.endswith(" in _call_tool")


async def test_a_quick_call_that_is_an_ordinary_one_now() -> None:
    """Calls that run in the workflow task have no input in the history, but their arguments are in the log."""

    def slow(reply: JsonObject) -> None:
        reply["calls"][0]["quick"] = False

    found = await parted(altered("quick-tools", "call_model", slow))
    assert found.recorded == 'call glance(place="door") in the workflow task'
    assert found.now == 'call glance(place="door")'


async def test_quick_calls_may_end_in_any_order() -> None:
    """A replay schedules them in the order of the calls, whichever marker was recorded first."""
    history = kept("quick-tools")
    first, _, last = (e for e in history.events[:14] if e.HasField("marker_recorded_event_attributes"))
    first.event_id, last.event_id = last.event_id, first.event_id
    events = sorted(history.events, key=lambda event: event.event_id)
    assert await divergence_of(WorkflowHistory(history.workflow_id, events)) is None


async def test_two_parallel_calls_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal commands in another order are reported as an order."""
    real = Scheduler.perform
    monkeypatch.setattr(Scheduler, "perform", lambda self, calls: real(self, list(reversed(calls))))
    found = await parted("parallel-tools")
    assert found.recorded == 'call add(a=1, b=2), before call note(text="y")'
    assert found.now == 'call note(text="y") first'


async def test_another_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers are compared by their duration."""
    monkeypatch.setattr(invocation, "now", lambda: ports.now() - 60)
    found = await parted("confirmation-approved")
    assert found.now == "wait 2.59206e+06 s at most"
    assert [(part.name, part.recorded, part.now) for part in found.parts] == [("seconds", 2592000.0, 2592060.0)]


async def test_one_activity_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An additional activity is reported as having no recorded counterpart."""
    real = Scheduler.call_model

    def audited(self: Scheduler, *args: Any) -> None:
        real(self, *args)
        workflow.start_activity("audit", start_to_close_timeout=timedelta(1))

    monkeypatch.setattr(Scheduler, "call_model", audited)
    found = await parted("no-tool")
    assert (found.recorded, found.now) == ("nothing", "run activity audit")


async def test_one_activity_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a missing command, the line is the one at which the code waits instead."""
    real = Scheduler.perform
    monkeypatch.setattr(Scheduler, "perform", lambda self, calls: real(self, calls[:2]))
    found = await parted("parallel-tools")
    assert (found.recorded, found.now) == ('call note(text="y")', "nothing")
    assert found.line is not None
    assert found.line.startswith("workflows/invocation.py:")
    assert found.line.endswith(" in _change")


async def test_another_id_of_a_called_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow id of a called agent is compared."""
    monkeypatch.setattr(ids, "child_invocation", lambda invocation_id, call_id: f"{invocation_id}:{call_id}")
    found = await parted("called-agent")
    assert found.recorded == "start agent helper as called-agent/fc-1"
    assert found.now == "start agent helper as called-agent:fc-1"


async def test_another_input_of_a_called_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a called agent is compared."""
    monkeypatch.setattr(responses, "inherited_state", lambda state: {"seed": 2})
    found = await parted("called-agent")
    assert found.recorded == "start agent helper as called-agent/fc-1, with input.state.seed 1"
    assert found.now == "the same with 2"


async def test_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a closed invocation is compared."""
    real = InvocationState.result

    def louder(self: InvocationState, reason: str | None = None) -> InvocationResult:
        return real(self, reason).model_copy(update={"text": "4"})

    monkeypatch.setattr(InvocationState, "result", louder)
    found = await parted("one-tool")
    assert (found.recorded, found.now) == ("complete with 3", "complete with 4")


async def test_a_failure_instead_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a failure, the line is the one that raises."""

    def broken(self: invocation.AgentInvocation, reason: str | None) -> None:
        raise ValueError(reason)

    monkeypatch.setattr(invocation.AgentInvocation, "_finish", broken)
    found = await parted("one-tool")
    assert found.recorded == "complete with 3"
    assert found.now == "fail with EngineFault: Internal Waystation error: ValueError."
    assert found.line is not None
    assert found.line.endswith(" in broken")


async def test_another_failure() -> None:
    """The reason of a failed invocation is compared."""
    history = kept("model-fails")
    last = history.events[-1].workflow_execution_failed_event_attributes
    last.failure.application_failure_info.type = "QuotaUsedUp"
    found = await parted(history)
    assert found.recorded == "fail with QuotaUsedUp: no such model"
    assert found.now == "fail with ModelFailed: no such model"


async def test_a_workflow_task_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing workflow task is reported with its error and the recorded command."""

    def broken(*_: Any) -> None:
        raise ports.ResultElsewhere("It is elsewhere.")

    monkeypatch.setattr(Scheduler, "perform", broken)
    found = await parted("one-tool")
    assert found.recorded == "call add(a=1, b=2)"
    assert found.now == "the workflow task fails: It is elsewhere."
    assert found.line is not None
    assert found.line.endswith(" in broken")


async def test_a_start_that_cannot_be_taken_up() -> None:
    """A start that fails is reported without an event number."""
    history = kept("one-tool")
    started = history.events[0].workflow_execution_started_event_attributes
    started.search_attributes.indexed_fields["WaystationUser"].metadata.clear()
    found = await parted(history)
    assert found.event is None
    assert found.now == "the workflow task fails: 'Unknown payload encoding <unknown>'"


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("start_to_close", timedelta(minutes=9), ("start_to_close_timeout", 600.0, 540.0)),
        ("heartbeat", timedelta(seconds=9), ("heartbeat_timeout", 30.0, 9.0)),
        (
            "retries",
            dataclasses.replace(WorkflowSettings().model.retries, maximum_attempts=2),
            ("retry.maximum_attempts", 8, 2),
        ),
    ],
)
async def test_other_options_of_an_activity(option: str, value: object, part: tuple[str, object, object]) -> None:
    """Timeouts and retries of activities are compared, and named if nothing else differs."""
    settings = WorkflowSettings()
    model: Any = dataclasses.replace(settings.model, **{option: value})  # type: ignore[arg-type]  # chosen by name
    other = dataclasses.replace(settings, model=model)
    found = await parted("no-tool", other)
    assert [tuple(each) for each in found.parts] == [part]
    assert found.recorded == f"model call 1 of clerk, with {part[0]} {part[1]}"
    assert found.now == f"the same with {part[2]}"


async def test_a_timeout_that_the_server_caps_is_no_difference() -> None:
    """The server caps a heartbeat timeout at the timeout of the activity, which is not a divergence."""
    history = kept("no-tool")
    [scheduled] = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    scheduled.activity_task_scheduled_event_attributes.heartbeat_timeout.FromSeconds(600)
    settings = WorkflowSettings()
    other = dataclasses.replace(settings, model=dataclasses.replace(settings.model, heartbeat=timedelta(hours=1)))
    assert await divergence_of(history, settings=other) is None


async def test_another_task_queue() -> None:
    """The replayer's own task queue matches that of the workers; any other task queue is a divergence."""
    history = kept("no-tool")
    [scheduled] = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    scheduled.activity_task_scheduled_event_attributes.task_queue.name = "gpu"
    found = await parted(history)
    assert [(part.name, part.recorded, part.now) for part in found.parts] == [("task_queue", "gpu", "record-no-tool")]


async def test_another_memo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memo is compared, because approvers answer what it shows."""
    monkeypatch.setattr(visibility, "MAX_MEMO_ARGS", 1)
    found = await parted("confirmation-approved")
    assert found.parts[0].name.startswith("waystation_pending[0].")


async def test_other_search_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search attributes are compared."""
    monkeypatch.setattr(visibility, "RUNNING", "working")
    found = await parted("scopes-stored")
    assert found.recorded.startswith("set search attributes ")
    assert found.parts[0] == ("WaystationStatus", "running", "working")


async def test_what_a_person_is_told_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of updates are compared."""
    monkeypatch.setattr(decision, "receipt", lambda call, answer: {"accepted": "perhaps"})
    found = await parted("scopes-stored")
    assert found.recorded.startswith("answer an update with {")
    assert found.parts[0] == ("result.accepted", True, "perhaps")


async def test_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A divergence in a session has a history event, and no agent event."""
    monkeypatch.setattr(ids, "session_invocation", lambda session, number: f"{session}:{number}")
    found = await parted(kept_session("talk.00"))
    assert found.recorded.startswith("answer an update with {")
    assert found.parts[0].name == "result.invocation_id"
    assert (found.event, found.after) == (None, None)


async def test_the_last_workflow_task_that_is_not_over_is_no_difference() -> None:
    """Commands of the last, unfinished workflow task are not compared."""
    history = kept("one-tool")
    tasks = [event.event_id for event in history.events if event.HasField("workflow_task_started_event_attributes")]
    for length in tasks:
        assert await divergence_of(WorkflowHistory(history.workflow_id, history.events[:length])) is None


async def test_what_cannot_be_read_is_not_compared() -> None:
    """Payloads that a codec encrypted are not compared."""
    history = kept("no-tool")
    [scheduled] = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    payload = scheduled.activity_task_scheduled_event_attributes.input.payloads[0]
    payload.metadata["encoding"], payload.data = b"binary/encrypted", b"?"
    assert await divergence_of(history) is None


async def test_a_recording_is_replayed_with_the_agents_that_it_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A divergence in a called agent alone is found."""
    file = tmp_path / "called.json"
    file.write_text(
        json.dumps(
            format_saved_history(SavedHistory([kept("called-agent")], [SavedHistory([kept("called-agent-child")])]))
        )
    )
    recording = await Recording.read(file)
    await replay(recording)
    real = scheduler._tool_input

    def call(log: Log, call: Any, *rest: Any) -> Any:
        return real(log, dataclasses.replace(call, args={}), *rest)

    monkeypatch.setattr(scheduler, "_tool_input", call)
    with pytest.raises(NotReplayable, match=r"'called-agent/fc-1' does not replay: recorded: call add\(a=1, b=2\)"):
        await replay(recording)


async def test_a_long_history_replays() -> None:
    """A history as long as a worker would make it replays."""
    history = long_history(600, size=20)
    assert len(history.events) == 603
    assert await divergence_of(history) is None
    log = build_log([history])
    assert (len(log.state.events), log.state.steps) == (100, 50)


# The SDK interrupts the thread, and may leave a coroutine of the workflow behind that was never awaited.
@pytest.mark.filterwarnings(
    "ignore:coroutine .*_WorkflowInstanceImpl", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("starved", [1, 3], ids=["once", "each time"])
async def test_a_task_that_gets_no_turn_in_time_is_replayed_again(
    monkeypatch: pytest.MonkeyPatch, starved: int
) -> None:
    """A replay that times out on a busy machine is repeated; only repeated timeouts are reported."""
    begin, interrupt = _WorkflowWorker.__init__, _RunningWorkflow.attempt_deadlock_interruption
    workers, given_up = list[_WorkflowWorker](), defaultdict[WorkflowInstance, Event](Event)
    left = starved

    def hasty(self: _WorkflowWorker, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        vars(self).update(_deadlock_timeout_seconds=0.01)
        workers.append(self)

    def interrupted(self: _RunningWorkflow) -> None:
        interrupt(self)  # before the task goes on, so that no exception is raised in its thread at any later point
        given_up[self.instance].set()

    class Starved(UnsandboxedWorkflowRunner):
        def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
            instance = super().create_instance(det)
            activate = instance.activate

            def late(act: WorkflowActivation) -> WorkflowActivationCompletion:
                nonlocal left
                monkeypatch.setattr(instance, "activate", activate)
                left -= 1
                if left >= 0:
                    given_up[instance].wait(20)
                if left <= 0:
                    workers[-1]._deadlock_timeout_seconds = 30
                return activate(act)

            monkeypatch.setattr(instance, "activate", late)
            return instance

    monkeypatch.setattr(_WorkflowWorker, "__init__", hasty)
    monkeypatch.setattr(_RunningWorkflow, "attempt_deadlock_interruption", interrupted)
    found = await divergence_of(kept("confirmation-approved"), runner=Starved())
    assert (found is None) == (starved == 1)
    assert found is None or "didn't yield" in found.now
    gc.collect()  # what was never awaited
