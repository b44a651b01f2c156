"""Input from the user: answers to questions, text edited in an editor, and lines from a terminal or a pipe."""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from waystation.cli.command_context import CommandProblem, Exit
from waystation.cli.output import Output
from waystation.core.errors import WaystationError
from waystation.presentation import terminal

T = TypeVar("T")

PROMPT: StyleAndTextTuples = [("bold ansicyan", "> ")]
CONTINUATION = "  "
NOTHING_SENT = "Nothing was sent."


class TerminalUser:
    """The user at the terminal, who can answer questions and edit text."""

    def ask(self, prompt: str, default: str = "") -> str:
        """Return the line that the user types, or `default` if the line is empty.

        Discard anything typed before the question appeared, because it cannot be an answer to the question.

        Raises:
            Problem: The input has ended, or the user pressed Ctrl-C.
        """
        try:
            with _interruptible():
                _discard_input()
                return input(f"{prompt}{f' [{default}]' if default else ''}: ").strip() or default
        except EOFError:
            raise CommandProblem(Exit.USAGE, NOTHING_SENT) from None
        except KeyboardInterrupt:
            raise CommandProblem(Exit.INTERRUPTED, f"Interrupted. {NOTHING_SENT}") from None

    def agrees(self, prompt: str) -> bool:
        """Ask a yes-or-no question, and return whether the answer is yes. Any other input means no."""
        return self.ask(f"{prompt} [y/N]").lower() in ("y", "yes")

    def edit(self, text: str) -> str | None:
        """Open text in the user's editor and return the edited text, or None if no editor is configured.

        Raises:
            Problem: The editor could not be started, or failed.
        """
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            return None
        with TemporaryDirectory(prefix="waystation-") as folder:  # only the current user can read it
            file = Path(folder) / "arguments.json"
            file.write_text(text, encoding="utf-8")
            try:
                subprocess.run([*shlex.split(editor), str(file)], check=True)
                return file.read_text(encoding="utf-8")
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                raise CommandProblem(Exit.USAGE, f"The editor {editor!r} failed: {error}. {NOTHING_SENT}") from None

    def edit_until(self, parse: Callable[[str], T], out: Output, text: str, *, on_stop: str) -> T | None:
        """Let the user edit text until `parse` accepts it, and return what `parse` returns.

        Return None if no editor is configured.

        Raises:
            Problem: The editor failed, or the user stopped editing, in which case the error message is `on_stop`.
        """
        while (edited := self.edit(text)) is not None:
            try:
                return parse(edited)
            except (ValueError, WaystationError) as error:
                out.line(terminal.escape(f"{str(error).removesuffix('.')}."), style="red")
            if not self.agrees("Edit it again?"):
                raise CommandProblem(Exit.FAILED, on_stop)
            text = edited
        return None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt immediately.

    By default, asyncio only cancels the task, which takes effect at the next `await`. After a blocking `input()`, the
    next `await` is the request that sends the answer, so the user could not stop it.
    """
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _discard_input() -> None:
    """Discard everything typed so far that has not been read yet."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # on Windows, or if the input is not a terminal
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def find_person() -> TerminalUser | None:
    """Return the user at the terminal, or None if the input or output is not a terminal."""
    return TerminalUser() if sys.stdin.isatty() and sys.stdout.isatty() else None


class Lines:
    """A reader of lines from a terminal or a pipe."""

    def __init__(self, create_prompt: Callable[[], PromptSession[str]] | None = None) -> None:
        """Create a reader of lines.

        Args:
            create_prompt: Creates the prompt to use in a terminal. Defaults to the prompt for chat messages.
        """
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        """Whether a user types the lines in a terminal, rather than piping them in."""
        self._prompt: PromptSession[str] | None = (create_prompt or create_message_prompt)() if self.typed else None
        self._piped: asyncio.Queue[str | None] | None = None

    async def next(self) -> str | None:
        """Return the next line without its line break, or None at the end of the input.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C.
        """
        if self._prompt is not None:
            with patch_stdout(raw=True):  # output appears above the line that is being typed
                try:
                    return await self._prompt.prompt_async()
                except EOFError:
                    return None
        if self._piped is None:
            self._piped = asyncio.Queue()
            # Do not use the event loop's thread pool: asyncio waits for its threads at the end, and this one may block
            # forever.
            threading.Thread(target=_read_lines, args=(asyncio.get_running_loop(), self._piped), daemon=True).start()
        return await self._piped.get()


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop is closed, so the lines are no longer needed
        with contextlib.suppress(ValueError, OSError):  # standard input is closed, or is not valid text
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\r\n"))
        loop.call_soon_threadsafe(lines.put_nowait, None)


def create_message_prompt() -> PromptSession[str]:
    """Return a prompt where Enter sends the message and Alt-Enter starts a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(PROMPT, multiline=True, prompt_continuation=CONTINUATION, key_bindings=keys)
