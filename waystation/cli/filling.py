"""A text that comes in pieces, in lines that fit the terminal."""

import re

from rich.cells import cell_len
from rich.text import Text

from waystation.cli.output import MIN_COLUMNS, Output
from waystation.presentation import terminal

_WORD = re.compile(r"\s*\S+|\s+\Z")
"""A word, and what stands before it."""


class Filling:
    """Writes a text that begins in some column, and goes on below that or another one."""

    def __init__(self, out: Output, column: int, indent: str) -> None:
        """`column` is where the text begins, `indent` what further lines begin with, the margin left out."""
        self._out, self._indent = out, out.margin + indent
        self._begins = self._column = len(out.margin) + column
        self._wraps = out.wraps and out.console.width - len(self._indent) >= MIN_COLUMNS
        self._held = ""
        """A word that has perhaps not ended yet: it may have to stand on the next line."""

    def add(self, text: str) -> None:
        """Write a further piece, but for its last word."""
        first, *others = text.split("\n")
        self._fill(first)
        for line in others:
            self._put(self._held)
            self._held = ""
            self._break()
            self._fill(line)
        self._out.console.file.flush()

    def end(self) -> None:
        """Write what was held back, and end the line."""
        self._put(self._held.rstrip())
        self._out.line()

    def _fill(self, text: str) -> None:
        text = self._held + terminal.safe(text.removesuffix("\r").expandtabs(4))
        self._held = ""
        if not self._wraps:
            self._write(text)
            return
        *words, self._held = _WORD.findall(text) or [""]
        for word in words:
            self._put(word)

    def _put(self, word: str) -> None:
        if self._overflows(word) and self._column > self._begins:
            self._break()
            word = word.lstrip()
        while self._overflows(word):  # longer than a line
            fitting = next(n for n in range(1, len(word)) if self._overflows(word[: n + 1]))
            self._write(word[:fitting])
            self._break()
            word = word[fitting:]
        self._write(word)

    def _overflows(self, word: str) -> bool:
        return self._wraps and len(word) > 1 and self._column + cell_len(word) > self._out.console.width

    def _break(self) -> None:
        self._write(f"\n{self._indent}")
        self._begins = self._column = len(self._indent)

    def _write(self, text: str) -> None:
        self._out.console.print(Text(text), end="", soft_wrap=True)
        self._column += cell_len(text)
