"""The state a tool reads and writes, with a record of what it changed."""

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar

from waystation.core import JsonObject, NotJson, ScopesNotRead, a, copy_json, encode, is_scoped, plain

_REMEDY = "store plain data (strings, numbers, lists, dictionaries), or save it as an artifact"


class StateRefused(NotJson):
    """A tool wrote something into state that has no JSON form."""

    def __init__(self, key: str, tool: str, path: str, found: str, remedy: str = _REMEDY) -> None:
        super().__init__(path, found, remedy)
        self.key, self.tool = key, tool
        # Replaces the text of NotJson, which knows neither the tool nor that this is about state.
        what = f"Tool {tool!r} cannot store state {path!r}" if tool else f"State {path!r} cannot be stored"
        self.args = (f"{what}: it is {found}, which has no JSON form; {remedy}.",)


class State(MutableMapping[str, Any]):
    """State as a tool sees it: the invocation's state, overlaid with what this call wrote.

    Prefixes (`user:`, `app:`, `temp:`) are part of a key. A list or dictionary that was read may be changed
    in place; the change is found when the delta is taken. What other calls of the same batch write is not
    seen.

    A value that is written is kept as it is when it is plain JSON, and as its JSON form otherwise, so that
    this tool reads what the next one will.
    """

    APP_PREFIX: ClassVar[str] = "app:"
    USER_PREFIX: ClassVar[str] = "user:"
    TEMP_PREFIX: ClassVar[str] = "temp:"

    def __init__(self, current: Mapping[str, Any] | None = None, *, tool: str = "", scopes_read: bool = True) -> None:
        """Look at `current`, which is never changed here and must not change while the tool runs.

        Unless `scopes_read`, `user:` and `app:` keys that are not in it raise `ScopesNotRead`: they may be stored.
        """
        self._current = {} if current is None else current
        self._scopes_read = scopes_read
        self._tool = tool
        self._read: dict[str, tuple[Any, Any]] = {}  # key -> (value of `current`, the copy that was handed out)
        self._written: dict[str, Any] = {}
        self._removed: dict[str, None] = {}
        # A sync tool runs in a thread of its own, may start more, and may still run when its delta is taken.
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
        form = self._plain(key, value)
        with self._lock:
            # The very object, so that `state["items"] = items; items.append(1)` counts, as it does in ADK.
            self._written[key] = value if form == value else form
            self._removed.pop(key, None)
            self._read.pop(key, None)

    def __delitem__(self, key: str) -> None:
        with self._lock:
            if key not in self:
                raise KeyError(key)
            self._written.pop(key, None)
            self._read.pop(key, None)
            if key in self._current:
                self._removed[key] = None

    def __contains__(self, key: object) -> bool:
        # Not Mapping's, which would read the value and so copy it.
        with self._lock:
            if key in self._written or key in self._removed:
                return key in self._written
            self._check_read(key)
            return key in self._current

    def _check_read(self, key: object) -> None:
        """Refuse to say that there is no such key when nobody has looked; a default would hide what is stored."""
        if not self._scopes_read and isinstance(key, str) and is_scoped(key) and key not in self._current:
            raise ScopesNotRead(key)

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter([k for k in self._current if k not in self._removed] + self._new_keys())

    def __len__(self) -> int:
        with self._lock:
            return len(self._current) - len(self._removed) + len(self._new_keys())

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, after setting it to `default` if there was none."""
        with self._lock:
            if key not in self:
                self[key] = default
            return self[key]

    def to_dict(self) -> JsonObject:
        """Return an independent copy of the whole state; changing it changes nothing here."""
        with self._lock:
            return {key: copy_json(self._written.get(key, self._current.get(key))) for key in self} | {
                key: copy_json(copy) for key, (_, copy) in self._read.items()
            }

    def has_delta(self) -> bool:
        """Whether anything was changed, also in place."""
        with self._lock:
            return bool(self._written or self._removed or any(map(self._changed, self._read)))

    def delta(self) -> tuple[JsonObject, tuple[str, ...]]:
        """Return the written keys with their values, and the keys removed with `del` or `pop`.

        Raises:
            StateRefused: A value was changed in place into something that has no JSON form.
        """
        with self._lock:
            changed = {key: self._read[key][1] for key in self._read if self._changed(key)}
            delta = {key: self._plain(key, value) for key, value in {**changed, **self._written}.items()}
            return delta, tuple(self._removed)

    def _new_keys(self) -> list[str]:
        return [key for key in self._written if key not in self._current]

    def _changed(self, key: str) -> bool:
        original, copy = self._read[key]
        if not isinstance(copy, dict | list):
            return False
        try:
            # Encoded, because True == 1 == 1.0 in Python and not in JSON.
            return encode(original) != encode(copy)
        except Exception:  # noqa: BLE001  # what was put there may raise anything; taking the delta says what
            return True

    def _plain(self, key: str, value: Any) -> Any:
        if not isinstance(key, str):
            raise StateRefused(
                repr(key), self._tool, repr(key), f"under a key of type {type(key).__qualname__}", "use text as keys"
            )
        try:
            return plain({key: value})[key]
        except NotJson as error:
            raise StateRefused(key, self._tool, error.path or key, error.found) from None
        except Exception as error:  # a value may raise anything when it is looked at
            raise StateRefused(
                key, self._tool, key, f"{a(value)} that cannot be read ({type(error).__name__})"
            ) from error

    def __repr__(self) -> str:
        with self._lock:
            return f"State({sorted(self)})"
