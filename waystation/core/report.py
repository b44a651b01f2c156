"""What ties an invocation to its session: where it finds earlier messages, and what it reports of itself."""

from collections.abc import Mapping

from pydantic import Field

from waystation.core.payload import JsonObject, Recorded
from waystation.core.policy import StandingApproval

MAX_REPORT_BYTES = 100_000
"""Entries beyond this are not repeated in a result; the session has them collected from the invocation's history."""
LASTING_ELSEWHERE = ("temp:", "user:", "app:")
"""Prefixes of state that is not the session's."""


class SessionLink(Recorded):
    """Which session an invocation belongs to, and how far the conversation had come when it began."""

    id: str = Field(max_length=1_000)
    """Workflow id of the session."""
    run_id: str = ""
    """The session's run that started it."""
    number: int
    """Which invocation of the session it is, from 1."""
    reports: tuple[str, ...] = ()
    """References of the reports that the session applied since it had started the invocation before this one, in
    order; see `ids.report`."""


class Report(Recorded):
    """What became of an invocation since its last report."""

    since: int
    """How many entries its log had by then."""
    entries: tuple[JsonObject, ...] | None = None
    """The entries that came since, see `waystation.core.segment`; None when they are too large to be repeated."""
    state_delta: JsonObject = Field(default_factory=dict)
    """What it changed in the session's state."""
    removed_keys: tuple[str, ...] = ()
    joined: tuple[int, ...] = ()
    """Numbers of the messages that the session handed to it meanwhile and that arrived."""
    standing: tuple[StandingApproval, ...] = ()
    """Which calls people allowed to run unasked, those that it was told of included."""
    search_attributes: bool = False
    """Whether Waystation's search attributes are registered, as far as the invocation was told."""


def lasting(state: Mapping[str, object]) -> JsonObject:
    """Return the session's part of a state."""
    return {key: value for key, value in state.items() if not key.startswith(LASTING_ELSEWHERE)}


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[JsonObject, tuple[str, ...]]:
    """Return what differs in the session's part of a state, and which keys are gone."""
    delta = {key: value for key, value in lasting(after).items() if key not in before or before[key] != value}
    return delta, tuple(key for key in lasting(before) if key not in after)
