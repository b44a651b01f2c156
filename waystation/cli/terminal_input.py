"""Input from a terminal: answers to questions, text edited in an editor, and lines."""

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

from waystation.cli.command_context import Exit, Problem
from waystation.cli.output import Output
from waystation.core import WaystationError
from waystation.presentation import terminal

T = TypeVar("T")

PROMPT: StyleAndTextTuples = [("bold ansicyan", "> ")]
CONTINUATION = "  "
NOTHING_SENT = "Nothing was sent."


class Person:
    """The person at the terminal."""

    def ask(self, prompt: str, default: str = "") -> str:
        """Return the line that the person types; `default` if it is empty.

        Input from before the question is discarded, because the person has not read the question yet.

        Raises:
            Problem: The input has ended, or Ctrl-C was typed.
        """
        try:
            with _interruptible():
                _discard_input()
                return input(f"{prompt}{f' [{default}]' if default else ''}: ").strip() or default
        except EOFError:
            raise Problem(Exit.USAGE, NOTHING_SENT) from None
        except KeyboardInterrupt:
            raise Problem(Exit.INTERRUPTED, f"Interrupted. {NOTHING_SENT}") from None

    def agrees(self, prompt: str) -> bool:
        """Whether the person answers yes; anything else means no."""
        return self.ask(f"{prompt} [y/N]").lower() in ("y", "yes")

    def edit(self, text: str) -> str | None:
        """Open a text in the person's editor and return the result; None if no editor is configured.

        Raises:
            Problem: The editor cannot be started, or failed.
        """
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            return None
        with TemporaryDirectory(prefix="waystation-") as folder:  # readable by its owner only
            file = Path(folder) / "arguments.json"
            file.write_text(text, encoding="utf-8")
            try:
                subprocess.run([*shlex.split(editor), str(file)], check=True)
                return file.read_text(encoding="utf-8")
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                raise Problem(Exit.USAGE, f"The editor {editor!r} failed: {error}. {NOTHING_SENT}") from None

    def edit_until(self, parse: Callable[[str], T], out: Output, text: str, *, on_stop: str) -> T | None:
        """Have a text edited until `parse` accepts it; None if no editor is configured.

        Raises:
            Problem: The person stops editing; its message is `on_stop`.
        """
        while (edited := self.edit(text)) is not None:
            try:
                return parse(edited)
            except (ValueError, WaystationError) as error:
                out.line(terminal.escape(f"{str(error).removesuffix('.')}."), style="red")
            if not self.agrees("Edit it again?"):
                raise Problem(Exit.FAILED, on_stop)
            text = edited
        return None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt at once.

    asyncio's handler cancels the task, which notices at its next `await`; after a blocking question that is the request
    that sends the answer.
    """
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _discard_input() -> None:
    """Discard what was typed before now."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; or the input is not a terminal
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def find_person() -> Person | None:
    """Return the person at the terminal; None if input or output is not a terminal."""
    return Person() if sys.stdin.isatty() and sys.stdout.isatty() else None


class Lines:
    """Reads lines from a terminal or a pipe."""

    def __init__(self, create_prompt: Callable[[], PromptSession[str]] | None = None) -> None:
        """Read lines.

        Args:
            create_prompt: Creates the prompt of a terminal; by default that of conversations.
        """
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        """Whether a person types the lines in a terminal."""
        self._prompt: PromptSession[str] | None = (create_prompt or create_message_prompt)() if self.typed else None
        self._piped: asyncio.Queue[str | None] | None = None

    async def next(self) -> str | None:
        """Return the next line without its line break; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C was typed.
        """
        if self._prompt is not None:
            with patch_stdout(raw=True):  # output appears above the line that is being typed
                try:
                    return await self._prompt.prompt_async()
                except EOFError:
                    return None
        if self._piped is None:
            self._piped = asyncio.Queue()
            # Not in the loop's pool: asyncio waits for its threads at the end, and this one may block forever.
            threading.Thread(target=_read_lines, args=(asyncio.get_running_loop(), self._piped), daemon=True).start()
        return await self._piped.get()


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the lines are no longer needed
        with contextlib.suppress(ValueError, OSError):  # standard input is closed, or not text
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
