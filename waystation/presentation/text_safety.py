"""Display text from models, tools and people so that approvers can trust what they see.

Invisible characters are escaped. Values are shown as JSON, where `\\u202e` always stands for the character itself,
because JSON doubles the backslash in literal text. Unusual spaces, direction marks, joiners, fillers and stacks of
combining marks are escaped the same way.
"""

import itertools
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from waystation.core.payload import JsonObject
from waystation.core.secrets import hide_named_secrets, is_hidden

HEAD, TAIL = 1_500, 500
"""Number of characters to show from the beginning and from the end of a long text.

The end is always shown, because malicious content is often hidden there.
"""
JSON_HEAD, JSON_TAIL = 12_000, 4_000
MAX_MARKS = 3
"""Maximum number of combining marks on a letter. Further marks are escaped: they could cover neighboring letters."""
MAX_CHECKED = 100_000
"""Maximum number of characters to check for suspicious content."""

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U0001d159")
"""Letters, marks and symbols that have no visible shape although their categories are not in `_HIDDEN`."""
_ALIKE = {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "FULLWIDTH", "MATHEMATICAL"}
"""Alphabets with letters that look alike, such as Latin and Cyrillic `a`.

Each is the first word of its letters' Unicode names.
"""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of displayed text: plain text, escaped characters, or a note about a gap."""

    text: str
    kind: Literal["plain", "escaped", "gap"] = "plain"


@dataclass(frozen=True, slots=True)
class SafeText:
    """Text or a value that is safe to display, with remarks about suspicious content for the reader."""

    pieces: tuple[TextPart, ...]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def format_value(content: object, *, head: int = HEAD, tail: int = TAIL, reveal: bool = False) -> SafeText:
    """Return a value as JSON that is safe to display, clipped if it is long. Hide secrets unless `reveal` is true."""
    content = content if reveal else hide_named_secrets(content)
    text = json.dumps(content, ensure_ascii=False, indent=2)
    return SafeText(
        tuple(split_pieces(text, head, tail)), tuple(_remarks(content if isinstance(content, str) else text))
    )


def format_text(content: str, *, head: int = HEAD, tail: int = TAIL) -> SafeText:
    """Return a name or a message as text that is safe to display, clipped if it is long. Line breaks are kept."""
    return SafeText(tuple(split_pieces(content.replace("\r\n", "\n"), head, tail)), tuple(_remarks(content)))


def format_line(content: str, length: int = 120) -> str:
    """Return text as one line with invisible characters escaped, clipped if it has more than `length` characters."""
    escaped = "".join(piece.text for piece in _pieces(content[: length + 1])).replace("\n", "\\n")
    return escaped if len(content) <= length else f"{escaped[: length - 1]}…"


def format_call(tool: str, args: JsonObject, length: int = 200) -> str:
    """Return a call as one line, clipped and with secret values masked."""
    if set(args) == {"omitted_bytes"}:  # the arguments were too large for the workflow memo
        return format_line(f"{tool}(…), {args['omitted_bytes']:,} bytes of arguments", length)
    values = (f"{name}={'…' if is_hidden(name, value) else _short(value)}" for name, value in args.items())
    return format_line(f"{tool}({', '.join(values)})", length)


def _short(value: object) -> str:
    match value:
        case dict() if value:
            return "{…}"
        case list() if value:
            return f"[{len(value)}]"
        case _:
            text = json.dumps(value, ensure_ascii=False)
            return text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}"


def format_duration(seconds: float, *, short: bool = False) -> str:
    """Format a duration, rounded, such as `36 hours`, or `36 h` if `short` is true."""
    for symbol, unit, length in (("d", "day", 86_400), ("h", "hour", 3_600), ("min", "minute", 60)):
        if seconds == length or seconds >= 2 * length:
            return f"{seconds / length:.0f} {symbol if short else f'{unit}s' if seconds > length else unit}"
    return f"{round(seconds, 1):g} s" if seconds >= 1 else f"{max(seconds, 0) * 1000:.0f} ms"


def escape(char: str) -> str:
    r"""Return a character as an ASCII JSON escape, such as `\u202e`."""
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def is_invisible(char: str) -> bool:
    """Return whether a character has no visible shape, affects its neighbors, or looks like a space.

    The normal space and the line break do not count.
    """
    if char in " \n":
        return False
    is_variation_selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return char in _BLANK or unicodedata.category(char) in _HIDDEN or is_variation_selector


def split_pieces(text: str, head: int, tail: int) -> Iterator[TextPart]:
    """Yield text in pieces, with invisible characters escaped.

    If the text is longer than `head` and `tail` together, omit the characters between them.
    """
    left_out = len(text) - head - tail
    if left_out <= 0:
        yield from _pieces(text)
        return
    yield from _pieces(text[:head])
    yield TextPart(f" … {left_out:,} of {len(text):,} characters omitted … ", "gap")
    yield from _pieces(text[-tail:])


def _pieces(text: str) -> Iterator[TextPart]:
    for hidden, pairs in itertools.groupby(zip(_hidden(text), text, strict=True), key=itemgetter(0)):
        chars = [char for _, char in pairs]
        yield TextPart("".join(map(escape, chars)), "escaped") if hidden else TextPart("".join(chars))


def _hidden(text: str) -> Iterator[bool]:
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        yield is_invisible(char) or marks > MAX_MARKS


def _remarks(text: str) -> Iterator[str]:
    if len(text) > HEAD + TAIL:
        yield f"{len(text):,} characters"
    checked = text[:MAX_CHECKED]
    if hidden := sum(is_invisible(char) for char in checked):
        yield f"{hidden:,} invisible character{'s' * (hidden > 1)}, escaped here"
    for word in _mixed(checked):
        yield f"a word that mixes alphabets and may imitate another word: {word}"
        return


def _mixed(text: str) -> Iterator[str]:
    """Yield words that mix look-alike alphabets, up to 40 characters of each, with non-ASCII characters escaped."""
    for word in re.findall(r"\w*[^\W\d_]\w*", text):
        alphabets = {unicodedata.name(char, "").partition(" ")[0] for char in word if char.isalpha()}
        if not word.isascii() and len(alphabets & _ALIKE) > 1:
            yield "".join(char if char.isascii() else escape(char) for char in word[:40])
