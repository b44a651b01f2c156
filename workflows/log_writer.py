"""Write an invocation's log: entries with their times, and the positions that commands name."""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio import workflow

from waystation.core import ids
from waystation.core.contract import MEMO_FILLER, Position
from waystation.core.log import Body, EntryRef, Log
from waystation.workflows.ports import now


class LogWriter:
    """Appends entries with the workflow's time, and tracks the entries that commands have already referred to."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.fault: Exception | None = None
        """An exception that occurred outside the main loop. The main loop raises it."""
        self._named = log.length
        self._task = 0
        """The history length of the latest workflow task that issues a command. Each workflow task has another one."""
        self._filled = False

    def note_command(self) -> None:
        """Note that this workflow task issues a command."""
        self._task = workflow.info().get_current_history_length()

    def fill_task(self) -> None:
        """Issue a command if this workflow task has none. Call this if something arrived in the task.

        On replay, the SDK merges a workflow task without commands with the next one if an update follows. The time of
        what arrived, and its order, would then differ from the first run. See decision 0039. The command removes a key
        that the memo does not have.
        """
        if self._task == workflow.info().get_current_history_length() or not workflow.patched(ids.FILLED):
            return
        if self._filled:  # otherwise, the patch marker is the command
            workflow.upsert_memo({MEMO_FILLER: None})
        self._filled = True
        self.note_command()

    def record(self, ref: EntryRef, body: Body) -> None:
        """Append an entry."""
        self.log.record(ref, now(), body)

    def advance(self) -> None:
        """Apply the reminders and deadlines whose time has come."""
        with self.guard():
            self.log.advance(now())

    def position(self) -> Position:
        """Return the log's current position. The next command must include it, so call this method once per command."""
        position, self._named = self.peek(), self.log.length
        self.note_command()
        return position

    def peek(self) -> Position:
        """Return the log's current position for a local activity, whose input is not part of the history."""
        return Position(at=self._named, new=self.log.refs(self._named))

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Pass exceptions on to the main loop, which fails the invocation.

        Anywhere else, an exception would block the workflow or be lost.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  # the main loop raises it again
            self.fault = error
