"""Names that the engine mints.

Ids derive from the invocation and a counter, so a replay, a retry and a reset mint the same ones.
"""

from urllib.parse import quote

MAX_SESSION_ID_CHARS = 900
"""The server refuses workflow ids over 1,000; those of a session's invocations, and of agents they call, add to it."""
_NOT_FOUND = "not-in-store-"
_FORK = "~"
_BUDGET = "budget-"
_ARCHIVE = "archive-"


def not_found(number: int) -> str:
    """Return the mark in a history by which a run says that it did not find its `number`th signal in the store."""
    return f"{_NOT_FOUND}{number}"


def signal_not_found(mark: str) -> int | None:
    """Return the number of the signal of which such a mark says so; None when the mark says something else."""
    number = mark.removeprefix(_NOT_FOUND)
    return int(number) if number != mark and number.isdecimal() else None


def function_call(number: int, turn: int = 0) -> str:
    """Return the id of the `number`th function call that the agent at work `turn` makes.

    Agents work side by side, so they cannot share a counter.
    """
    return f"fc-{turn}-{number}" if turn else f"fc-{number}"


def archive(number: int) -> str:
    """Return the id of an activity that archives entries; its result is not an entry."""
    return f"{_ARCHIVE}{number}"


def is_archive(activity_id: str) -> bool:
    """Whether an activity of that id archives entries."""
    return activity_id.startswith(_ARCHIVE)


def child_watch(function_call_id: str, stopping: bool) -> str:
    """Return the id of the activity that waits for a called agent; another one once it was cancelled."""
    return f"{function_call_id}.stopping" if stopping else function_call_id


def confirmation(function_call_id: str) -> str:
    """Return the id of the request to confirm a call, as it appears in events."""
    return f"{function_call_id}-confirmation"


def credential(function_call_id: str) -> str:
    """Return the id of the request for a credential that a call needs, as it appears in events."""
    return f"{function_call_id}-credential"


def budget(number: int) -> str:
    """Return the id under which a person is asked for more budget for the `number`th time. No model mints it."""
    return f"{_BUDGET}{number}"


def is_budget(function_call_id: str) -> bool:
    """Whether such an id, or that of the request in events, is meant."""
    return function_call_id.startswith(_BUDGET)


def requesting_call(function_call_id: str) -> str:
    """Return the id of the call that such a request is about; any other id is returned unchanged."""
    return function_call_id.removesuffix("-confirmation").removesuffix("-credential")


def child_invocation(invocation_id: str, function_call_id: str) -> str:
    """Return the workflow id of the invocation that a call of an agent starts."""
    return f"{invocation_id}/{function_call_id}"


def fork(invocation_id: str, number: int) -> str:
    """Return the workflow id of a fork of an invocation, unless another one is chosen."""
    return f"{invocation_id}{_FORK}{number}"


def is_fork(invocation_id: str, other: str) -> bool:
    """Whether another invocation has the id of a fork of an invocation; forks of forks have not."""
    return other.startswith(invocation_id + _FORK) and other[len(invocation_id + _FORK) :].isdecimal()


def approval(invocation_id: str, function_call_id: str) -> str:
    """Return what names a call that waits for a person in the whole namespace."""
    return f"{invocation_id}/{function_call_id}"


def approved_call(approval_id: str) -> tuple[str, str]:
    """Return the ids of the invocation and of the call that such a name stands for.

    Raises:
        ValueError: It is none.
    """
    invocation_id, _, function_call_id = approval_id.rpartition("/")
    if not (invocation_id and function_call_id):
        raise ValueError(f"{approval_id!r} names no call; it is `<invocation id>/<function call id>`.")
    return invocation_id, function_call_id


def idempotency_key(invocation_id: str, function_call_id: str) -> str:
    """Return the key under which a tool's side effect counts once: the same over attempts, replays and resets."""
    return f"{invocation_id}/{function_call_id}"


def event(invocation_id: str, number: int) -> str:
    """Return the id of the `number`th event of an invocation."""
    return f"{invocation_id}/e{number}"


def session(app: str, user_id: str, session_id: str) -> str:
    """Return the workflow id of a session; no name can reach into another's.

    Raises:
        ValueError: The id would be longer than a workflow id may be.
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
    """Return the reference of what invocation `number` of a session reports from its entry `since` on."""
    return f"{number}@{since}"


def reported(ref: str) -> tuple[int, int]:
    """Return number and first entry of such a reference."""
    number, _, since = ref.partition("@")
    return int(number), int(since)
