"""State is the fold of the deltas."""

from collections.abc import Iterable

from waystation.core.event import EventActions
from waystation.core.payload import JsonObject

TEMPORARY = "temp:"
"""Keys with this prefix live for one invocation, pauses included, and never leave it."""


class StateFold:
    """The state of an invocation and what it changed since the start."""

    def __init__(self, initial: JsonObject, changed: Iterable[str] = ()) -> None:
        self.value: JsonObject = dict(initial)
        self.changed: dict[str, None] = dict.fromkeys(changed)
        """Keys that were set or removed since the start."""

    def apply(self, actions: EventActions) -> None:
        """Apply one delta; values are replaced key by key."""
        if not (actions.state_delta or actions.removed_keys):
            return
        # A new dictionary: tools that are still running hold the old one.
        value = {**self.value, **actions.state_delta}
        for key in actions.removed_keys:
            value.pop(key, None)
        self.changed.update(dict.fromkeys(actions.state_delta))
        self.changed.update(dict.fromkeys(actions.removed_keys))
        self.value = value

    def underlay(self, scopes: JsonObject) -> None:
        """Put what was stored before beneath what the invocation was started with; it is no change."""
        self.value = {**scopes, **self.value}

    def since_start(self) -> tuple[JsonObject, tuple[str, ...]]:
        """Return what was set and which keys were removed, `temp:` keys left out."""
        lasting = [key for key in self.changed if not key.startswith(TEMPORARY)]
        return (
            {key: self.value[key] for key in lasting if key in self.value},
            tuple(key for key in lasting if key not in self.value),
        )
