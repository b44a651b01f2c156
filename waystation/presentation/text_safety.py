"""Text of models, tools and people as an approver may trust it: what cannot be seen is written out.

Whatever is shown of a value is JSON, so `\\u202e` always stands for the character: the six characters of that look
begin with two backslashes there. Spaces other than the usual one, direction marks, joiners, fillers and piles of
combining marks are all written so.
"""

import itertools
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from waystation.core import SECRET_NAMES, JsonObject

HEAD, TAIL = 1_500, 500
"""Characters that are shown of the beginning and of the end of a long text. The end is where things hide."""
JSON_HEAD, JSON_TAIL = 12_000, 4_000
MAX_MARKS = 3
"""Combining marks on one letter; more of them are a pile that covers its neighbours."""
LOOKED_AT = 100_000
"""Characters that remarks are made of."""

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U0001d159")
"""Letters, marks and symbols that look like nothing."""
_ALIKE = {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "FULLWIDTH", "MATHEMATICAL"}
"""Alphabets with letters that are taken for one another."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of shown text."""

    text: str
    kind: Literal["plain", "escaped", "gap"] = "plain"


@dataclass(frozen=True, slots=True)
class Shown:
    """A text or value as it is shown, and what a reader should know besides."""

    pieces: tuple[Piece, ...]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def value(given: object, *, head: int = HEAD, tail: int = TAIL) -> Shown:
    """Return a JSON value as the JSON that stands for it."""
    text = json.dumps(given, ensure_ascii=False, indent=2)
    return Shown(tuple(pieces_of(text, head, tail)), tuple(_remarks(given if isinstance(given, str) else text)))


def text(given: str, *, head: int = HEAD, tail: int = TAIL) -> Shown:
    """Return a name, or something that was said, as it stands; its lines stay lines."""
    return Shown(tuple(pieces_of(given.replace("\r\n", "\n"), head, tail)), tuple(_remarks(given)))


def line(given: str, length: int = 120) -> str:
    """Return a text on one line, clipped."""
    shown = "".join(piece.text for piece in _pieces(given[: length + 1])).replace("\n", "\\n")
    return shown if len(given) <= length else f"{shown[: length - 1]}…"


def call(tool: str, args: JsonObject, length: int = 200) -> str:
    """Return a call on one line, clipped, without secret values."""
    if set(args) == {"omitted_bytes"}:  # a memo has only small arguments
        return line(f"{tool}(…), {args['omitted_bytes']:,} bytes of arguments", length)
    values = (f"{name}={'…' if SECRET_NAMES.search(name) else _short(value)}" for name, value in args.items())
    return line(f"{tool}({', '.join(values)})", length)


def _short(value: object) -> str:
    match value:
        case dict() if value:
            return "{…}"
        case list() if value:
            return f"[{len(value)}]"
        case _:
            text = json.dumps(value, ensure_ascii=False)
            return text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}"


def duration(seconds: float, *, short: bool = False) -> str:
    """Return a length of time, roughly, such as `36 hours`; `short` as in `36 h`."""
    for symbol, unit, length in (("d", "day", 86_400), ("h", "hour", 3_600), ("min", "minute", 60)):
        if seconds == length or seconds >= 2 * length:
            return f"{seconds / length:.0f} {symbol if short else f'{unit}s' if seconds > length else unit}"
    return f"{round(seconds, 1):g} s" if seconds >= 1 else f"{max(seconds, 0) * 1000:.0f} ms"


def escaped(char: str) -> str:
    """Return a character as JSON writes it when it writes ASCII."""
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def hides(char: str) -> bool:
    """Whether a character cannot be seen, steers its neighbours, or passes for a space."""
    if char in " \n":
        return False
    is_variation_selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return char in _BLANK or unicodedata.category(char) in _HIDDEN or is_variation_selector


def pieces_of(text: str, head: int, tail: int) -> Iterator[Piece]:
    """Yield a text, clipped, with what cannot be seen written out."""
    left_out = len(text) - head - tail
    if left_out <= 0:
        yield from _pieces(text)
        return
    yield from _pieces(text[:head])
    yield Piece(f" … {left_out:,} of {len(text):,} characters are left out here … ", "gap")
    yield from _pieces(text[-tail:])


def _pieces(text: str) -> Iterator[Piece]:
    for hidden, pairs in itertools.groupby(zip(_hidden(text), text, strict=True), key=itemgetter(0)):
        chars = [char for _, char in pairs]
        yield Piece("".join(map(escaped, chars)), "escaped") if hidden else Piece("".join(chars))


def _hidden(text: str) -> Iterator[bool]:
    """Yield of each character whether it is written out."""
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        yield hides(char) or marks > MAX_MARKS


def _remarks(text: str) -> Iterator[str]:
    if len(text) > HEAD + TAIL:
        yield f"{len(text):,} characters"
    looked_at = text[:LOOKED_AT]
    if hidden := sum(hides(char) for char in looked_at):
        yield f"{hidden:,} of its characters cannot be seen, and {'are' if hidden > 1 else 'is'} written out"
    for word in _mixed(looked_at):
        yield f"a word with letters of several alphabets, which may look like another one: {word}"
        return


def _mixed(text: str) -> Iterator[str]:
    """Yield words whose letters are of several alphabets, each with what is not ASCII escaped."""
    for word in re.findall(r"\w*[^\W\d_]\w*", text):
        alphabets = {unicodedata.name(char, "").partition(" ")[0] for char in word if char.isalpha()}
        if not word.isascii() and len(alphabets & _ALIKE) > 1:
            yield "".join(char if char.isascii() else escaped(char) for char in word[:40])
