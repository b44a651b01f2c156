"""Short summaries of calls: signatures, the titles that tools define, and pending approvals for Temporal's Web UI."""

import re
from collections.abc import Iterator, Sequence
from string import Formatter

from waystation.core.approval import PendingCall
from waystation.core.payload import JsonObject
from waystation.core.secrets import is_hidden

MAX_LINE = 120
MAX_TITLE = 160
MAX_TEXT = 40
"""Maximum number of characters of a string argument to show. Longer strings are clipped."""
MAX_TITLE_VALUE = 60
"""Maximum number of characters of an argument in a title. A longer value loses its middle, not its end, where malicious
content is often hidden."""
MAX_TITLE_ITEMS = 3
_NUMBER_FORMAT = re.compile(r",?(\.\df)?")
"""Formats of numbers in titles: `,` separates thousands, and `.2f` rounds to two digits. Both together are `,.2f`."""


def call(name: str, args: JsonObject) -> str:
    """Return a one-line summary of a call, such as `pay(amount=200, to="dana")`.

    Values whose names suggest a secret are hidden, because everyone who may read the namespace sees summaries in
    Temporal's Web UI.
    """
    parts = ", ".join(f"{key}={'…' if is_hidden(key, value) else _value(value)}" for key, value in args.items())
    return clip(f"{name}({parts})")


def origin(tool_origin: str | None) -> str | None:
    """Return where a tool comes from in words, such as `toolset payments`, or None if it was not recorded."""
    kind, _, name = (tool_origin or "").partition(":")
    return clip(f"{kind} {name}") if name else "declared by the agent" if kind else None


def parse_title(template: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield the parts of a title template: literal text, then the argument after it, if any, and its number format.

    Raises:
        ValueError: The braces do not match, or a placeholder is not the name of an argument with an optional format.
    """
    for literal, name, number_format, conversion in Formatter().parse(template):
        number_format = number_format or ""
        if name is not None and (conversion or not name.isidentifier() or not _NUMBER_FORMAT.fullmatch(number_format)):
            raise ValueError(f"{{{name}}} is not the name of an argument, such as {{amount}} or {{amount:,.2f}}")
        yield literal, name, number_format


def title(template: str | None, args: JsonObject) -> str | None:
    """Return a title template filled in with arguments, as one line, such as `Pay 200 to dana`.

    Return None if there is no valid template, or if an argument that it names is missing, null or empty. Arguments are
    inserted as text: braces in them have no effect.
    """
    try:
        parts = list(parse_title(template or ""))
    except ValueError:
        return None
    if any(name is not None and args.get(name) in (None, "", [], {}) for _, name, _ in parts):
        return None
    text = "".join(
        literal + ("" if name is None else _title_value(name, args[name], number_format))
        for literal, name, number_format in parts
    )
    return clip(_to_line(text), MAX_TITLE) or None


def _title_value(name: str, value: object, number_format: str = "") -> str:
    match value:
        case _ if is_hidden(name, value):
            return "…"
        case int() | float() if number_format and not isinstance(value, bool) and abs(value) < 1e15:
            return format(value, number_format)
        case list():
            rest = len(value) - MAX_TITLE_ITEMS
            items = [_title_value(name, item) for item in value[:MAX_TITLE_ITEMS]]
            return ", ".join(items) + (f" and {rest} more" if rest > 0 else "")
        case str():
            line = _to_line(value[: 10 * MAX_TITLE_VALUE] + value[10 * MAX_TITLE_VALUE :][-MAX_TITLE_VALUE:])
            tail = MAX_TITLE_VALUE // 3
            return line if len(line) <= MAX_TITLE_VALUE else f"{line[: MAX_TITLE_VALUE - tail - 1]}…{line[-tail:]}"
        case _:
            return clip(_value(value), MAX_TITLE_VALUE)


def _to_line(text: str) -> str:
    """Return text with control characters and runs of spaces replaced by single spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def message(content: str | JsonObject) -> str:
    """Return the beginning of a message that starts an invocation. The input next to it shows the whole message."""
    return clip(content, MAX_TEXT) if isinstance(content, str) else "…"


def shortened(value: object) -> bool:
    """Return whether a summary shortens this argument: a long string, or a dict or list that is not empty."""
    return len(value) > MAX_TEXT if isinstance(value, str) else isinstance(value, dict | list) and bool(value)


def clip(text: str, length: int = MAX_LINE) -> str:
    """Return `text` as one line of at most `length` characters. Control characters are replaced by spaces."""
    line = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= length else line[: length - 1] + "…"


def waiting(pending: Sequence[PendingCall]) -> str:
    """Return the pending calls as Markdown for the Web UI, or `Running.` if there are none."""
    lines = [f"- `{p.function_call_id}` **{p.tool}**: {call(p.tool, p.args).replace('`', '')}" for p in pending]
    kind = "machine" if all(p.machine for p in pending) else "person"
    return f"Waits for a {kind}:\n\n" + "\n".join(lines) if lines else "Running."


def _value(value: object) -> str:
    match value:
        case str():
            return f'"{clip(value, MAX_TEXT)}"'
        case dict():
            return "{…}" if value else "{}"
        case list():
            return f"[{len(value)}]"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
