"""The first divergence of the current workflow code from a history, in terms of agents."""

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
from waystation.core import ids
from waystation.core.contract import InvocationResult, WorkflowSettings
from waystation.core.errors import NotReplayable
from waystation.core.log import InvocationState, Log, decision, responses
from waystation.core.payload import JsonObject
from waystation.history import SavedHistory, build_log, format_saved_history
from waystation.replay import Divergence, Recording, divergence_of, replay
from waystation.workflows import invocation, ports, scheduler, visibility
from waystation.workflows.scheduler import Scheduler


def read_history(name: str) -> WorkflowHistory:
    """Return a history of the corpus."""
    id = json.loads((HISTORIES / f"{name}.held.json").read_text())["id"]
    return WorkflowHistory.from_json(id, (HISTORIES / f"{name}.json").read_text())


def read_session(name: str) -> WorkflowHistory:
    """Return the history of a session of the corpus."""
    held = json.loads((HISTORIES / "sessions" / f"{name}.json").read_text())
    return WorkflowHistory.from_json(held["id"], held["history"])


async def find_divergence(recorded: str | WorkflowHistory, settings: WorkflowSettings | None = None) -> Divergence:
    """Return the divergence of the current code from a history."""
    divergence = await divergence_of(
        read_history(recorded) if isinstance(recorded, str) else recorded, settings=settings
    )
    assert divergence is not None
    return divergence


def altered(name: str, activity: str, change: Callable[[JsonObject], None]) -> WorkflowHistory:
    """Return a copy of a history in which the first activity of a name has another result."""
    history = read_history(name)
    events = [type(event).FromString(event.SerializeToString()) for event in history.events]
    [scheduled, *_] = [e for e in events if e.activity_task_scheduled_event_attributes.activity_type.name == activity]
    for event in events:
        completed = event.activity_task_completed_event_attributes
        if completed.scheduled_event_id == scheduled.event_id:
            result = json.loads(completed.result.payloads[0].data)
            change(result)
            completed.result.payloads[0].data = json.dumps(result).encode()
    return WorkflowHistory(history.workflow_id, events)


def require_approval(reply: JsonObject) -> None:
    """Add a required approval to the call in a model reply."""
    reply["calls"] = [{"id": "fc-1", "confirmation": {"hint": "May it?"}}]


async def test_a_new_approval_is_a_divergence() -> None:
    """A divergence has the recorded command, the current command, the place in the invocation and the line."""
    divergence = await find_divergence(altered("one-tool", "call_model", require_approval))
    assert divergence.recorded == "call add(a=1, b=2)"
    assert divergence.now == "wait for approval of add(a=1, b=2)"
    assert (divergence.event, divergence.after, divergence.history_event) == (3, "model reply 1", 11)
    assert divergence.line is not None
    assert divergence.line.startswith("workflows/visibility.py:")
    description = str(divergence)
    assert description.startswith(
        "recorded: call add(a=1, b=2), after model reply 1 (after event 3, history event 11); now: "
    )


async def test_another_argument_of_a_tool_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of tools are compared, unlike in Temporal's replayer, which compares only kinds and names."""
    real = scheduler._tool_input

    def call(log: Log, call: Any, *rest: Any) -> Any:
        return real(log, dataclasses.replace(call, args={**call.args, "a": 100}), *rest)

    monkeypatch.setattr(scheduler, "_tool_input", call)
    divergence = await find_divergence("one-tool")
    assert (divergence.recorded, divergence.now) == ("call add(a=1, b=2)", "call add(a=100, b=2)")
    assert [tuple(part) for part in divergence.parts] == [("input.args.a", 1, 100)]
    assert divergence.line is not None
    assert divergence.line.startswith("workflows/scheduler.py:")
    assert divergence.line.endswith(" in _call_tool")


async def test_a_quick_call_that_became_ordinary_is_a_divergence() -> None:
    """Calls that run in the workflow task have no input in the history, but their arguments are in the log."""

    def slow(reply: JsonObject) -> None:
        reply["calls"][0]["quick"] = False

    divergence = await find_divergence(altered("quick-tools", "call_model", slow))
    assert divergence.recorded == 'call glance(place="door") in the workflow task'
    assert divergence.now == 'call glance(place="door")'


async def test_quick_calls_may_end_in_any_order() -> None:
    """A replay schedules quick calls in call order, although their markers were recorded in another order."""
    history = read_history("quick-tools")
    first, _, last = (e for e in history.events[:14] if e.HasField("marker_recorded_event_attributes"))
    first.event_id, last.event_id = last.event_id, first.event_id
    events = sorted(history.events, key=lambda event: event.event_id)
    assert await divergence_of(WorkflowHistory(history.workflow_id, events)) is None


