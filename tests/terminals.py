"""Run a program in a terminal as a person does."""

import asyncio
import os
import pty
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.paths import ROOT

Typed = bytes | Callable[[], bytes]
"""Keys, or a function that does something else first and returns the keys to type after it."""
CURSOR_QUESTION = "\x1b[6n"
CURSOR_ANSWER = b"\x1b[1;1R"


async def in_terminal(
    *arguments: str,
    typed: Sequence[tuple[str, Typed]],
    folder: Path = ROOT,
    environment: Mapping[str, str] = os.environ,
    limit_s: float = 30,
) -> tuple[int, str]:
    """Run Python in a terminal; type each text once the text before it is on the screen.

    Returns:
        The exit code and all output.
    """
    parent, child = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env={**environment, **variables},
    )
    os.close(child)
    screen, position = "", 0
    try:
        async with asyncio.timeout(limit_s):
            for awaited, keys in typed:
                while awaited not in screen[position:]:
                    screen += await _read(parent)
                position = len(screen)
                os.write(parent, keys if isinstance(keys, bytes) else keys())
            while chunk := await _read(parent):
                screen += chunk
            code = await process.wait()
    except TimeoutError:
        raise AssertionError(f"The text is not on the screen: {screen}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(parent)
    return code, screen


async def _read(terminal: int) -> str:
    """Return the next output, or an empty string when no program has the terminal open."""
    try:
        chunk = (await asyncio.to_thread(os.read, terminal, 65_536)).decode(errors="replace")
    except OSError:  # Linux reports the end in this way
        return ""
    if CURSOR_QUESTION in chunk:
        os.write(terminal, CURSOR_ANSWER)
    return chunk
