"""Where a command's words go: results to stdout, for people or as JSON; remarks and errors to stderr."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from temporalio.converter import DataConverter

from waystation.cli.target import Target
from waystation.core import Event, PendingCall
from waystation.presentation import policy_terms, terminal
from waystation.storage import shortened

PIPE_WIDTH = 100
"""Columns of a table that goes to a file or another program; other lines are not wrapped there."""
MIN_COLUMNS = 20
"""A terminal that leaves fewer for the text does the wrapping itself."""


class Output:
    """Writes for people, or as JSON lines."""

    def __init__(
        self,
        *,
        json: bool = False,
        margin: str = "",
        page: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.json = json
        self.now = now
        """Tells which times are of today, and so need no date."""
        self.margin = margin
        """What every line for people begins with."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets its escape instead of a traceback.
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.wraps = self.console.is_terminal or page is not None
        """Whether texts are wrapped: in a terminal, and anywhere on a page of so many columns."""
        if not self.console.is_terminal:
            self.console = Console(highlight=False, markup=False, emoji=False, width=page or PIPE_WIDTH)

    def record(self, value: object) -> None:
        """Write one JSON line."""
        sys.stdout.write(terminal.safe_json(value) + "\n")
        sys.stdout.flush()

    def result(self, record: object, text: str | Text) -> None:
        """Write a result: its JSON record with `--json`, else its text for people."""
        self.record(record) if self.json else self.line(text)

    def line(self, text: str | Text = "", *, style: str = "") -> None:
        """Write one line, which the terminal wraps; what it holds can be copied whole."""
        line = Text(self.margin, style=style).append(terminal.visible(text))
        self.console.print(line, soft_wrap=True)

    def remark(self, text: str) -> None:
        """Write a line for people that is no part of the result."""
        Console(stderr=True, highlight=False, markup=False, emoji=False).print(
            terminal.visible(text), soft_wrap=True, style="dim"
        )

    def shortened(self, converter: DataConverter) -> None:
        """Say of which values only a short form was written."""
        if found := shortened(converter):
            values = "1 large value is" if len(found) == 1 else f"{len(found)} large values are"
            self.remark(
                f"{values} shown in short form; --store says where workers keep them. {next(iter(found.values()))}"
            )

    def hanging(self, prefix: Text, texts: Iterable[Text]) -> None:
        """Write lines after a prefix, wrapped so that what follows stands below the first."""
        width = prefix.cell_len
        for text in texts:
            wide = self.console.width - len(self.margin) - width
            wrap = self.wraps and wide >= MIN_COLUMNS
            for piece in text.wrap(self.console, wide) if wrap else [text]:
                piece.rstrip()
                self.line(prefix + piece)
                prefix = Text(" " * width)

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Write facts below a line, each with its label."""
        for label, text in facts:
            self.hanging(Text(f"  {label:8} ", style="dim"), [Text(text)])

    def event(self, event: Event, *, tag: Text | None = None, numbered: bool = False) -> None:
        """Write an event; `tag` stands between its time and what it says."""
        lines = [line.styled() for line in terminal.lines_of(event)]
        number = terminal.number(event) if numbered else ""
        prefix = Text(f"{number}{terminal.clock(event.timestamp, now=self.now())}  ", style="dim")
        if lines:
            self.hanging(prefix + tag if tag else prefix, lines)

    def show(self, shown: RenderableType) -> None:
        """Write what rich shows."""
        self.console.print(shown)

    def waits(self, calls: Sequence[PendingCall], target: Target) -> None:
        """Write what waits for a person, and how to answer it."""
        for call in calls:
            self.line()
            self.hanging(Text("waits for a person  ", style="bold"), [Text(terminal.asked(call), style="bold yellow")])
            self.facts(
                [
                    ("call", f"{call.function_call_id} of {terminal.safe(call.invocation_id)}"),
                    ("asked by", f"{terminal.safe(call.agent)}, for user {terminal.safe(call.user_id)}"),
                    *terminal.facts(call),
                    *policy_terms.terms(call),
                ]
            )
            for action in terminal.answers(call):
                self.command(action, target.answer_command(action, call.invocation_id, call.function_call_id))
            # Not for a credential, whose answer says only that it is in the store, nor where a token is needed.
            if "approve" in terminal.answers(call) and not (call.policy and call.policy.must_verify):
                self.command("or", target.signal_command(call))

    def command(self, label: str, parts: Sequence[str]) -> None:
        """Write a command to be copied: on one line where that fits, else one part on each."""
        prefix = Text(f"  {label:8} ", style="dim")
        whole = " ".join(parts)
        if len(self.margin) + prefix.cell_len + len(whole) <= self.console.width:
            parts = [whole]
        for index, part in enumerate(parts):
            more = " \\" if index < len(parts) - 1 else ""
            self.line(Text.assemble(prefix, "  " if index else "", part, more))
            prefix = Text(" " * prefix.cell_len)

    def table(self, table: Table) -> None:
        """Write a table."""
        self.console.print(Padding(table, (0, 0, 0, len(self.margin))))


def error(message: str) -> None:
    """Write the one line that says why a command cannot go on."""
    text = terminal.safe(" ".join(message.split()))
    Console(stderr=True, highlight=False, markup=False, emoji=False).print(
        Text.assemble(("waystation: ", "bold red"), text), soft_wrap=True
    )
