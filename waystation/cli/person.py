"""The person in front of a terminal, who is asked for what a command lacks."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from waystation.cli.exits import Exit, Problem

NOTHING_SENT = "Nothing was sent."


class Person:
    """Somebody who types."""

    def ask(self, prompt: str, default: str = "") -> str:
        """Return one line; what is offered when it is empty.

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
        """Return a text as the person left it in an editor of theirs; None when they have named none.

        Raises:
            Problem: It cannot be started, or says that it failed.
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


def present() -> Person | None:
    """Return the person; None when input or output is no terminal."""
    return Person() if sys.stdin.isatty() and sys.stdout.isatty() else None
