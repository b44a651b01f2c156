"""Redaction knows every field with JSON of authors."""

from collections.abc import Iterator
from typing import Any, get_args

from waystation.core.payload import Recorded
from waystation.core.projection import engine_activities, fork
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


def accepts_any_json(annotation: Any) -> bool:
    """Return whether a type accepts any JSON."""
    return annotation is Any or any(accepts_any_json(each) for each in get_args(annotation))


def test_a_field_with_any_json_is_known() -> None:
    """Lists every field that accepts any JSON, because redaction would keep a text such as `agent` in others."""
    free = {name for kind in kinds() for name, field in kind.model_fields.items() if accepts_any_json(field.annotation)}
    assert {"args", "state", "message"} <= free
    assert free - AUTHORED.keys() - RECORDS == set()
