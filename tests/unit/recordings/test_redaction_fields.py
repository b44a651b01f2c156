"""Redaction knows all fields with JSON of authors."""

from collections.abc import Iterator
from typing import Any, get_args

from waystation.core import Recorded
from waystation.core.log import engine_activities, fork
from waystation.replay.redaction import AUTHORED

LOADED = (engine_activities, fork)
"""With these all recorded types are."""
RECORDS = frozenset({"carried", "invocation", "result", "input", "tail", "posted", "calls", "entries", "items", "held"})
"""JSON of recorded types inside others."""


def kinds(kind: type[Recorded] = Recorded) -> Iterator[type[Recorded]]:
    """Yield all recorded types."""
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def holds_any(annotation: Any) -> bool:
    """Whether a type accepts any JSON."""
    return annotation is Any or any(holds_any(each) for each in get_args(annotation))


def test_a_field_with_any_json_is_known() -> None:
    """Redaction lists every field that holds any JSON, because it would keep a text such as `agent` in others."""
    free = {name for kind in kinds() for name, field in kind.model_fields.items() if holds_any(field.annotation)}
    assert {"args", "state", "message"} <= free
    assert free - AUTHORED.keys() - RECORDS == set()
