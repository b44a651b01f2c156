"""The `waystation debug` command: step through a recording, in a terminal or with commands piped in."""

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
    CommandProblem,
    Exit,
    SessionSource,
    Source,
)
from waystation.cli.output import Output
from waystation.cli.recordings import read_prompts, read_recording
from waystation.cli.terminal_input import Lines
from waystation.core.errors import WaystationError
from waystation.core.secrets import hide_named_secrets
from waystation.presentation import terminal
from waystation.replay import Cursor, Moment, Prompt
from waystation.replay.workflow_debugger import WorkflowDebugger, break_at

PROMPT: StyleAndTextTuples = [("bold ansicyan", "(debug) ")]
_KEYS = {"right": "n", "left": "p", "down": "s", "up": "b", "home": "first", "end": "last", "enter": ""}
_INSTANT = "nspbwWtTcCioemh"
"""Single-letter commands that run without Enter while the prompt is empty."""
WORDS = {"next": "n", "previous": "p", "prev": "p", "step": "s", "back": "b", "wait": "w", "tool": "t", "change": "c"}
WORDS |= {"into": "i", "out": "o", "up": "o", "prompt": "m", "event": "e", "help": "h"}
COMMANDS = (
    ("n, →", "next event; Enter repeats the last command"),
    ("p, ←", "previous event"),
    ("s, ↓", "next step, including steps without an event"),
    ("b, ↑", "previous step"),
    ("g N", "go to event N; first and last (Home, End)"),
    ("/TEXT", "search forward; ?TEXT backward; / or ? repeats"),
    ("w, t, c", "next wait, tool result, state change; W, T, C go back"),
    ("m", "the model's prompt at this event"),
    ("e", "event as JSON"),
    (":pdb", "open Python's debugger in the workflow code just before this event"),
    (":state", "the complete state; :events all events so far"),
    ("i [CALL]", "enter the called agent; o goes back out"),
    ("h", "this help; q quits"),
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
        bool, typer.Option("--pdb", help="With --at: open Python's debugger in the workflow code that created event N.")
    ] = False,
) -> Exit:
    """Step through an invocation event by event, forward and backward. Type `h` to list the commands.

    You can also pipe commands in, one per line.
    """
    if pdb and at is None:
        raise typer.BadParameter("requires an event number; pass --at N as well", param_hint="--pdb")
    recording = await read_recording(ctx, source, called)
    if pdb:
        return await _break_at(recording.moment(at), ctx.out)
    cursor = Cursor(recording)
    if at is not None:
        cursor.go(at)

    async def prompt() -> Prompt:
        numbers = [cursor.moment.number]
        prompts = await read_prompts(
            ctx, cursor.recording, numbers, agents=agents, callbacks=callbacks, session=session
        )
        return prompts[0]

    return await Debugger(cursor, ctx.out, prompt, Lines(create_key_prompt)).run()


