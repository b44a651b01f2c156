"""The output of a command: results go to stdout as text or JSON lines, and remarks and errors go to stderr."""

import os
import pydoc
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.pager import Pager
from rich.table import Table
from rich.text import Text
from temporalio.converter import DataConverter

from waystation.core.approval import PendingCall
from waystation.core.contract import Event
from waystation.presentation import terminal
from waystation.storage import list_shortened

PIPE_WIDTH = 100
"""Width of tables, in columns, when the output is a file or pipe. Other lines are not wrapped in that case."""
MIN_COLUMNS = 20
"""Minimum number of columns in which this program wraps text. If fewer are left, the terminal wraps the lines."""


class Output:
    """The output of a command, as human-readable text or as JSON lines."""

    def __init__(
        self,
        *,
        json: bool = False,
        margin: str = "",
        page: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create an output.

        Args:
            json: Whether to write JSON lines.
            margin: Prefix for every line of text.
            page: Line width if the output is not a terminal. By default, text is not wrapped in that case.
            now: Returns the current time in seconds. Times on the current day are written without a date.
        """
        self.json, self.margin, self.now = json, margin, now
        for stream in (sys.stdout, sys.stderr):
            # Escape characters that the terminal's encoding does not support. By default, they raise an exception.
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.wraps = self.console.is_terminal or page is not None
        if not self.console.is_terminal:
            self.console.width = page or PIPE_WIDTH

    @contextmanager
    def pages(self) -> Iterator[None]:
        """Show the text of the block with a pager, such as `less`, if it is longer than the terminal."""
        if not (self.console.is_terminal and sys.stdin.isatty()):
            yield
            return
        os.environ.setdefault("LESS", "R")  # keeps colors
        with self.console.pager(_Pager(self.console), styles=shutil.which("less") is not None):
            yield

    def record(self, value: object) -> None:
        """Write one JSON line."""
        sys.stdout.write(terminal.format_json(value) + "\n")
        sys.stdout.flush()

    def result(self, record: object, text: str | Text) -> None:
        """Write a result: `record` if the output is JSON, otherwise `text`."""
        self.record(record) if self.json else self.line(text)

    def line(self, text: str | Text = "", *, style: str = "") -> None:
        """Write text without wrapping its lines, so that users can copy each line in one piece."""
        self.console.print(Text(self.margin, style=style).append(terminal.escape_lines(text)), soft_wrap=True)

    def remark(self, text: str) -> None:
        """Write a remark to stderr, as a dimmed line."""
        _write_to_stderr(terminal.escape_lines(text), style="dim")

    def report_short_forms(self, converter: DataConverter) -> None:
        """Report how many large values the converter had to shorten, if any."""
        if values := list_shortened(converter):
            count = "1 large value is" if len(values) == 1 else f"{len(values)} large values are"
            reason = next(iter(values.values()))
            self.remark(f"{count} shown in short form. Name the workers' store with --store. {reason}")

    def hanging(self, prefix: Text, texts: Iterable[Text]) -> None:
        """Write lines after a prefix. Wrapped and later lines are indented by the width of the prefix."""
        width = prefix.cell_len
        for text in texts:
            columns = self.console.width - len(self.margin) - width
            for piece in text.wrap(self.console, columns) if self.wraps and columns >= MIN_COLUMNS else [text]:
                piece.rstrip()
                self.line(prefix + piece)
                prefix = Text(" " * width)

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Write labeled facts, given as pairs of label and text."""
        for label, text in facts:
            self.hanging(Text(f"  {label:8} ", style="dim"), [Text(text)])

    def event(self, event: Event, *, tag: Text | None = None, numbered: bool = False) -> None:
        """Write an event, if it has anything to show. The `tag` is placed between the event's time and its text."""
        lines = [line.styled() for line in terminal.format_event(event)]
        number = terminal.format_number(event) if numbered else ""
        prefix = Text(f"{number}{terminal.format_time(event.timestamp, now=self.now())}  ", style="dim")
        if lines:
            self.hanging(prefix + tag if tag else prefix, lines)

    def show(self, renderable: RenderableType) -> None:
        """Write a Rich renderable."""
        self.console.print(renderable)

    def wait(self, call: PendingCall, facts: Iterable[tuple[str, str]]) -> None:
        """Write a pending call, with labeled facts about it."""
        self.line()
        label = f"waiting for a {'machine' if call.machine else 'person'}  "
        self.hanging(Text(label, style="bold"), [Text(terminal.format_call(call), style="bold yellow")])
        self.facts(facts)

    def command(self, label: str, parts: Sequence[str]) -> None:
        """Write a shell command for users to copy: on one line if it fits, otherwise one part per line."""
        prefix = Text(f"  {label:8} ", style="dim")
        whole = " ".join(parts)
        if len(self.margin) + prefix.cell_len + len(whole) <= self.console.width:
            parts = [whole]
        for index, part in enumerate(parts):
            self.line(Text.assemble(prefix, "  " if index else "", part, " \\" if index < len(parts) - 1 else ""))
            prefix = Text(" " * prefix.cell_len)

    def table(self, table: Table) -> None:
        """Write a table, indented by the margin."""
        self.console.print(Padding(table, (0, 0, 0, len(self.margin))))


class _Pager(Pager):
    """A pager that is used only for text that is longer than the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, content: str) -> None:
        """Write the text, or open the pager with it."""
        if content.count("\n") < self._console.height:
            sys.stdout.write(content)
        else:
            pydoc.pager(content)


def write_error(message: str) -> None:
    """Write the error that made a command fail, as one line on stderr."""
    _write_to_stderr(Text.assemble(("waystation: ", "bold red"), terminal.escape(" ".join(message.split()))))


def _write_to_stderr(text: str | Text, style: str | None = None) -> None:
    Console(stderr=True, highlight=False, markup=False, emoji=False).print(text, soft_wrap=True, style=style)
