"""The state that tools read and write. It keeps track of the changes that a tool makes."""

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar

from waystation.core.errors import NotJson, ScopesNotRead
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, copy_json, encode, repair_json, to_plain_json
from waystation.core.scope_state import is_scoped

_REMEDY = "store plain data (strings, numbers, lists, dictionaries), or save it as an artifact"


class StateRefused(NotJson):
    """A tool wrote a value to the state that cannot be represented as JSON.

    Store JSON values only: strings, numbers, booleans, lists, dicts and None.
    """

    def __init__(self, key: str, tool: str, path: str, found: str, remedy: str = _REMEDY) -> None:
        super().__init__(path, found, remedy)
        self.key, self.tool = key, tool
        # Replace the message of NotJson, which mentions neither the tool nor the state.
        what = f"Tool {tool!r} cannot store state {path!r}" if tool else f"State {path!r} cannot be stored"
        self.args = (f"{what}: it is {found}, which has no JSON form; {remedy}.",)


class State(MutableMapping[str, Any]):
    """State as a tool sees it: the invocation's state plus what this call has written.

    Prefixes (`user:`, `app:`, `temp:`) are part of a key. A tool may modify a list or dictionary from the state in
    place; `delta` detects the change. Other calls in the same batch do not see the tool's writes.

    A value is stored unchanged if it is plain JSON. Otherwise it is converted when it is written, so that this tool
    and the next one read the same value. Parts of a value that cannot be stored are replaced, as in results.
    """

    APP_PREFIX: ClassVar[str] = "app:"
    USER_PREFIX: ClassVar[str] = "user:"
    TEMP_PREFIX: ClassVar[str] = "temp:"

    def __init__(self, current: Mapping[str, Any] | None = None, *, tool: str = "", scopes_read: bool = True) -> None:
        """Create a state on top of `current`, which is never modified and must not change while the tool runs.

        Pass `scopes_read=False` if `user:` and `app:` state was not loaded. Reading a missing key with one of these
        prefixes then raises `ScopesNotRead`.
        """
        self._current = {} if current is None else current
        self._scopes_read = scopes_read
        self._tool = tool
        self._read: dict[str, tuple[Any, Any]] = {}  # key -> (value in `current`, the copy that the tool received)
        self._written: dict[str, Any] = {}
        self._removed: dict[str, None] = {}
        self.replaced: dict[str, list[str]] = {}
        """For each key, one note for each part of the written value that was replaced, because it cannot be stored."""
        # Sync tools run in threads, can start more threads, and may still be running when the delta is read.
        self._lock = threading.RLock()

    def __getitem__(self, key: str) -> Any:
        with self._lock:
            if key in self._written:
                return self._written[key]
            if key in self._removed:
                raise KeyError(key)
            if key not in self._read:
                self._check_read(key)
                original = self._current[key]
                self._read[key] = (original, copy_json(original))
            return self._read[key][1]

    def __setitem__(self, key: str, value: Any) -> None:
        form, self.replaced[key] = self._plain(key, value)
        with self._lock:
            # Keep the same object, so that `state["items"] = items; items.append(1)` is recorded, as in ADK.
            self._written[key] = value if form == value else form
            self._removed.pop(key, None)
            self._read.pop(key, None)

    def __delitem__(self, key: str) -> None:
        with self._lock:
            if key not in self:
                raise KeyError(key)
            for entries in (self._written, self._read, self.replaced):
                entries.pop(key, None)
            if key in self._current:
                self._removed[key] = None

    def __contains__(self, key: object) -> bool:
        # Override Mapping's method, which would copy the value.
        with self._lock:
            if key in self._written or key in self._removed:
                return key in self._written
            self._check_read(key)
            return key in self._current

    def _check_read(self, key: object) -> None:
        """Raise if a missing key's scope was not loaded. The key may be stored, and a default would hide its value."""
        if not self._scopes_read and isinstance(key, str) and is_scoped(key) and key not in self._current:
            raise ScopesNotRead(key)

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter([k for k in self._current if k not in self._removed] + self._new_keys())

    def __len__(self) -> int:
        with self._lock:
            return len(self._current) - len(self._removed) + len(self._new_keys())

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`. If the key is missing, set it to `default` first."""
        with self._lock:
            if key not in self:
                self[key] = default
            return self[key]

    def to_dict(self) -> JsonObject:
        """Return an independent copy of the whole state."""
        with self._lock:
            return {key: copy_json(self._written.get(key, self._current.get(key))) for key in self} | {
                key: copy_json(copy) for key, (_, copy) in self._read.items()
            }

    def has_delta(self) -> bool:
        """Return whether any value was written, removed, or modified in place."""
        with self._lock:
            return bool(self._written or self._removed or any(map(self._is_changed, self._read)))

    def delta(self) -> tuple[JsonObject, tuple[str, ...]]:
        """Return the changed keys with their values, and the keys removed with `del` or `pop`.

        Raises:
            StateRefused: A value that was modified in place has too many values, or contains a credential.
        """
        with self._lock:
            changed = {key: self._read[key][1] for key in self._read if self._is_changed(key)}
            delta = {}
            for key, value in {**changed, **self._written}.items():
                delta[key], replaced = self._plain(key, value)
                self.replaced[key] = replaced or self.replaced.get(key, [])
            return delta, tuple(self._removed)

    def _new_keys(self) -> list[str]:
        return [key for key in self._written if key not in self._current]

    def _is_changed(self, key: str) -> bool:
        original, copy = self._read[key]
        if not isinstance(copy, dict | list):
            return False
        try:
            # Compare the encoded values, because True == 1 == 1.0 in Python but not in JSON.
            return encode(original) != encode(copy)
        except Exception:  # noqa: BLE001  # a user's object can raise anything; `delta` reports it
            return True

    def _plain(self, key: str, value: Any) -> tuple[Any, list[str]]:
        if not isinstance(key, str):
            raise StateRefused(
                repr(key), self._tool, repr(key), f"under a key of type {type(key).__qualname__}", "use text as keys"
            )
        try:
            to_plain_json(key)
            return repair_json(value, key)
        except NotJson as error:
            raise StateRefused(key, self._tool, error.path or key, error.found) from None
        except Exception as error:  # a user's object can raise anything when it is read
            raise StateRefused(
                key, self._tool, key, f"{with_article(value)} that cannot be read ({type(error).__name__})"
            ) from error

    def __repr__(self) -> str:
        with self._lock:
            return f"State({sorted(self)})"