async def test_another_order_of_parallel_calls_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence of equal commands in another order says that their order differs."""
    real = Scheduler.perform
    monkeypatch.setattr(Scheduler, "perform", lambda self, calls: real(self, list(reversed(calls))))
    divergence = await find_divergence("parallel-tools")
    assert divergence.recorded == 'call add(a=1, b=2), before call note(text="y")'
    assert divergence.now == 'call note(text="y") first'


async def test_another_timer_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers are compared by their duration."""
    monkeypatch.setattr(invocation, "now", lambda: ports.now() - 60)
    divergence = await find_divergence("confirmation-approved")
    assert divergence.now == "wait 2.59206e+06 s at most"
    assert [(part.name, part.recorded, part.now) for part in divergence.parts] == [("seconds", 2592000.0, 2592060.0)]


async def test_an_additional_activity_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence says that the activity has no recorded counterpart."""
    real = Scheduler.call_model

    def audited(self: Scheduler, *args: Any) -> None:
        real(self, *args)
        workflow.start_activity("audit", start_to_close_timeout=timedelta(1))

    monkeypatch.setattr(Scheduler, "call_model", audited)
    divergence = await find_divergence("no-tool")
    assert (divergence.recorded, divergence.now) == ("nothing", "run activity audit")


async def test_a_missing_activity_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence names the line at which the code waits instead of scheduling the activity."""
    real = Scheduler.perform
    monkeypatch.setattr(Scheduler, "perform", lambda self, calls: real(self, calls[:2]))
    divergence = await find_divergence("parallel-tools")
    assert (divergence.recorded, divergence.now) == ('call note(text="y")', "nothing")
    assert divergence.line is not None
    assert divergence.line.startswith("workflows/invocation.py:")
    assert divergence.line.endswith(" in _change")


async def test_another_id_of_a_called_agent_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflow IDs of called agents are compared."""
    monkeypatch.setattr(ids, "child_invocation", lambda invocation_id, call_id: f"{invocation_id}:{call_id}")
    divergence = await find_divergence("called-agent")
    assert divergence.recorded == "start agent helper as called-agent/fc-1"
    assert divergence.now == "start agent helper as called-agent:fc-1"


async def test_another_input_of_a_called_agent_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of called agents are compared."""
    monkeypatch.setattr(responses, "inherited_state", lambda state: {"seed": 2})
    divergence = await find_divergence("called-agent")
    assert divergence.recorded == "start agent helper as called-agent/fc-1, with input.state.seed 1"
    assert divergence.now == "the same with 2"


async def test_another_result_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of closed invocations are compared."""
    real = InvocationState.result

    def louder(self: InvocationState, reason: str | None = None) -> InvocationResult:
        return real(self, reason).model_copy(update={"text": "4"})

    monkeypatch.setattr(InvocationState, "result", louder)
    divergence = await find_divergence("one-tool")
    assert (divergence.recorded, divergence.now) == ("complete with 3", "complete with 4")


async def test_a_failure_instead_of_a_result_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence names the line that raises."""

    def broken(self: invocation.AgentInvocation, reason: str | None) -> None:
        raise ValueError(reason)

    monkeypatch.setattr(invocation.AgentInvocation, "_finish", broken)
    divergence = await find_divergence("one-tool")
    assert divergence.recorded == "complete with 3"
    assert divergence.now == "fail with EngineFault: Internal Waystation error: ValueError."
    assert divergence.line is not None
    assert divergence.line.endswith(" in broken")


async def test_another_failure_is_a_divergence() -> None:
    """Reasons of failed invocations are compared."""
    history = read_history("model-fails")
    last = history.events[-1].workflow_execution_failed_event_attributes
    last.failure.application_failure_info.type = "QuotaUsedUp"
    divergence = await find_divergence(history)
    assert divergence.recorded == "fail with QuotaUsedUp: no such model"
    assert divergence.now == "fail with ModelFailed: no such model"


async def test_a_failing_workflow_task_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence has the error and the recorded command."""

    def broken(*_: Any) -> None:
        raise ports.ResultElsewhere("It is elsewhere.")

    monkeypatch.setattr(Scheduler, "perform", broken)
    divergence = await find_divergence("one-tool")
    assert divergence.recorded == "call add(a=1, b=2)"
    assert divergence.now == "the workflow task fails: It is elsewhere."
    assert divergence.line is not None
    assert divergence.line.endswith(" in broken")


async def test_a_failing_start_is_a_divergence() -> None:
    """The divergence of a start that fails has no event number."""
    history = read_history("one-tool")
    started = history.events[0].workflow_execution_started_event_attributes
    started.search_attributes.indexed_fields["WaystationUser"].metadata.clear()
    divergence = await find_divergence(history)
    assert divergence.event is None
    assert divergence.now == "the workflow task fails: 'Unknown payload encoding <unknown>'"


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
async def test_other_options_of_an_activity_are_a_divergence(
    option: str, value: object, part: tuple[str, object, object]
) -> None:
    """Timeouts and retries of activities are compared, and named if nothing else differs."""
    settings = WorkflowSettings()
    model: Any = dataclasses.replace(settings.model, **{option: value})  # type: ignore[arg-type]  # chosen by name
    other = dataclasses.replace(settings, model=model)
    divergence = await find_divergence("no-tool", other)
    assert [tuple(each) for each in divergence.parts] == [part]
    assert divergence.recorded == f"model call 1 of clerk, with {part[0]} {part[1]}"
    assert divergence.now == f"the same with {part[2]}"


async def test_a_timeout_capped_by_the_server_is_not_a_divergence() -> None:
    """The server caps a heartbeat timeout at the timeout of the activity."""
    history = read_history("no-tool")
    [scheduled] = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    scheduled.activity_task_scheduled_event_attributes.heartbeat_timeout.FromSeconds(600)
    settings = WorkflowSettings()
    other = dataclasses.replace(settings, model=dataclasses.replace(settings.model, heartbeat=timedelta(hours=1)))
    assert await divergence_of(history, settings=other) is None


async def test_another_task_queue_is_a_divergence() -> None:
    """The replayer's own task queue matches that of the workers; any other one is a divergence."""
    history = read_history("no-tool")
    [scheduled] = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    scheduled.activity_task_scheduled_event_attributes.task_queue.name = "gpu"
    divergence = await find_divergence(history)
    assert [(part.name, part.recorded, part.now) for part in divergence.parts] == [
        ("task_queue", "gpu", "record-no-tool")
    ]


