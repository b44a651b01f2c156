"""`user:` and `app:` state, which outlives a session: its keys, the writes to it, and how writes are combined.

A scope holds the state of one app, or of one user within an app. Each scope is a workflow. Its state is computed by
applying the signals in its history in order. The workflow, activities and clients all apply them in the same way, so a
write is visible immediately, even if no worker is running.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Literal
from urllib.parse import quote

from pydantic import Field, ValidationError

from waystation.core.contract import EventActions, Position
from waystation.core.errors import NotJson, ScopeNameTooLong
from waystation.core.payload import JsonObject, Recorded, decode_foreign, describe_faults, encode

SCOPE_WORKFLOW = "AgentScope"
APPLY_SIGNAL = "apply"

USER = "user:"
APP = "app:"
PREFIXES = (USER, APP)
TEMPORARY = "temp:"
"""Prefix of state keys that last only for one invocation."""

MAX_SCOPE_BYTES = 500_000
"""Maximum size of a scope's state. A delta that would make the state grow beyond this is refused. One model reply
records both scopes of an invocation and needs room for its content, too."""
MAX_ID_BYTES = 1_000
"""The server's limit on the length of workflow IDs."""
MAX_HEARD = 2_000
"""Maximum number of invocation runs whose last event number a scope remembers. The runs whose
latest delta is oldest are forgotten first."""
MAX_REFUSED = 100
"""Maximum number of refused deltas that a scope carries over. The oldest ones are dropped first."""
MAX_REFUSED_IN_RUN = 1_000
"""Maximum number of refused deltas that a reader remembers for the senders that look for theirs."""
MAX_EVENT_NUMBER = 10**9


def is_scoped(key: str) -> bool:
    """Return whether a state key belongs to a user or an app rather than to a session."""
    return key.startswith(PREFIXES)


def user_scope(app: str, user_id: str) -> str:
    """Return the workflow ID of the scope that holds a user's state in an app.

    Raises:
        ScopeNameTooLong: The names do not fit in a workflow ID.
    """
    return _scope_id("user", app, user_id)


def app_scope(app: str) -> str:
    """Return the workflow ID of the scope that holds an app's state.

    Raises:
        ScopeNameTooLong: The name does not fit in a workflow ID.
    """
    return _scope_id("app", app)


def prefix_of(scope_id: str) -> str:
    """Return the prefix of the keys in a scope, or an empty string if the ID does not belong to a scope."""
    kind = scope_id.partition("/")[0] + ":"
    return kind if kind in PREFIXES else ""


def _scope_id(kind: str, *names: str) -> str:
    # Quoted names do not contain "/", so two different scopes never share an ID.
    scope_id = "/".join((kind, *(quote(name, safe="") for name in names)))
    if len(scope_id) > MAX_ID_BYTES:  # quoted names are ASCII, so this counts bytes
        raise ScopeNameTooLong(scope_id, MAX_ID_BYTES)
    return scope_id


AGENT_DIRECTORY = app_scope("waystation/agents")
"""Workflow ID of the scope that lists the agents of a namespace."""


class ScopeDelta(Recorded):
    """One event's writes to a scope, sent as an argument of the `apply` signal."""

    id: str
    """`<invocation ID>/e<event number>`. A delta is a duplicate unless its event number exceeds all those already
    received from the same run of the invocation."""
    run: str = ""
    """Run ID of the invocation. After a reset, new events reuse the numbers of the discarded ones."""
    set: JsonObject = Field(default_factory=dict)
    removed: tuple[str, ...] = ()


class RefusedDelta(Recorded):
    """A delta that a scope refused."""

    id: str = ""
    run: str = ""
    reason: str


class ScopeSnapshot(Recorded):
    """The state that a scope carries over when it continues as new."""

    state: JsonObject = Field(default_factory=dict)
    heard: tuple[tuple[str, int], ...] = ()
    """A digest of each invocation run, paired with the highest event number received from that run. The run that sent
    the latest delta comes last."""
    refused: tuple[RefusedDelta, ...] = ()
    refusals: int = 0


class ScopeDelivery(Position):
    """Input of the activity that delivers writes to scopes. Contains only event numbers, not the content of events."""

    after: int
    """Number of the last event whose writes have already been delivered, or -1 if there is none."""
    last: int
    """Number of the last event whose writes to deliver. Number 0 stands for the state that the invocation started with.
    """


class ScopeReport(Recorded):
    """Result of the activity that delivers writes to scopes."""

    refused: tuple[RefusedDelta, ...] = ()


Heard = Literal["applied", "duplicate", "refused"]


