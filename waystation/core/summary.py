"""Short lines for people: how a call, a wait and an invocation read in the Web UI."""

import re
from collections.abc import Iterable

from waystation.core.approval.answer import PendingCall
from waystation.core.payload import JsonObject

MAX_LINE = 120
MAX_TEXT = 40
"""Characters of one argument."""
SECRET_NAMES = re.compile(r"pass(word|wd|phrase)?$|secret|token|api_?key|credential|authorization", re.IGNORECASE)
"""Arguments of such names are not shown; a summary is stored in plain text beside the history."""


def call(name: str, args: JsonObject) -> str:
    """Return a call in one short line, such as `pay(amount=200, to="dana")`, without secret values."""
    shown = ", ".join(f"{key}={'…' if SECRET_NAMES.search(key) else _value(value)}" for key, value in args.items())
    return clip(f"{name}({shown})")


def shortened(value: object) -> bool:
    """Whether such a line shows less than the whole of an argument."""
    return len(value) > MAX_TEXT if isinstance(value, str) else isinstance(value, dict | list) and bool(value)


def clip(text: str, length: int = MAX_LINE) -> str:
    """Return `text` on one line of at most `length` characters, control characters replaced."""
    line = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= length else line[: length - 1] + "…"


def waiting(pending: Iterable[PendingCall]) -> str:
    """Return the Markdown that the Web UI shows for what waits."""
    lines = [f"- `{p.function_call_id}` **{p.tool}**: {call(p.tool, p.args).replace('`', '')}" for p in pending]
    return "Waits for a person:\n\n" + "\n".join(lines) if lines else "Running."


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
