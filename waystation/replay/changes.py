"""The changes between two JSON objects, such as two states."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waystation.core.payload import JsonObject


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between two JSON objects, by key."""

    added: JsonObject
    changed: dict[str, tuple[Any, Any]]
    """The values before and after the change, by key."""
    removed: JsonObject

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> "Changes":
        return cls(
            {key: value for key, value in after.items() if key not in before},
            {
                key: (before[key], now)
                for key, now in after.items()
                if key in before and not is_same_json(before[key], now)
            },
            {key: value for key, value in before.items() if key not in after},
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        changed = {key: {"before": before, "after": after} for key, (before, after) in self.changed.items()}
        return {"added": self.added, "changed": changed, "removed": self.removed}


def is_same_json(one: Any, other: Any) -> bool:
    """Return whether two values have the same JSON form. Therefore, `True` and `1` are not the same."""
    return one is other or to_text(one) == to_text(other)


def to_text(value: Any) -> str:
    """Return a value as JSON text that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True)
