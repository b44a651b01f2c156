"""What workflow code asks for while it is replayed, and, when somebody wants to know, which line asks for it."""

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from waystation.workflows import engine_activity

_STANDARD = Path(asyncio.__file__).parents[1]
"""Where Python's own modules are."""
_CALL_FORM = Path(engine_activity.__file__)
"""Schedules for its callers, which are what is shown."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass(slots=True)
class Activation:
    """What workflow code did in one go."""

    started: int
    """Id of the event with which its workflow task started."""
    commands: Sequence[WorkflowCommand]
    failure: Failure | None = None
    """Why the workflow task fails, when it does."""
    places: list[str | None] = field(default_factory=list)
    """Which lines asked for the commands, when that was wanted."""
    rests: str | None = None
    """Where the code waits afterwards, when that was wanted."""
    pending: Sequence[Any] = ()
    """What then waits for a person, when that was wanted."""


class Watch(WorkflowRunner):
    """Runs workflows as another runner does, and keeps what the latest one did."""

    def __init__(self, runner: WorkflowRunner | None = None) -> None:
        self._runner = runner or UnsandboxedWorkflowRunner()
        self.activations: list[Activation] = []
        self.queue = ""
        """The replayer's task queue."""

    def prepare_workflow(self, defn: Any) -> None:
        """As the runner does."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """As the runner does."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Begin to watch a workflow, and forget the one before."""
        self.activations, self.queue = [], det.info.task_queue
        return self._watched(self._runner.create_instance(det))

    def _watched(self, instance: WorkflowInstance) -> "_Watched":
        return _Watched(instance, self.activations)


class Tracing(Watch):
    """Also notes lines of source. Without a sandbox, which would hide them."""

    def __init__(self) -> None:
        super().__init__(UnsandboxedWorkflowRunner())

    def _watched(self, instance: WorkflowInstance) -> "_Watched":
        return _Traced(instance, self.activations)


class _Watched(WorkflowInstance):
    def __init__(self, instance: WorkflowInstance, activations: list[Activation]) -> None:
        self._instance, self._activations = instance, activations

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        completion = self._instance.activate(act)
        if completion.HasField("failed"):
            self._note(Activation(act.history_length, (), completion.failed.failure))
        # Copied: what the worker does next with the commands, such as encoding them, it does in place.
        elif completion.successful.commands:
            copied = WorkflowActivationCompletion()
            copied.CopyFrom(completion)
            self._note(Activation(act.history_length, copied.successful.commands))
        else:
            self._note(Activation(act.history_length, ()))
        return completion

    def _note(self, activation: Activation) -> None:
        self._activations.append(activation)

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Any:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


class _Traced(_Watched):
    """Looks into the SDK's instance, for nothing public says from where a timer or an end was asked for.

    Should that change, a divergence is found all the same, and only its line is missing.
    """

    def __init__(self, instance: WorkflowInstance, activations: list[Activation]) -> None:
        super().__init__(instance, activations)
        self._places: list[str | None] = []
        add = getattr(instance, "_add_command", None)
        if add is not None:

            def adding() -> Any:
                self._places.append(_raised() or _place(_calling()))
                return add()

            instance._add_command = adding  # type: ignore[attr-defined]

    def _note(self, activation: Activation) -> None:
        activation.places, self._places = self._places, []
        activation.rests = _rests(getattr(self._instance, "_primary_task", None))
        pending = getattr(getattr(self._instance, "_object", None), "pending", None)
        if pending is not None and activation.failure is None:
            activation.pending = pending()
        super()._note(activation)


def _calling() -> Iterator[tuple[CodeType, int]]:
    frame: FrameType | None = sys._getframe(2)
    while frame:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def place_in(failure: Failure) -> str | None:
    """Return where a failure comes from, as its stack trace tells."""
    for file, line, name in reversed(_FRAME.findall(failure.stack_trace)):
        path = Path(file)
        if not _is_library(path):
            return f"{_short(path)}:{line} in {name}"
    return None


def _raised() -> str | None:
    """Return where an exception comes from that is just being handled."""
    error = sys.exception()
    while error is not None and error.__context__ is not None:
        error = error.__context__
    found = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)] if error else []
    return _place(iter(reversed(found)))


def _rests(task: Any) -> str | None:
    """Return where a task waits."""
    awaited, found = task.get_coro() if task is not None and not task.done() else None, list[tuple[CodeType, int]]()
    while awaited is not None and getattr(awaited, "cr_frame", None) is not None:
        found.append((awaited.cr_code, awaited.cr_frame.f_lineno))
        awaited = awaited.cr_await
    return _place(iter(reversed(found)))


def _place(frames: Iterator[tuple[CodeType, int]]) -> str | None:
    """Return the innermost line that is no library's."""
    for code, line in frames:
        path = Path(code.co_filename)
        if path.suffix and not _is_library(path):
            return f"{_short(path)}:{line} in {code.co_name}"
    return None


def _is_library(path: Path) -> bool:
    if path in (Path(__file__), _CALL_FORM):
        return True
    return "site-packages" in path.parts or path.is_relative_to(_STANDARD)


def _short(path: Path) -> str:
    """Return a path below its package, such as `workflows/perform.py`."""
    for root in ("workflows", "waystation"):
        if root in path.parts[:-1]:
            last = len(path.parts) - 1 - path.parts[::-1].index(root)
            return "/".join(path.parts[last:])
    return path.name
