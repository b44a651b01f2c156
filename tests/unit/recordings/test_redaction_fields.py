"""Redaction covers every recorded field in which authors can put any JSON."""

from collections.abc import Iterator
from typing import Any, get_args

from waystation.core.payload import Recorded
from waystation.core.projection import engine_activities, fork
from waystation.replay.redaction import AUTHORED

LOADED = (engine_activities, fork)
"""Modules that must be imported so that all recorded types are defined."""
RECORDS = frozenset({"carried", "invocation", "result", "input", "tail", "posted", "calls", "entries", "items", "held"})
"""Recorded types that are part of others and contain any JSON."""


def kinds(kind: type[Recorded] = Recorded) -> Iterator[type[Recorded]]:
    """Yield all recorded types."""
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def accepts_any_json(annotation: Any) -> bool:
    """Return whether a type accepts any JSON."""
    return annotation is Any or any(accepts_any_json(each) for each in get_args(annotation))


def test_a_field_with_any_json_is_known() -> None:
    """Every field that accepts any JSON is listed, because redaction would keep a text such as `agent` in others."""
    recorded = [kind for kind in kinds() if not kind.__module__.startswith("waystation.interfaces.")]
    free = {
        name for kind in recorded for name, field in kind.model_fields.items() if accepts_any_json(field.annotation)
    }
    assert {"args", "state", "message"} <= free
    assert free - AUTHORED.keys() - RECORDS == set()
