"""`waystation debug`: step through a recording in a terminal, or by commands that are piped in."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from rich.table import Table
from rich.text import Text
from temporalio.exceptions import ApplicationError

from waystation.cli.command_context import (
    Agents,
    At,
    Callbacks,
    Called,
    CommandContext,
    Exit,
    Problem,
    SessionSource,
    Source,
)
from waystation.cli.output import Output
from waystation.cli.recordings import read_prompts, read_recording
from waystation.cli.terminal_input import Lines
from waystation.core import WaystationError
from waystation.presentation import terminal
from waystation.presentation.cursor import Walk
from waystation.replay.prompt import Prompt
from waystation.replay.recording import Moment
from waystation.replay.workflow_debugger import WorkflowDebugger, break_at

PROMPT: StyleAndTextTuples = [("bold ansicyan", "(debug) ")]
_KEYS = {"right": "n", "left": "p", "down": "s", "up": "b", "home": "first", "end": "last", "enter": ""}
_AT_ONCE = "nspbwWtTcCioemh"
"""Letters that need no Enter; a word may still be typed where none has been."""
WORDS = {"next": "n", "previous": "p", "prev": "p", "step": "s", "back": "b", "wait": "w", "tool": "t", "change": "c"}
WORDS |= {"into": "i", "out": "o", "up": "o", "prompt": "m", "event": "e", "help": "h"}
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


async def debug(
    ctx: CommandContext,
    source: Source,
    at: At = None,
    called: Called = None,
    agents: Agents = None,
    callbacks: Callbacks = False,
    session: SessionSource = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="With --at: Python's debugger, in the workflow code that made event N.")
    ] = False,
) -> Exit:
    """Step through what happened, event by event, forwards and backwards; `h` lists the commands.

    Commands may also be piped in, one a line.
    """
    if pdb and at is None:
        raise typer.BadParameter("say at which event, with --at N", param_hint="--pdb")
    recording = await read_recording(ctx, source, called)
    if pdb:
        return await _break_at(recording.moment(at), ctx.out)
    walk = Walk(recording)
    if at is not None:
        walk.go(at)

    async def prompt() -> Prompt:
        numbers = [walk.moment.number]
        (found,) = await read_prompts(ctx, walk.recording, numbers, agents=agents, callbacks=callbacks, session=session)
        return found

    return await Debugger(walk, ctx.out, prompt, Lines(key_prompt)).run()


class Debugger:
    """A walk, and the commands that move it."""

    def __init__(self, walk: Walk, out: Output, prompt: Callable[[], Awaitable[Prompt]], lines: Lines) -> None:
        """`prompt` reads the prompt at the position of the walk."""
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
            try:
                await self._perform(command)
            except (WaystationError, ApplicationError) as error:
                self._out.line(str(error), style="yellow")
        return Exit.OK

    async def _next(self) -> str | None:
        with suppress(KeyboardInterrupt):
            return await self._lines.next()
        return None

    async def _perform(self, command: str) -> None:
        """Do what a command says.

        Raises:
            Problem: There is nowhere to go, or no such command.
        """
        word, _, rest = command.removeprefix(":").partition(" ")
        walk, argument = self._walk, rest.strip()
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
            "i": (lambda: walk.into(argument or None), "No agent that is recorded was called here."),
            "o": (walk.out, "This is the outermost invocation."),
        }
        word = WORDS.get(word, word)
        if command.startswith(("/", "?")):
            self._latest = command[0]
            self._search(command[1:], back=command[0] == "?")
        elif word in moves:
            self._latest = word
            move, problem = moves[word]
            if not move():
                raise Problem(Exit.UNKNOWN, problem)
        elif word in ("g", "go") or word.isdecimal():
            self._go(word if word.isdecimal() else argument)
        elif word == "first":
            walk.first()
        elif word == "last":
            walk.last()
        else:
            await self._print(word)
            return
        self._show()

    async def _print(self, word: str) -> None:
        moment = self._walk.moment
        match word:
            case "m":
                self._out.show(await self._prompt())
            case "e":
                self._out.line(terminal.safe_json(moment.event.to_json() if moment.event else {}, indent=2))
            case "state":
                self._out.line(terminal.state(moment.state))
            case "events" | "l":
                for event in moment.events:
                    self._out.event(event, numbered=True)
            case "pdb" if self._lines.typed:
                await _break_at(moment, self._out)
            case "pdb":
                text = "The lines piped in are commands of this; give --at N --pdb instead."
                raise Problem(Exit.USAGE, text)
            case "h":
                table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
                for names, text in COMMANDS:
                    table.add_row(Text(names, style="bold"), text)
                self._out.show(table)
            case _:
                raise Problem(Exit.USAGE, f"No command is named {terminal.safe(word)!r}; h lists them.")

    def _go(self, number: str) -> None:
        if not number.removeprefix("-").isdecimal():
            wrong = f"{terminal.safe(number)!r} is no number of an event" if number else "Say which event to go to"
            raise Problem(Exit.USAGE, f"{wrong}, such as: g 3")
        self._walk.go(int(number))

    def _search(self, text: str, *, back: bool) -> None:
        self._sought = text or self._sought
        if not self._sought:
            raise Problem(Exit.USAGE, "Say what to search for, such as: /refund")
        if not self._walk.search(self._sought, back=back):
            where = "before" if back else "after"
            raise Problem(Exit.UNKNOWN, f"{terminal.safe(self._sought)!r} is in nothing {where} this.")

    def _show(self) -> None:
        if self._lines.typed:
            self._out.console.clear()
        self._out.show(self._walk)
        if self._lines.typed:
            keys = "n next  p previous  w wait  t tool  c change  m prompt  /search  h help  q quit"
            self._out.show(Text(f"\n{keys}", style="dim"))  # wrapped at words


def key_prompt() -> PromptSession[str]:
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


async def _break_at(moment: Moment, out: Output) -> Exit:
    """Replay up to a moment, stop there in Python's debugger, and replay the rest once it is left.

    Raises:
        Problem: Values are missing without which the code would take other paths.
        NothingToBreakAt: There is nothing at that moment.
    """
    if lacking := len(moment.recording.lacking):
        text = f"{lacking} large values cannot be had, and the code may need them; --store says where they are kept."
        raise Problem(Exit.USAGE, text)

    def begin() -> WorkflowDebugger:
        out.remark(f"Just before event {moment.number} of {terminal.safe(moment.recording.id)}; q replays the rest.")
        return WorkflowDebugger()

    problem = await break_at(moment, begin)
    if problem:
        out.line(f"It does not replay: {terminal.safe(problem)}", style="red")
        return Exit.FAILED
    return Exit.OK
