"""Lay out arguments for approvers: text as text, lists as lists or tables, objects as fields, and long text folded.

The layout never hides a difference that matters. Text that could be mistaken for another value, such as `"5"`, `"true"`
or text with spaces at its ends, keeps its quotation marks, and values that are too deep or too large stay JSON.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from waystation.core.payload import JsonObject
from waystation.core.secrets import has_named_secret
from waystation.presentation import text_safety
from waystation.presentation.text_safety import SafeText

FOLDED_CHARS = 500
FOLDED_LINES = 12
"""Text with more characters (`FOLDED_CHARS`) or more lines is folded: its beginning and end stay visible."""
MAX_LAID_OUT_CHARS = 20_000
"""Lists and objects with longer JSON are shown as JSON."""
MAX_DEPTH = 3
MAX_ITEMS = 50
MAX_COLUMNS = 6
MAX_CELL_CHARS = 100
_DIGITS = re.compile(r"-?(\d{5,})(\.\d+)?")
"""A number whose digits are shown in groups of three, without exponent."""
_QUOTED = re.compile(
    r"\s|.*\s$|[\[{\"“]|(null|true|false|none|[-+]?[.\d][\d,]*(\.\d*)?(e[-+]?\d+)?)$", re.IGNORECASE | re.DOTALL
)
"""Matches text that keeps its quotation marks: without them, it could be mistaken for another value, or spaces at its
ends would be invisible."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A value as shown to approvers."""

    kind: Literal["text", "folded", "code", "number", "items", "table", "fields"]
    text: SafeText | None = None
    """For `text`, `folded` and `code`."""
    preview: SafeText | None = None
    """For `folded`: the beginning and the end of the text, on one line."""
    groups: tuple[str, ...] = ()
    """For `number`: the integer digits in groups of three, the first with the sign; then the rest, possibly empty."""
    names: tuple[SafeText, ...] = ()
    """The keys of `fields`, or the columns of a `table`."""
    items: tuple["Layout", ...] = ()
    """The items of `items`, the values of `fields`, or the cells of a `table`, row by row."""


def lay_out_arguments(args: JsonObject) -> list[dict[str, Any]]:
    """Return the arguments as rows. `secret` rows are hidden until the reader opens them."""
    return [
        {"name": text_safety.format_text(name), "value": lay_out(value), "secret": has_named_secret(value, name)}
        for name, value in args.items()
    ]


def lay_out(value: Any, depth: int = 0) -> Layout:
    """Return a value as shown to approvers."""
    match value:
        case str():
            return _lay_out_text(value)
        case bool():
            return _code(value)
        case int() | float() if digits := _DIGITS.fullmatch(json.dumps(value)):
            sign = "-" if value < 0 else ""
            groups = f"{int(digits[1]):,}".split(",")
            return Layout("number", groups=(sign + groups[0], *groups[1:], digits[2] or ""))
        case list() | dict() if value and depth < MAX_DEPTH and len(value) <= MAX_ITEMS and _is_small(value, depth):
            return _lay_out_fields(value, depth) if isinstance(value, dict) else _lay_out_list(value, depth)
        case _:
            return _code(value)


def _is_small(value: Any, depth: int) -> bool:
    return depth > 0 or len(json.dumps(value)) <= MAX_LAID_OUT_CHARS


def _lay_out_text(value: str) -> Layout:
    if not value or (len(value) <= 60 and _QUOTED.match(value)):
        return _code(value)
    text = text_safety.format_text(value, head=text_safety.JSON_HEAD, tail=text_safety.JSON_TAIL)
    if len(value) <= FOLDED_CHARS and value.count("\n") < FOLDED_LINES:
        return Layout("text", text)
    ends = value if len(value) <= 240 else f"{value[:160]} … {value[-80:]}"
    return Layout("folded", text, text_safety.format_text(" ".join(ends.split())))


def _lay_out_fields(value: JsonObject, depth: int) -> Layout:
    names = tuple(map(text_safety.format_text, value))
    return Layout("fields", names=names, items=tuple(lay_out(item, depth + 1) for item in value.values()))


def _lay_out_list(items: Sequence[Any], depth: int) -> Layout:
    columns = list(items[0]) if isinstance(items[0], dict) else []
    if 0 < len(columns) <= MAX_COLUMNS and all(_is_row(item, columns) for item in items):
        cells = tuple(lay_out(item[name], MAX_DEPTH) for item in items for name in columns)
        return Layout("table", names=tuple(map(text_safety.format_text, columns)), items=cells)
    return Layout("items", items=tuple(lay_out(item, depth + 1) for item in items))


def _is_row(item: Any, columns: Sequence[str]) -> bool:
    """Return whether a list item can be a row of a table with these columns."""
    if not isinstance(item, dict) or list(item) != columns:
        return False
    return not any(isinstance(cell, dict | list) or len(str(cell)) > MAX_CELL_CHARS for cell in item.values())


def _code(value: Any) -> Layout:
    return Layout("code", text_safety.format_value(value, reveal=True))