class Debugger:
    """An interactive debugger: a cursor in a recording and the commands that move it."""

    def __init__(self, cursor: Cursor, out: Output, prompt: Callable[[], Awaitable[Prompt]], lines: Lines) -> None:
        """Create a debugger; `prompt` returns the model's prompt at the cursor."""
        self._cursor, self._out, self._prompt, self._lines = cursor, out, prompt, lines
        self._search_text = ""
        self._last_command = "n"
        self._moves: dict[str, tuple[Callable[[], bool], str]] = {
            "n": (cursor.next, "There is no next event."),
            "p": (cursor.previous, "This is the beginning of the recording."),
            "s": (cursor.step, "This is the end of the recording."),
            "b": (cursor.back, "This is the beginning of the recording."),
            "w": (cursor.next_wait, "No call starts or stops waiting after this point."),
            "t": (cursor.next_tool, "There is no later tool result."),
            "c": (cursor.next_change, "The state does not change after this point."),
            "W": (lambda: cursor.next_wait(back=True), "No call starts or stops waiting before this point."),
            "T": (lambda: cursor.next_tool(back=True), "There is no earlier tool result."),
            "C": (lambda: cursor.next_change(back=True), "The state does not change before this point."),
            "o": (cursor.out, "This is already the outermost invocation."),
        }

    async def run(self) -> Exit:
        """Show where the cursor is, then run commands until the user quits or the input ends."""
        self._show()
        while (line := await self._next()) is not None:
            command = line.strip() or self._last_command
            if not self._lines.typed:
                self._out.line(Text(f"\n(debug) {terminal.escape(command)}", style="dim"))
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
        """Run a command.

        Raises:
            Problem: The command is not valid, or there is nothing to move to.
            NoSuchEvent: The recording has no event with the number to go to.
        """
        word, _, rest = command.removeprefix(":").partition(" ")
        cursor, argument, word = self._cursor, rest.strip(), WORDS.get(word, word)
        if command.startswith(("/", "?")):
            self._last_command = command[0]
            self._search(command[1:], back=command[0] == "?")
        elif word in self._moves:
            self._last_command = word
            move, problem = self._moves[word]
            if not move():
                raise CommandProblem(Exit.UNKNOWN, problem)
        elif word == "i":
            self._last_command = word
            if not cursor.into(argument or None):
                raise CommandProblem(Exit.UNKNOWN, "This event calls no agent that has a recording.")
        elif word in ("g", "go") or word.isdecimal():
            number = word if word.isdecimal() else argument
            if not number.removeprefix("-").isdecimal():
                problem = f"{terminal.escape(number)!r} is not an event number" if number else "Enter an event number"
                raise CommandProblem(Exit.USAGE, f"{problem}, for example: g 3")
            cursor.go(int(number))
        elif word in ("first", "last"):
            cursor.go(cursor.recording.events_before if word == "first" else None)
        else:
            await self._print(word)
            return
        self._show()

    async def _print(self, word: str) -> None:
        moment = self._cursor.moment
        match word:
            case "m":
                self._out.show(await self._prompt())
            case "e":
                record = moment.event.to_json() if moment.event else {}
                self._out.line(terminal.format_json(hide_named_secrets(record), indent=2))
            case "state":
                self._out.line(terminal.format_state(moment.state))
            case "events" | "l":
                for event in moment.events:
                    self._out.event(event, numbered=True)
            case "pdb" if self._lines.typed:
                await _break_at(moment, self._out)
            case "pdb":
                raise CommandProblem(
                    Exit.USAGE, ":pdb works only in a terminal. Use `waystation debug --at N --pdb` instead."
                )
            case "h":
                table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
                for names, text in COMMANDS:
                    table.add_row(Text(names, style="bold"), text)
                self._out.show(table)
            case _:
                raise CommandProblem(
                    Exit.USAGE, f"Unknown command {terminal.escape(word)!r}. Type h to list the commands."
                )

    def _search(self, text: str, *, back: bool) -> None:
        self._search_text = text or self._search_text
        if not self._search_text:
            raise CommandProblem(Exit.USAGE, "Enter the text to search for, such as: /refund")
        if not self._cursor.search(self._search_text, back=back):
            direction = "before" if back else "after"
            raise CommandProblem(
                Exit.UNKNOWN, f"{terminal.escape(self._search_text)!r} was not found {direction} this event."
            )

    def _show(self) -> None:
        if self._lines.typed:
            self._out.console.clear()
        self._out.show(self._cursor)
        if self._lines.typed:
            keys = "n next  p previous  w wait  t tool  c change  m prompt  /search  h help  q quit"
            self._out.show(Text(f"\n{keys}", style="dim"))  # wrapped at words


def create_key_prompt() -> PromptSession[str]:
    """Return a prompt that runs single letters and arrow keys as commands while the line is empty."""
    bindings = KeyBindings()
    session: PromptSession[str] = PromptSession(PROMPT, key_bindings=bindings)
    is_empty = Condition(lambda: not session.default_buffer.text)

    def bind(key: str, command: str) -> None:
        @bindings.add(key, filter=is_empty)
        def _(event: KeyPressEvent) -> None:
            event.app.exit(result=command)

    for key, command in (*_KEYS.items(), *zip(_INSTANT, _INSTANT, strict=True), ("q", "q"), ("c-d", "q")):
        bind(key, command)
    return session


async def _break_at(moment: Moment, out: Output) -> Exit:
    """Replay up to a moment, stop there in Python's debugger, and then replay the rest.

    Return `Exit.FAILED` if the history does not replay.

    Raises:
        Problem: Large values are missing, so the code could take other paths.
        NoBreakpoint: No workflow code runs at that moment.
    """
    if missing := len(moment.recording.lacking):
        raise CommandProblem(
            Exit.USAGE,
            f"{missing} large values are missing, and the workflow code may need them. Name the workers' store with "
            "--store.",
        )

    def begin() -> WorkflowDebugger:
        out.remark(f"Just before event {moment.number} of {terminal.escape(moment.recording.id)}; q replays the rest.")
        return WorkflowDebugger()

    problem = await break_at(moment, begin)
    if problem:
        out.line(f"The history does not replay: {terminal.escape(problem)}", style="red")
        return Exit.FAILED
    return Exit.OK
