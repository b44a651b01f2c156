"""What somebody types, message by message: in a terminal, or piped in, where each line is one."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

PROMPT: StyleAndTextTuples = [("bold ansicyan", "> ")]
FURTHER = "  "
"""Before each further line of a message."""


class Lines:
    """Yields lines; None when there will be no more."""

    def __init__(self, session: Callable[[], PromptSession[str]] | None = None) -> None:
        """`session` gives what a person types into; by default what conversations use."""
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        """Whether a person types in a terminal, who sees what is typed."""
        self._prompt: PromptSession[str] | None = (session or prompt)() if self.typed else None
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
            threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        return await self._piped.get()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._piped is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants more
            for line in self._lines():
                loop.call_soon_threadsafe(self._piped.put_nowait, line)
            loop.call_soon_threadsafe(self._piped.put_nowait, None)

    def _lines(self) -> Iterator[str]:
        with contextlib.suppress(ValueError, OSError):  # closed, or no text
            for line in sys.stdin:
                yield line.rstrip("\r\n")


def prompt() -> PromptSession[str]:
    """Return a prompt at which Enter sends what was typed, and Alt-Enter begins a further line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(PROMPT, multiline=True, prompt_continuation=FURTHER, key_bindings=keys)
