"""`waystation debug`: step through a recording in a terminal, or by commands that are piped in."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from rich.table import Table
from rich.text import Text
from temporalio.exceptions import ApplicationError

from waystation.cli.exits import Exit
from waystation.cli.lines import Lines
from waystation.cli.output import Output
from waystation.core.errors import WaystationError
from waystation.presentation import terminal
from waystation.presentation.cursor import Walk
from waystation.replay.prompt import Prompt

PROMPT: StyleAndTextTuples = [("bold ansicyan", "(debug) ")]
_KEYS = {"right": "n", "left": "p", "down": "s", "up": "b", "home": "first", "end": "last", "enter": ""}
_AT_ONCE = "nspbwWtTcCioemh"
"""Letters that need no Enter; a word may still be typed where none has been."""
COMMANDS = (
    ("n, →", "next event; Enter does it again"),
    ("p, ←", "previous event"),
    ("s, ↓", "step: also where no event was made"),
    ("b, ↑", "step back"),
    ("g N", "go to event N; first and last (Home, End)"),
    ("/TEXT", "search forward; ?TEXT backward; either alone repeats"),
    ("w, t, c", "next wait, tool result, change of the state; capitals go back"),
    ("m", "the model's prompt there"),
    ("e", "the event as JSON"),
    (":pdb", "Python's debugger, in the workflow code that is about to do this"),
    (":state", "the whole state; :events all events so far"),
    ("i [CALL]", "into the agent that was called; o: out of it"),
    ("h", "these commands; q leaves"),
)


class Stepping:
    """A walk, and the commands that move it."""

    def __init__(self, walk: Walk, out: Output, prompt: Callable[[Walk], Awaitable[Prompt]], lines: Lines) -> None:
        """`prompt` makes the prompt where the walk stands."""
        self._walk, self._out, self._prompt, self._lines = walk, out, prompt, lines
        self._sought = ""
        self._latest = "n"

    async def run(self) -> Exit:
        """Show where the walk stands and take commands until there are no more."""
        self._show()
        while (line := await self._next()) is not None:
            command = line.strip() or self._latest
            if not self._lines.typed:
                self._out.line(Text(f"\n(debug) {terminal.safe(command)}", style="dim"))
            if command in ("q", "quit", ":q", "exit"):
                break
            await self._perform(command)
        return Exit.OK

    async def _next(self) -> str | None:
        with suppress(KeyboardInterrupt):
            return await self._lines.next()
        return None

    async def _perform(self, command: str) -> None:
        word, _, rest = command.removeprefix(":").partition(" ")
        if command[:1] in "/?" and command[:1]:
            self._latest = command[0]
            self._search(command[1:], back=command[0] == "?")
            return
        walk, given = self._walk, rest.strip()
        moves: dict[str, tuple[Callable[[], bool], str]] = {
            "n": (walk.next, "There is no further event."),
            "p": (walk.previous, "This is the beginning."),
            "s": (walk.step, "The recording ends here."),
            "b": (walk.back, "This is the beginning."),
            "w": (walk.next_wait, "No further wait begins or ends."),
            "t": (walk.next_tool, "No further tool reports."),
            "c": (walk.next_change, "The state does not change any more."),
            "W": (lambda: walk.next_wait(back=True), "No wait began or ended before."),
            "T": (lambda: walk.next_tool(back=True), "No tool reported before."),
            "C": (lambda: walk.next_change(back=True), "The state did not change before."),
            "i": (lambda: walk.into(given or None), "No agent that is recorded was called here."),
            "o": (walk.out, "This is the outermost invocation."),
        }
        words = {"next": "n", "previous": "p", "prev": "p", "step": "s", "back": "b", "wait": "w", "tool": "t"}
        words |= {"change": "c", "into": "i", "out": "o", "up": "o", "prompt": "m", "event": "e", "help": "h"}
        word = words.get(word, word)
        if word in moves:
            self._latest = word
            move, problem = moves[word]
            self._show() if move() else self._out.line(problem, style="yellow")
        elif word in ("g", "go") or word.isdecimal():
            self._go(word if word.isdecimal() else given)
        elif word in ("first", "last"):
            walk.first() if word == "first" else walk.last()
            self._show()
        else:
            await self._tell(word)

    async def _tell(self, word: str) -> None:
        moment = self._walk.moment
        match word:
            case "m":
                try:
                    self._out.show(await self._prompt(self._walk))
                except (WaystationError, ApplicationError) as error:
                    self._out.line(str(error), style="yellow")
            case "e":
                self._out.line(terminal.safe_json(moment.event.to_json() if moment.event else {}, indent=2))
            case "state":
                self._out.line(terminal.state(moment.state))
            case "events" | "l":
                for event in moment.events:
                    self._out.event(event, numbered=True)
            case "pdb" if self._lines.typed:
                await self._break()
            case "pdb":
                self._out.line("The lines piped in are commands of this; give --at N --pdb instead.", style="yellow")
            case "h":
                self._help()
            case _:
                self._out.line(f"No command is named {terminal.safe(word)!r}; h lists them.", style="yellow")

    async def _break(self) -> None:
        from waystation.cli.breaking import stop_at

        try:
            await stop_at(self._walk.moment, self._out)
        except WaystationError as error:
            self._out.line(str(error), style="yellow")

    def _go(self, number: str) -> None:
        try:
            self._walk.go(int(number))
        except ValueError:
            wrong = f"{terminal.safe(number)!r} is no number of an event" if number else "Say which event to go to"
            self._out.line(f"{wrong}, such as: g 3", style="yellow")
        except WaystationError as error:
            self._out.line(str(error), style="yellow")
        else:
            self._show()

    def _search(self, text: str, *, back: bool) -> None:
        self._sought = text or self._sought
        if not self._sought:
            self._out.line("Say what to search for, such as: /refund", style="yellow")
        elif self._walk.search(self._sought, back=back):
            self._show()
        else:
            where = "before" if back else "after"
            self._out.line(f"{terminal.safe(self._sought)!r} is in nothing {where} this.", style="yellow")

    def _show(self) -> None:
        if self._lines.typed:
            self._out.console.clear()
        self._out.show(self._walk)
        if self._lines.typed:
            keys = "n next  p previous  w wait  t tool  c change  m prompt  /search  h help  q quit"
            self._out.show(Text(f"\n{keys}", style="dim"))  # wrapped at words

    def _help(self) -> None:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for names, text in COMMANDS:
            table.add_row(Text(names, style="bold"), text)
        self._out.show(table)


def keys() -> PromptSession[str]:
    """Return a prompt at which letters and arrows act at once while nothing else has been typed."""
    bindings = KeyBindings()
    session: PromptSession[str] = PromptSession(PROMPT, key_bindings=bindings)
    empty = Condition(lambda: not session.default_buffer.text)

    def at_once(key: str, command: str) -> None:
        @bindings.add(key, filter=empty)
        def _(event: KeyPressEvent) -> None:
            event.app.exit(result=command)

    for key, command in (*_KEYS.items(), *((letter, letter) for letter in _AT_ONCE), ("q", "q"), ("c-d", "q")):
        at_once(key, command)
    return session
