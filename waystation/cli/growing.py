"""Text that grows while a model says it, for people: each of it once."""

from rich.text import Text

from waystation.cli.filling import Filling
from waystation.cli.output import Output
from waystation.core.event import Event, text_of
from waystation.core.partial import PARTIAL
from waystation.core.payload import JsonObject
from waystation.presentation import terminal

CLOCK = len("00:00:00  ")


class GrowingText:
    """Writes the events of a stream: pieces as they come, and of recorded events what the pieces have not said."""

    def __init__(self, out: Output, *, numbered: bool = False) -> None:
        """Write to `out`; with the numbers of events, if wanted."""
        self._out, self._numbered = out, numbered
        self._said: dict[int, str | None] = {}
        """By model call: what was written of it; None when some was missed."""
        self._open: int | None = None
        """The model call whose line is not finished."""
        self._filling: Filling | None = None
        """The text of that line."""
        self._complete: str | None = None

    def write(self, event: Event) -> None:
        """Write one event."""
        if event.partial:
            self._partial(event, dict((event.custom_metadata or {}).get(PARTIAL) or {}))
            return
        said, self._complete = self._complete, None
        text = text_of(event.content)
        if said and self._filling and text.startswith(said):
            self._filling.add(text[len(said) :].rstrip())
            event = _without_text(event)
        self.interrupt()
        self._out.event(event, numbered=self._numbered)

    def interrupt(self) -> None:
        """Finish the line, so that something else can be written."""
        if self._filling is not None:
            self._filling.end()
        self._open = self._filling = None

    def _partial(self, event: Event, facts: JsonObject) -> None:
        number = int(facts.get("model_call") or 0)
        if facts.get("void"):
            self.interrupt()
            self._out.line(
                Text(f"{self._hanging(event)}void: attempt {facts.get('attempt')} was given up", style="dim")
            )
            self._said.pop(number, None)
        elif facts.get("complete"):
            # What was begun before the line of another call is not one piece with what follows.
            self._complete = self._said.pop(number, None) if self._open == number else None
        else:
            self._grow(event, number, int(facts.get("offset") or 0))

    def _grow(self, event: Event, number: int, offset: int) -> None:
        piece = text_of(event.content)
        said = self._said.get(number, "")
        missed = said is None or offset != len(said)
        if self._filling is None or self._open != number:
            self.interrupt()
            self._open = number
            before = terminal.number(event) if self._numbered else ""
            clock = terminal.clock(event.timestamp, now=self._out.now())
            prefix = Text(f"{self._out.margin}{before}{clock}  ", style="dim")
            prefix.append(terminal.safe(event.author), "not dim bold").append(": " if offset == 0 else ": …", "not dim")
            self._out.console.print(prefix, end="", soft_wrap=True)
            self._filling = Filling(self._out, prefix.cell_len - len(self._out.margin), self._hanging(event))
        elif missed:
            self._filling.add("…")
        self._filling.add(piece)
        self._said[number] = None if missed or said is None else said + piece

    def _hanging(self, event: Event) -> str:
        return " " * (CLOCK + (len(terminal.number(event)) if self._numbered else 0))


def _without_text(event: Event) -> Event:
    parts = [p for p in (event.content or {}).get("parts") or () if p.get("thought") or "text" not in p]
    return event.model_copy(update={"content": {**(event.content or {}), "parts": parts}})
