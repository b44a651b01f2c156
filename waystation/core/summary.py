"""Short summaries of calls and pending approvals for Temporal's Web UI."""

from collections.abc import Iterable

from waystation.core.approval.answer import PendingCall
from waystation.core.payload import JsonObject
from waystation.core.secrets import is_hidden

MAX_LINE = 120
MAX_TEXT = 40
"""Maximum number of characters of a string argument to show. Longer strings are clipped."""


def call(name: str, args: JsonObject) -> str:
    """Return a one-line summary of a call, such as `pay(amount=200, to="dana")`.

    Values whose names suggest a secret are hidden, because everyone who may read the namespace sees summaries in
    Temporal's Web UI.
    """
    parts = ", ".join(f"{key}={'…' if is_hidden(key, value) else _value(value)}" for key, value in args.items())
    return clip(f"{name}({parts})")


def shortened(value: object) -> bool:
    """Return whether a summary shortens this argument: a long string, or a dict or list that is not empty."""
    return len(value) > MAX_TEXT if isinstance(value, str) else isinstance(value, dict | list) and bool(value)


def clip(text: str, length: int = MAX_LINE) -> str:
    """Return `text` as one line of at most `length` characters. Control characters are replaced by spaces."""
    line = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    return line if len(line) <= length else line[: length - 1] + "…"


def waiting(pending: Iterable[PendingCall]) -> str:
    """Return the pending calls as Markdown for the Web UI, or `Running.` if there are none."""
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