async def test_another_memo_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memos are compared, because approvers rely on their content."""
    monkeypatch.setattr(visibility, "MAX_MEMO_ARGS", 1)
    divergence = await find_divergence("confirmation-approved")
    assert divergence.parts[0].name.startswith("waystation_pending[0].")


async def test_other_search_attributes_are_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search attributes are compared."""
    monkeypatch.setattr(visibility, "RUNNING", "working")
    divergence = await find_divergence("scopes-stored")
    assert divergence.recorded.startswith("set search attributes ")
    assert divergence.parts[0] == ("WaystationStatus", "running", "working")


async def test_another_receipt_of_an_answer_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of updates are compared."""
    monkeypatch.setattr(decision, "receipt", lambda call, answer: {"accepted": "perhaps"})
    divergence = await find_divergence("scopes-stored")
    assert divergence.recorded.startswith("answer an update with {")
    assert divergence.parts[0] == ("result.accepted", True, "perhaps")


async def test_a_divergence_of_a_session_has_a_history_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divergence has no agent event."""
    monkeypatch.setattr(ids, "session_invocation", lambda session, number: f"{session}:{number}")
    divergence = await find_divergence(read_session("talk.00"))
    assert divergence.recorded.startswith("answer an update with {")
    assert divergence.parts[0].name == "result.invocation_id"
    assert (divergence.event, divergence.after) == (None, None)


async def test_an_unfinished_workflow_task_is_not_a_divergence() -> None:
    """Commands of the last, unfinished workflow task are not compared."""
    history = read_history("one-tool")
    tasks = [event.event_id for event in history.events if event.HasField("workflow_task_started_event_attributes")]
    for length in tasks:
        assert await divergence_of(WorkflowHistory(history.workflow_id, history.events[:length])) is None


async def test_an_unreadable_payload_is_not_compared() -> None:
    """Payloads that a codec encrypted are not compared."""
    history = read_history("no-tool")
    [scheduled] = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    payload = scheduled.activity_task_scheduled_event_attributes.input.payloads[0]
    payload.metadata["encoding"], payload.data = b"binary/encrypted", b"?"
    assert await divergence_of(history) is None


async def test_a_recording_is_replayed_with_its_called_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A divergence that is only in a called agent is found."""
    file = tmp_path / "called.json"
    file.write_text(
        json.dumps(
            format_saved_history(
                SavedHistory([read_history("called-agent")], [SavedHistory([read_history("called-agent-child")])])
            )
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
    """A history of 600 events replays."""
    history = long_history(600, size=20)
    assert len(history.events) == 603
    assert await divergence_of(history) is None
    log = build_log([history])
    assert (len(log.state.events), log.state.steps) == (100, 50)


# The SDK interrupts the thread, so a coroutine of the workflow may never be awaited.
@pytest.mark.filterwarnings(
    "ignore:coroutine .*_WorkflowInstanceImpl", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("starved", [1, 3], ids=["once", "each time"])
async def test_a_replay_that_times_out_is_repeated(monkeypatch: pytest.MonkeyPatch, starved: int) -> None:
    """Only repeated timeouts are reported, because a busy machine may cause one."""
    begin, interrupt = _WorkflowWorker.__init__, _RunningWorkflow.attempt_deadlock_interruption
    workers, given_up = list[_WorkflowWorker](), defaultdict[WorkflowInstance, Event](Event)
    left = starved

    def hasty(self: _WorkflowWorker, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        vars(self).update(_deadlock_timeout_seconds=0.01)
        workers.append(self)

    def interrupted(self: _RunningWorkflow) -> None:
        interrupt(self)  # before the task continues, so that no later exception is raised in its thread
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
    divergence = await divergence_of(read_history("confirmation-approved"), runner=Starved())
    assert (divergence is None) == (starved == 1)
    assert divergence is None or "didn't yield" in divergence.now
    gc.collect()  # collect the coroutine that was never awaited