class ScopeFold:
    """Computes the state of one scope by applying its deltas in order."""

    def __init__(self, prefix: str, snapshot: ScopeSnapshot | None = None) -> None:
        initial = snapshot or ScopeSnapshot()
        self.prefix = prefix
        self._state = dict(initial.state)
        self._is_shared = False
        """Whether a reader may have a reference to the state. It is then copied before it is changed."""
        self._size = _size(initial.state)
        """`_size` of the state. Encoding the state for each delta would make reading a scope slower with each key."""
        self.refused = list(initial.refused)
        self.refusals = initial.refusals
        """Total number of refused deltas and invalid signals."""
        self.bytes = 0
        """Total size of the signals that were applied."""
        self._heard = dict(initial.heard)

    @property
    def state(self) -> JsonObject:
        """The current state. Readers may keep it: later deltas do not change it."""
        self._is_shared = True
        return self._state

    def snapshot(self) -> ScopeSnapshot:
        """Return a snapshot that another `ScopeFold` can continue from."""
        return ScopeSnapshot(
            state=self.state,
            heard=tuple(self._heard.items()),
            refused=tuple(self.refused[-MAX_REFUSED:]),
            refusals=self.refusals,
        )

    def heard(self, invocation_id: str, run: str) -> int:
        """Return the highest event number received from an invocation run, or -1 if the run is not remembered."""
        return self._heard.get(_digest(invocation_id, run), -1)

    def apply(self, signal: str, arguments: Collection[bytes]) -> list[Heard]:
        """Apply a signal, and return what happened to each argument. Each argument is one delta.

        A signal with an unknown name is refused as a whole.
        """
        self.bytes += sum(map(len, arguments))
        if signal != APPLY_SIGNAL:
            return [self._refuse("", "", f"Signal {signal[:100]!r} is not known; send `{APPLY_SIGNAL}`.")]
        return [self._apply(data) for data in arguments]

    def _apply(self, data: bytes) -> Heard:
        try:
            delta = ScopeDelta.model_validate(decode_foreign(data))
        except ValidationError as error:
            return self._refuse("", "", f"It is not a valid delta: {describe_faults(error)}.")
        except NotJson as error:
            return self._refuse("", "", f"It cannot be recorded: it has {error.found}.")
        except ValueError:
            return self._refuse("", "", "It is not JSON.")
        invocation, _, digits = delta.id.rpartition("/e")
        if not (invocation and digits.isascii() and digits.isdigit() and len(digits) < len(str(MAX_EVENT_NUMBER))):
            return self._refuse(delta.id, delta.run, "Its id is not `<invocation id>/e<number of the event>`.")
        number, key = int(digits), _digest(invocation, delta.run)
        heard = self._heard.pop(key, -1)
        self._heard[key] = max(heard, number)
        while len(self._heard) > MAX_HEARD:
            del self._heard[next(iter(self._heard))]
        if number <= heard:
            return "duplicate"
        foreign = [name for name in (*delta.set, *delta.removed) if not name.startswith(self.prefix)]
        if foreign:
            return self._refuse(delta.id, delta.run, f"Key {foreign[0][:100]!r} does not begin with {self.prefix!r}.")
        replaced = {name: self._state[name] for name in (*delta.set, *delta.removed) if name in self._state}
        changed = self._size + _size(delta.set) - _size(replaced)
        if (size := max(changed, 1) + 1) > MAX_SCOPE_BYTES and changed > self._size:
            return self._refuse(
                delta.id,
                delta.run,
                f"The `{self.prefix}` state would grow to {size} bytes; at most {MAX_SCOPE_BYTES} are kept. "
                "Save large values as artifacts.",
            )
        if self._is_shared:
            self._state, self._is_shared = dict(self._state), False
        for name in delta.removed:
            self._state.pop(name, None)
        self._state |= delta.set
        self._size = changed
        return "applied"

    def _refuse(self, delta_id: str, run: str, reason: str) -> Heard:
        self.refusals += 1
        self.refused.append(RefusedDelta(id=delta_id[:MAX_ID_BYTES], run=run[:MAX_ID_BYTES], reason=reason))
        del self.refused[:-MAX_REFUSED_IN_RUN]
        return "refused"


def _size(values: JsonObject) -> int:
    """Return how many bytes keys with these values add to a JSON object, each with a comma but without the braces."""
    return len(encode(values)) - 1 if values else 0


def writes_scopes(actions: EventActions | None) -> bool:
    """Return whether the actions set or remove any `user:` or `app:` state."""
    return actions is not None and any(map(is_scoped, (*actions.state_delta, *actions.removed_keys)))


def split(delta_id: str, run: str, state_delta: JsonObject, removed: Sequence[str]) -> Iterator[tuple[str, ScopeDelta]]:
    """Yield the writes to each scope in a state delta as a `ScopeDelta`, together with the scope's key prefix."""
    for prefix in PREFIXES:
        written = {key: value for key, value in state_delta.items() if key.startswith(prefix)}
        dropped = tuple(key for key in removed if key.startswith(prefix))
        if written or dropped:
            yield prefix, ScopeDelta(id=delta_id, run=run, set=written, removed=dropped)


def _digest(invocation_id: str, run: str) -> str:
    """Return a short digest that identifies an invocation run. Long IDs would take more space."""
    name = f"{invocation_id}\n{run}" if run else invocation_id
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:20]
