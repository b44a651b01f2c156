"""Replay histories against the current workflow code, and find the first divergence."""

import asyncio
import copy
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any, TypeAlias

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter, DefaultFailureConverter
from temporalio.worker import (
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from waystation.core.contract import WorkflowSettings
from waystation.core.errors import ForeignHistory, NotReplayable, StoreFailed
from waystation.history import decode_histories
from waystation.replay.divergence import Activation, Difference, Divergence, find_first_difference, to_divergence
from waystation.replay.recording import Recording
from waystation.storage import Blobs, offloading
from waystation.workflows import engine_activity
from waystation.workflows.engine_activity import SettingsInterceptor
from waystation.workflows.event_delivery import AgentEventDelivery
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.push_delivery import AgentPushDelivery
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession

_WORKFLOWS = [AgentInvocation, AgentScope, AgentSession, AgentEventDelivery, AgentPushDelivery]
_CORE_MESSAGE = re.compile(r'message: "(.+?)", source: "')
_CORE_EVENT = re.compile(r"HistoryEvent\(id: (\d+), (\w+)\)")
_MAX_CORE_MESSAGE = 600
"""Number of characters to show of a message from Temporal's replayer. Longer messages are cut."""
_DEADLOCK = "TMPRL1101"
"""Temporal's code for a workflow task that took more than two seconds. Waystation's tasks take that long only on a busy
machine."""
_ATTEMPTS = 3
"""Maximum number of attempts to replay a history if its workflow tasks take too long."""
_STANDARD_LIBRARY = str(Path(asyncio.__file__).parents[1])
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
Location: TypeAlias = tuple[str, int, str]
"""File, line number and function name."""
Replays: TypeAlias = Callable[[WorkflowHistory], Awaitable[Difference | None]]


async def replay(
    recorded: Recording | WorkflowHistory,
    *,
    runner: WorkflowRunner | None = None,
    converter: DataConverter | None = None,
    settings: WorkflowSettings | None = None,
) -> None:
    """Replay a recording against the current workflow code. Requires neither a server nor the agent.

    Temporal's own replayer compares the kinds and names of commands. This function also compares their order, the
    inputs of activities and called agents, options, results, memo and search attributes.

    Args:
        recorded: The history of an open or closed invocation, session or scope, or a recording, which is replayed with
            all its runs and called agents.
        runner: Runs the workflow code. By default, the code runs without a sandbox.
        converter: Decodes payloads. By default, large payloads are read from the default store.
        settings: Timeouts and retries of the workers that recorded the history, if different from the defaults.

    Raises:
        ForeignHistory: A history does not begin with the start of a workflow.
        NotReplayable: The current code diverges, or large values are missing from the store.
    """
    divergence = await divergence_of(recorded, runner=runner, converter=converter, settings=settings)
    if divergence:
        raise NotReplayable(f"The history of {divergence.workflow_id!r} does not replay: {divergence}")


async def divergence_of(
    recorded: Recording | WorkflowHistory,
    *,
    runner: WorkflowRunner | None = None,
    converter: DataConverter | None = None,
    settings: WorkflowSettings | None = None,
) -> Divergence | None:
    """Return where the current code first diverges from a recording, or None if it does not diverge. See `replay`.

    Raises:
        ForeignHistory: A history does not begin with the start of a workflow.
        NotReplayable: Large values are missing from the store.
    """
    async with open_replayer(runner=runner, converter=converter, settings=settings) as replays:
        return await find_divergence(recorded, replays)


async def find_divergence(recorded: Recording | WorkflowHistory, replays: Replays) -> Divergence | None:
    """Return the same as `divergence_of`, using the replayer from `open_replayer`, which can be reused."""
    if isinstance(recorded, WorkflowHistory):
        difference = await replays(recorded)
        return to_divergence([recorded], 0, difference) if difference else None
    if lacking := recorded.lacking:
        problem = f"{len(lacking)} large values of {recorded.id!r} are missing"
        raise NotReplayable(f"{problem}. Set --store to the workers' store. {next(iter(lacking.values()))}")
    for run, history in enumerate(recorded.histories):
        if difference := await replays(history):
            return to_divergence(recorded.histories, run, difference)
    for called in recorded.called.values():
        if divergence := await find_divergence(called, replays):
            return divergence
    return None


@asynccontextmanager
async def open_replayer(
    *,
    runner: WorkflowRunner | None = None,
    converter: DataConverter | None = None,
    settings: WorkflowSettings | None = None,
) -> AsyncIterator[Replays]:
    """Yield a function that replays a history and returns the first difference, or None if there is none.

    Wait for each replay to finish before starting the next one.
    """
    # Failures are compared with decoded ones, so their messages must not be encoded.
    converter = replace(converter or offloading(Blobs()), failure_converter_class=DefaultFailureConverter)
    observer = _Observer(runner or UnsandboxedWorkflowRunner())
    queued: list[WorkflowHistory] = []

    async def feed() -> AsyncIterator[WorkflowHistory]:
        while True:
            yield queued.pop()

    replayer = Replayer(
        workflows=_WORKFLOWS,
        workflow_runner=observer,
        unsandboxed_workflow_runner=observer,
        data_converter=converter,
        interceptors=[SettingsInterceptor(settings or WorkflowSettings())],
    )
    async with replayer.workflow_replay_iterator(feed()) as results:

        async def replays(history: WorkflowHistory) -> Difference | None:
            # For an event history like this, the SDK would wait forever.
            if not history.events or not history.events[0].HasField("workflow_execution_started_event_attributes"):
                raise ForeignHistory(
                    f"The history of {history.workflow_id!r} does not begin with the start of a workflow."
                )
            if all(event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in history.events):
                return None
            queued.extend([history] * _ATTEMPTS)
            result = await anext(results)
            while queued and _DEADLOCK in str(result.replay_failure):
                result = await anext(results)
            queued.clear()
            with suppress(StoreFailed):  # without the store, payloads that are in it are not compared
                [history] = await decode_histories([history], converter)
            if difference := find_first_difference(history, observer.activations, observer.queue):
                return difference
            return _from_temporal(observer.activations, result.replay_failure) if result.replay_failure else None

        yield replays


def _from_temporal(activations: Sequence[Activation], failure: Exception) -> Difference:
    """Return a difference that only Temporal's replayer reports: patch markers, and cancellations of work in flight."""
    text = " ".join(str(failure).split())
    message = _CORE_MESSAGE.search(text)
    text = (message[1] if message else text).replace("\\'", "'")[:_MAX_CORE_MESSAGE]
    event = _CORE_EVENT.search(text)
    last = activations[-1].started if activations else 0
    return Difference(completed=int(event[1]) if event else last, failure=text)


class _Observer(WorkflowRunner):
    """Runs workflows through another runner, and records the activations of the latest workflow."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner
        self.activations: list[Activation] = []
        self.queue = ""
        """The replayer's own task queue."""

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self.activations, self.queue = [], det.info.task_queue
        instance = self._runner.create_instance(det)
        _observe(instance, self.activations)
        return instance


def _observe(instance: Any, activations: list[Activation]) -> None:
    """Record what a workflow does in each activation, and on which lines.

    The lines come from private attributes of the SDK. They are missing in the sandbox, and might be missing in later
    SDKs.
    """
    activate: Any = instance.activate
    add_command: Any = getattr(instance, "_add_command", None)
    lines: list[str | None] = []

    def add_command_and_line() -> Any:
        lines.append(_own_line(_raising_frames()) or _own_line(_locations(walk_stack(sys._getframe(1)))))
        return add_command()

    def activate_and_record(act: Any) -> Any:
        lines.clear()
        completion = activate(act)
        # Copy the commands, because the worker encodes them in place.
        commands = copy.deepcopy(list(completion.successful.commands))
        known_lines = lines if len(lines) == len(commands) else [None] * len(commands)
        activation = Activation(act.history_length, list(zip(commands, known_lines, strict=True)))
        if completion.HasField("failed"):
            activation.failure = completion.failed.failure
            frames = [(file, int(line), name) for file, line, name in _FRAME.findall(activation.failure.stack_trace)]
            activation.waits_at = _own_line(reversed(frames))
        else:
            activation.waits_at = _own_line(_waiting_frames(getattr(instance, "_primary_task", None)))
        activations.append(activation)
        return completion

    instance.activate = activate_and_record
    if add_command is not None:
        instance._add_command = add_command_and_line


def _waiting_frames(task: asyncio.Task[Any] | None) -> Iterator[Location]:
    """Yield the frames where a task is waiting, innermost first. Yield nothing if the task is done."""
    awaited: Any = task.get_coro() if task is not None and not task.done() else None
    frames = []
    while awaited is not None and getattr(awaited, "cr_frame", None) is not None:
        frames.append((awaited.cr_frame, awaited.cr_frame.f_lineno))
        awaited = awaited.cr_await
    return _locations(reversed(frames))


def _raising_frames() -> Iterator[Location]:
    """Yield the frames that raised the exception being handled, innermost first."""
    error = sys.exception()
    while error is not None and error.__context__ is not None:
        error = error.__context__
    return _locations(reversed(list(walk_tb(error.__traceback__))) if error else ())


def _locations(frames: Iterable[tuple[FrameType, int]]) -> Iterator[Location]:
    return ((frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames)


def _own_line(frames: Iterable[Location]) -> str | None:
    """Return the innermost line of code that does not belong to a library, or None if there is none."""
    return next((f"{path}:{line} in {name}" for file, line, name in frames if (path := _own_path(file))), None)


@cache
def _own_path(file: str) -> str | None:
    """Return a path such as `workflows/scheduler.py`, or None for libraries, this module and `engine_activity`."""
    path = Path(file)
    library = "site-packages" in path.parts or file.startswith(_STANDARD_LIBRARY) or not path.suffix
    if library or file in (__file__, engine_activity.__file__):
        return None
    for root in ("workflows", "waystation"):
        if root in path.parts[:-1]:
            last = len(path.parts) - 1 - path.parts[::-1].index(root)
            return "/".join(path.parts[last:])
    return path.name
