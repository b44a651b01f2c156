"""Stop in the workflow code with pdb at a given moment of a recording."""

import pdb
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from waystation.core.errors import WaystationError
from waystation.core.log import Body, EntryRef, Log
from waystation.replay.recording import Moment
from waystation.workflows.invocation import AgentInvocation

_CODE = str(Path(sys.modules[AgentInvocation.__module__].__file__ or "").parent)
"""The folder of the workflow code."""


class NoBreakpoint(WaystationError):
    """The replay has no line to stop at: no log entry was applied at this moment, or its run is not recorded.

    Go to another event.
    """


class WorkflowDebugger(pdb.Pdb):
    """A pdb that starts in the workflow code that applies a log entry.

    Quitting continues the replay, because pdb's own `quit` would raise an exception in the workflow and fail it.
    """

    def __init__(self) -> None:
        """Create a debugger that leaves handling of Ctrl-C to the program that replays."""
        super().__init__(nosigint=True)
        self._started = False

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Start the interaction without reporting the call to `Log.append`."""
        if self._started:
            super().user_call(frame, argument_list)
        else:
            self.interaction(frame, None)

    def setup(self, f: FrameType | None, tb: Any) -> None:
        """Select the innermost frame of the workflow code at the start, instead of a frame of the log."""
        super().setup(f, tb)
        own = [i for i, (frame, _) in enumerate(self.stack) if frame.f_code.co_filename.startswith(_CODE)]
        if own and not self._started:
            self.curindex = own[-1]
            self.curframe = self.stack[self.curindex][0]
            if "curframe_locals" in vars(self):  # up to Python 3.12
                self.curframe_locals = self.curframe.f_locals
        self._started = True

    def do_quit(self, arg: str) -> bool:
        """Continue the replay to the end without stopping again."""
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit


async def break_at(moment: Moment, debugger: Callable[[], pdb.Pdb] = WorkflowDebugger) -> str | None:
    """Replay an invocation, and stop in its workflow code just before the log entry of a moment is applied.

    The workflow code runs in the event loop's thread, so the loop is blocked while the debugger has the terminal.

    Returns:
        How the current code diverges from the recording, or None if no divergence was found. Runs after the moment are
        not replayed.

    Raises:
        NoBreakpoint: The moment is before the first event, or its run is not in the recording.
    """
    recording = moment.recording
    if not moment.entries:
        raise NoBreakpoint(f"{recording.source!r}: nothing was applied before event 1. Go to an event.")
    problem = None
    with _break_before(recording.id, recording.log.entries_before + moment.entries - 1, debugger) as stops:
        for history in recording.histories:
            replayer = Replayer(
                workflows=[AgentInvocation], workflow_runner=UnsandboxedWorkflowRunner(), debug_mode=True
            )
            result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
            problem = str(result.replay_failure) if result.replay_failure else None
            if stops or problem:
                break
    if not stops and not problem:
        raise NoBreakpoint(f"{recording.source!r}: the run that produced event {moment.number} is not recorded.")
    return problem


@contextmanager
def _break_before(invocation_id: str, length: int, debugger: Callable[[], pdb.Pdb]) -> Iterator[list[int]]:
    """Start the debugger just before an entry is added to a log that has `length` entries."""
    append, stops = Log.append, list[int]()

    def append_or_stop(log: Log, ref: EntryRef, now: float, body: Body) -> None:
        if log.length == length and log.invocation_id == invocation_id and not stops:
            stops.append(length)
            debugger().set_trace(sys._getframe(1))
        append(log, ref, now, body)

    Log.append = append_or_stop  # type: ignore[method-assign, assignment]  # only during the replay
    try:
        yield stops
    finally:
        Log.append = append  # type: ignore[method-assign]
