"""What somebody types in a terminal: answers to questions, a text in an editor, lines."""

import asyncio
import contextlib
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
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
FURTHER = "  "
"""Before each further line of a message."""
NOTHING_SENT = "Nothing was sent."


class Person:
    """Somebody who types."""

    def ask(self, prompt: str, default: str = "") -> str:
        """Return one line, or `default` when it is empty.

        Raises:
            Problem: There are no more lines.
        """
        try:
            return input(f"{prompt}{f' [{default}]' if default else ''}: ").strip() or default
        except EOFError:
            raise Problem(Exit.USAGE, NOTHING_SENT) from None

    def agrees(self, prompt: str) -> bool:
        """Whether the person says yes; anything else is no."""
        return self.ask(f"{prompt} [y/N]").lower() in ("y", "yes")

    def edited(self, text: str) -> str | None:
        """Return a text as the person left it in their editor; None when no editor is configured.

        Raises:
            Problem: The editor cannot be started, or failed.
        """
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            return None
        with TemporaryDirectory(prefix="waystation-") as folder:  # which nobody else may read
            file = Path(folder) / "arguments.json"
            file.write_text(text, encoding="utf-8")
            try:
                subprocess.run([*shlex.split(editor), str(file)], check=True)
                return file.read_text(encoding="utf-8")
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                raise Problem(Exit.USAGE, f"The editor {editor!r} failed: {error}. {NOTHING_SENT}") from None

    def edited_into(self, read: Callable[[str], T], out: Output, text: str, *, undone: str) -> T | None:
        """Have a text edited until `read` accepts it; None when no editor is configured.

        Raises:
            Problem: The person gives up; `undone` says what was not done.
        """
        while (edited := self.edited(text)) is not None:
            try:
                return read(edited)
            except (ValueError, WaystationError) as error:
                out.line(terminal.safe(f"{str(error).removesuffix('.')}."), style="red")
            if not self.agrees("Edit it again?"):
                raise Problem(Exit.FAILED, undone)
            text = edited
        return None


def present() -> Person | None:
    """Return the person; None when input or output is no terminal."""
    return Person() if sys.stdin.isatty() and sys.stdout.isatty() else None


class Lines:
    """Yields lines; None when there will be no more."""

    def __init__(self, session: Callable[[], PromptSession[str]] | None = None) -> None:
        """`session` gives what a person types into; by default what conversations use."""
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        """Whether a person types in a terminal, who sees what is typed."""
        self._prompt: PromptSession[str] | None = (session or message_prompt)() if self.typed else None
        self._piped: asyncio.Queue[str | None] | None = None

    async def next(self) -> str | None:
        """Return the next line, without its end.

        Raises:
            KeyboardInterrupt: Ctrl-C was typed.
        """
        if self._prompt is not None:
            # What is written meanwhile is shown above the line that is being typed.
            with patch_stdout(raw=True):
                try:
                    return await self._prompt.prompt_async()
                except EOFError:
                    return None
        if self._piped is None:
            self._piped = asyncio.Queue()
            # Not in the loop's pool, for whose threads asyncio waits at the end: this one may wait for a line for ever.
            arguments = asyncio.get_running_loop(), self._piped
            threading.Thread(target=_read_lines, args=arguments, daemon=True).start()
        return await self._piped.get()


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants more
        with contextlib.suppress(ValueError, OSError):  # closed, or no text
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\r\n"))
        loop.call_soon_threadsafe(lines.put_nowait, None)


def message_prompt() -> PromptSession[str]:
    """Return a prompt at which Enter sends what was typed, and Alt-Enter begins a further line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(PROMPT, multiline=True, prompt_continuation=FURTHER, key_bindings=keys)
