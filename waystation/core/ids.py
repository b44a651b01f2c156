"""Ids that the engine generates.

They derive from the invocation id and a counter, so a replay, a retry and a reset generate the same ids.
"""

from urllib.parse import quote

MAX_SESSION_ID_CHARS = 900
"""The server's limit is 1,000. Ids of invocations and called agents append to the session's id."""
_NOT_FOUND = "not-in-store-"
_FORK = "~"
_BUDGET = "budget-"
_ARCHIVE = "archive-"


def not_found(number: int) -> str:
    """Return the patch marker for a signal whose content was not in the store; signals count from 1."""
    return f"{_NOT_FOUND}{number}"


def parse_not_found(mark: str) -> int | None:
    """Return the signal number in such a marker; None for other markers."""
    number = mark.removeprefix(_NOT_FOUND)
    return int(number) if number != mark and number.isdecimal() else None


def function_call(number: int, turn: int = 0) -> str:
    """Return the id of the `number`th function call of agent run `turn`.

    Agents run in parallel, so they cannot share a counter.
    """
    return f"fc-{turn}-{number}" if turn else f"fc-{number}"


def archive(number: int) -> str:
    """Return the id of an activity that archives entries; its result is not an entry."""
    return f"{_ARCHIVE}{number}"


def is_archive(activity_id: str) -> bool:
    """Whether an activity of that id archives entries."""
    return activity_id.startswith(_ARCHIVE)


def child_watch(function_call_id: str, stopping: bool) -> str:
    """Return the id of the activity that polls a called agent; a different one after its cancellation."""
    return f"{function_call_id}.stopping" if stopping else function_call_id


def confirmation(function_call_id: str) -> str:
    """Return the id of a confirmation request, as it appears in events."""
    return f"{function_call_id}-confirmation"


def credential(function_call_id: str) -> str:
    """Return the id of a credential request, as it appears in events."""
    return f"{function_call_id}-credential"


def budget(number: int) -> str:
    """Return the id of the `number`th request for more budget. Models cannot generate it."""
    return f"{_BUDGET}{number}"


def is_budget(function_call_id: str) -> bool:
    """Whether an id belongs to a request for more budget."""
    return function_call_id.startswith(_BUDGET)


def requesting_call(function_call_id: str) -> str:
    """Return the id of the call that a request is about; other ids are returned unchanged."""
    return function_call_id.removesuffix("-confirmation").removesuffix("-credential")


def child_invocation(invocation_id: str, function_call_id: str) -> str:
    """Return the workflow id of a called agent's invocation."""
    return f"{invocation_id}/{function_call_id}"


def fork(invocation_id: str, number: int) -> str:
    """Return the default workflow id of the `number`th fork of an invocation."""
    return f"{invocation_id}{_FORK}{number}"


def is_fork(invocation_id: str, other: str) -> bool:
    """Whether `other` has the id of a direct fork of the invocation."""
    return other.startswith(invocation_id + _FORK) and other[len(invocation_id + _FORK) :].isdecimal()


def approval(invocation_id: str, function_call_id: str) -> str:
    """Return the approval id of a call: unique in the namespace."""
    return f"{invocation_id}/{function_call_id}"


def parse_approval(approval_id: str) -> tuple[str, str]:
    """Return the invocation id and function call id in an approval id.

    Raises:
        ValueError: It is not an approval id.
    """
    invocation_id, _, function_call_id = approval_id.rpartition("/")
    if not (invocation_id and function_call_id):
        raise ValueError(f"{approval_id!r} names no call; it is `<invocation id>/<function call id>`.")
    return invocation_id, function_call_id


def idempotency_key(invocation_id: str, function_call_id: str) -> str:
    """Return the key that makes a tool's side effect count once: equal for attempts, replays and resets."""
    return f"{invocation_id}/{function_call_id}"


def event(invocation_id: str, number: int) -> str:
    """Return the id of the `number`th event of an invocation."""
    return f"{invocation_id}/e{number}"


def session(app: str, user_id: str, session_id: str) -> str:
    """Return the workflow id of a session. Names are quoted, so different sessions never share an id.

    Raises:
        ValueError: A name is empty, or the id would be too long.
    """
    names = [quote(name, safe="") for name in (app, user_id, session_id)]
    made = "/".join(("session", *names))
    if not all(names):
        raise ValueError("A session needs a name for each of `app`, `user_id` and `session_id`; one of them is empty.")
    if len(made) > MAX_SESSION_ID_CHARS:
        raise ValueError(
            f"The workflow id of the session would have {len(made)} characters; shorten its names until it has at most "
            f"{MAX_SESSION_ID_CHARS}. Characters other than letters, digits and _.-~ count as three or more."
        )
    return made


def session_invocation(session: str, number: int) -> str:
    """Return the workflow id of an invocation of a session."""
    return f"{session}/{number}"


def report(number: int, since: int) -> str:
    """Return the reference of a report of invocation `number` that begins at its entry `since`."""
    return f"{number}@{since}"


def parse_report(ref: str) -> tuple[int, int]:
    """Return invocation number and first entry of a report reference."""
    number, _, since = ref.partition("@")
    return int(number), int(since)
