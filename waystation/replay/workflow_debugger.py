"""Stop in the workflow code, in Python's debugger, at the moment at which it makes an event again."""

import pdb
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from waystation.core import Body, EntryRef, Log, WaystationError
from waystation.replay.recording import Moment
from waystation.workflows.invocation import AgentInvocation

_CODE = str(Path(sys.modules[AgentInvocation.__module__].__file__ or "").parent)
"""Where the workflow code is."""


class NothingToBreakAt(WaystationError):
    """Nothing was applied at a moment, so no line of the workflow code can be shown there."""


class WorkflowDebugger(pdb.Pdb):
    """Python's debugger. It begins in the workflow code that applies what is about to be applied.

    To quit is to let go: raised in a workflow, pdb's own way to quit would count as its failure.
    """

    def __init__(self) -> None:
        """Leave Ctrl-C to the program that replays."""
        super().__init__(nosigint=True)
        self._begun = False

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Begin without saying that the log is called."""
        if self._begun:
            super().user_call(frame, argument_list)
        else:
            self.interaction(frame, None)

    def setup(self, f: FrameType | None, tb: Any) -> None:
        """Select, when it begins, the innermost frame of the workflow code, and not one of the log."""
        super().setup(f, tb)
        ours = [i for i, (frame, _) in enumerate(self.stack) if frame.f_code.co_filename.startswith(_CODE)]
        if ours and not self._begun:
            self.curindex = ours[-1]
            self.curframe = self.stack[self.curindex][0]
            if "curframe_locals" in vars(self):  # until Python 3.12
                self.curframe_locals = self.curframe.f_locals
        self._begun = True

    def do_quit(self, arg: str) -> bool:
        """Let the replay go on to its end, without stopping again."""
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit


async def break_at(moment: Moment, debugger: Callable[[], pdb.Pdb] = WorkflowDebugger) -> str | None:
    """Replay an invocation and stop in its workflow code just before the entry of a moment is applied.

    The code runs in the thread of the event loop, which stands still meanwhile, so that the debugger has the terminal.

    Returns:
        What the present code does otherwise than it was recorded; None when it does the same.

    Raises:
        NothingToBreakAt: It is the beginning, or the run that did it is not in the recording.
    """
    recording = moment.recording
    if not moment.entries:
        raise NothingToBreakAt(f"{recording.source!r}: nothing was applied before event 1; go to an event.")
    problem = None
    with _stopping(recording.id, recording.log.entries_before + moment.entries - 1, debugger) as stopped:
        for history in recording.histories:
            replayer = Replayer(
                workflows=[AgentInvocation], workflow_runner=UnsandboxedWorkflowRunner(), debug_mode=True
            )
            result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
            problem = str(result.replay_failure) if result.replay_failure else None
            if stopped or problem:
                break
    if not stopped and not problem:
        raise NothingToBreakAt(f"{recording.source!r}: the run that made event {moment.number} is not recorded.")
    return problem


@contextmanager
def _stopping(invocation_id: str, length: int, debugger: Callable[[], pdb.Pdb]) -> Iterator[list[int]]:
    """Have the debugger begin where a log that has `length` entries is about to grow."""
    append, stopped = Log.append, list[int]()

    def stopping(log: Log, ref: EntryRef, now: float, body: Body) -> None:
        if log.length == length and log.invocation_id == invocation_id and not stopped:
            stopped.append(length)
            debugger().set_trace(sys._getframe(1))
        append(log, ref, now, body)

    Log.append = stopping  # type: ignore[method-assign, assignment]  # for as long as it is replayed
    try:
        yield stopped
    finally:
        Log.append = append  # type: ignore[method-assign]
