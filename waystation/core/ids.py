"""IDs that the engine generates.

IDs are derived from names, other IDs and counters, so replays, retries and resets generate the same IDs.
"""

import re
from urllib.parse import quote, unquote

from waystation.core.payload import digest

MAX_SESSION_ID_CHARS = 900
"""Maximum length of a session's workflow ID; longer ones raise an error. The server's limit is 1,000, and the IDs of
invocations and called agents are built by appending to the session's ID."""
TENANT = "[a-z0-9][a-z0-9._-]{0,62}"
"""The form of a tenant's name: up to 63 lowercase letters, digits, `.`, `_` and `-`. The first is a letter or digit."""
_APP_KEY = re.compile(f"({TENANT})~~(.*)", re.DOTALL)
_NOT_FOUND = "not-in-store-"
_FORK = "~"
_BUDGET = "budget-"
_ARCHIVE = "archive-"
_ARRIVAL = "waystation.arrival-"
_UNSEARCHABLE = "waystation.unsearchable-"
_UNCACHED = "waystation.uncached-"
_UNSEEN = "waystation.unseen-"
READ_BEFORE_START = "waystation.read-before-start"
"""The patch marker of a session that reads the progress of its invocations even if it could not continue as new."""
CANCEL_STARTED = "waystation.cancel-started"
"""The patch marker of a session that cancels an invocation that had not started when the session was canceled."""
JOIN_IN_ORDER = "waystation.join-in-order"
"""The patch marker of a session that delivers joined messages one after the other."""
FLUSH_BEFORE_PARKING = "waystation.flush-before-parking"
"""The patch marker of an invocation that signals its wait after its writes to `user:` and `app:` state."""
FILLED = "waystation.filled"
"""The patch marker of runs whose workflow tasks are never empty; see `LogWriter.fill_task`."""
ASKS_OUTCOMES = "waystation.asks-outcomes"
"""The patch marker of runs that ask operators about calls whose outcome is unknown."""
ASKS_UNSTOPPED = "waystation.asks-unstopped"
"""The patch marker of runs that ask operators about calls that ignored their cancellation when the run ended."""
_PROGRAM = "program."
_TARGET = ".target"
CALL_HEADER = "waystation-call"
"""The header of a Nexus operation that contains the reference to the entry for its result."""


def not_found(number: int) -> str:
    """Return the patch marker for a signal whose content was not in the store. Signals are numbered from 1."""
    return f"{_NOT_FOUND}{number}"


def arrival(number: int, function_call_id: str, *, late: bool) -> str:
    """Return the patch marker for a signal that arrived before the deadline of a call, or after it if `late` is set."""
    return f"{_ARRIVAL}{'late' if late else 'early'}-{number}-{function_call_id}"


def is_arrival(mark: str) -> bool:
    """Return whether `arrival` created a patch marker."""
    return mark.startswith(_ARRIVAL)


def unsearchable(number: int) -> str:
    """Return the patch marker which records that search attributes were missing at the `number`th check of a run."""
    return f"{_UNSEARCHABLE}{number}"


def uncached(number: int) -> str:
    """Return the patch marker for a worker that did not cache workflows at the `number`th pause of a run."""
    return f"{_UNCACHED}{number}"


def unseen(number: int) -> str:
    """Return the patch marker for the `number`th pause of a run if the run did not look for progress."""
    return f"{_UNSEEN}{number}"


def is_known_mark(mark: str) -> bool:
    """Return whether this version of Waystation can create the patch marker."""
    changes = (READ_BEFORE_START, CANCEL_STARTED, JOIN_IN_ORDER, FLUSH_BEFORE_PARKING, FILLED, ASKS_OUTCOMES)
    is_change = mark in (*changes, ASKS_UNSTOPPED)
    is_observation = mark.startswith((_ARRIVAL, _UNSEARCHABLE, _UNCACHED, _UNSEEN))
    return is_change or is_observation or parse_not_found(mark) is not None


def parse_not_found(mark: str) -> int | None:
    """Return the signal number in a marker created by `not_found`, or None for any other marker."""
    number = mark.removeprefix(_NOT_FOUND)
    return int(number) if number != mark and number.isdecimal() else None


def function_call(number: int, turn: int = 0) -> str:
    """Return the ID of the `number`th function call of agent run `turn`.

    Each agent run has a separate counter because agents can run in parallel.
    """
    return f"fc-{turn}-{number}" if turn else f"fc-{number}"


def archive(number: int) -> str:
    """Return the ID of the `number`th activity that archives entries. Its result does not become a log entry."""
    return f"{_ARCHIVE}{number}"


def is_archive(activity_id: str) -> bool:
    """Return whether the activity ID belongs to an activity that archives entries."""
    return activity_id.startswith(_ARCHIVE)


def target(entry_ref: str) -> str:
    """Return the ID of the user's activity that runs for a call, given the reference to the entry for its result."""
    return entry_ref + _TARGET


def parse_target(activity_id: str) -> str | None:
    """Return the reference that `target` was given, or None for the ID of any other activity."""
    return activity_id.removesuffix(_TARGET) if activity_id.endswith(_TARGET) else None


def child_watch(function_call_id: str, stopping: bool) -> str:
    """Return the ID of the activity that polls a called agent. The ID is different once the agent is being stopped."""
    return f"{function_call_id}.stopping" if stopping else function_call_id


def confirmation(function_call_id: str) -> str:
    """Return the ID of a confirmation request as it appears in events."""
    return f"{function_call_id}-confirmation"


def credential(function_call_id: str) -> str:
    """Return the ID of a credential request as it appears in events."""
    return f"{function_call_id}-credential"


def budget(number: int) -> str:
    """Return the ID of the `number`th request for more budget. No model can generate this ID."""
    return f"{_BUDGET}{number}"


def is_budget(function_call_id: str) -> bool:
    """Return whether the ID belongs to a request for more budget."""
    return function_call_id.startswith(_BUDGET)


def requesting_call(function_call_id: str) -> str:
    """Return the ID of the call that a confirmation or credential request is about. Return any other ID unchanged."""
    return function_call_id.removesuffix("-confirmation").removesuffix("-credential")


def child_invocation(invocation_id: str, function_call_id: str) -> str:
    """Return the workflow ID of a called agent's invocation."""
    return f"{invocation_id}/{function_call_id}"


def event_delivery(invocation_id: str, key: str) -> str:
    """Return the workflow ID of the delivery of an event."""
    return f"{invocation_id}/event:{key}"


def push_delivery(invocation_id: str) -> str:
    """Return the workflow ID of the deliveries to the push configurations of a task."""
    return f"{invocation_id}/push"


def fork(invocation_id: str, number: int) -> str:
    """Return the default workflow ID for the `number`th fork of an invocation."""
    return f"{invocation_id}{_FORK}{number}"


def is_fork(invocation_id: str, other: str) -> bool:
    """Return whether `other` is the ID of a direct fork of the invocation."""
    return other.startswith(invocation_id + _FORK) and other[len(invocation_id + _FORK) :].isdecimal()


def approval(invocation_id: str, function_call_id: str) -> str:
    """Return the approval ID of a call, which is unique in the namespace."""
    return f"{invocation_id}/{function_call_id}"


def parse_approval(approval_id: str) -> tuple[str, str]:
    """Return the invocation ID and the function call ID that make up an approval ID.

    Raises:
        ValueError: The string is not an approval ID.
    """
    invocation_id, _, function_call_id = approval_id.rpartition("/")
    if not (invocation_id and function_call_id):
        raise ValueError(f"{approval_id!r} is not an approval ID of the form `<invocation ID>/<function call ID>`.")
    return invocation_id, function_call_id


def idempotency_key(invocation_id: str, function_call_id: str) -> str:
    """Return a key that lets a tool apply its side effect only once. It is the same for retries, replays and resets."""
    return f"{invocation_id}/{function_call_id}"


def event(invocation_id: str, number: int) -> str:
    """Return the ID of the `number`th event of an invocation."""
    return f"{invocation_id}/e{number}"


def check_app(app: str) -> str:
    """Return the name of an app unchanged.

    Raises:
        ValueError: The name has the form `<tenant>~~<app>`, which `app_key` reserves for apps within a tenant.
    """
    if _APP_KEY.fullmatch(app):
        raise ValueError("must not begin with a tenant and `~~`; pass the tenant as `tenant`")
    return app


def app_key(app: str, tenant: str | None) -> str:
    """Return the key that separates an app's data: its name or, within a tenant, `<tenant>~~<app>`.

    IDs of sessions and scopes contain this key. Artifact, memory and credential services receive its `shown_app` as the
    app's name. Different pairs of app and tenant never share a key.

    Raises:
        ValueError: The app or the tenant is not valid.
    """
    if tenant is None:
        return check_app(app)
    key = f"{tenant}~~{check_app(app)}"
    if parse_app_key(key) != (app, tenant):
        raise ValueError(f"{tenant!r} is not a valid tenant: it must match {TENANT}.")
    return key


def parse_app_key(key: str) -> tuple[str, str | None]:
    """Return the app and the tenant that make up a key created by `app_key`."""
    match = _APP_KEY.fullmatch(key)
    return (match[2], match[1]) if match else (key, None)


def fairness_key(key: str, user_id: str = "") -> str:
    """Return the fairness key of a user's workflows, given the app's key (see `app_key`): the tenant, if there is one.

    Otherwise, the key is a digest of the app and the user. It cannot equal a tenant, and fits the server's 64 bytes.
    """
    _, tenant = parse_app_key(key)
    return tenant or f"~{digest([key, user_id])}"


def tenant_of_fairness_key(key: str) -> str | None:
    """Return the tenant that is a fairness key (see `fairness_key`), or None for the key of a user or no key."""
    return key if key and not key.startswith("~") else None


def program_tenant(name: str) -> str:
    """Return the tenant that separates the sessions of one scope of a program's session service from all others."""
    return f"{_PROGRAM}{name}"


def shown_app(key: str) -> str:
    """Return the name of an app that tools and services receive: its key or, in a `program_tenant`, its plain name."""
    app, tenant = parse_app_key(key)
    return app if tenant and tenant.startswith(_PROGRAM) else key


def stored_names(key: str, user_id: str, session_id: str) -> dict[str, str]:
    """Return the names under which artifact and memory services keep the data of a session. `key` is the app's key."""
    return {"app_name": shown_app(key), "user_id": user_id, "session_id": session_id}


def session(app: str, user_id: str, session_id: str) -> str:
    """Return the workflow ID of a session. `app` is the app's key (see `app_key`).

    Names are percent-encoded, so different sessions never share an ID.

    Raises:
        ValueError: A name is empty, or the ID would be too long.
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


def owned_invocation(app: str, user_id: str, name: str) -> str:
    """Return the workflow ID of an invocation without a session whose payloads have the user's key."""
    return "/".join(("invocation", *(quote(part, safe="") for part in (app, user_id, name))))


def forgetting(tenant: str | None, app: str | None, user_id: str) -> str:
    """Return the ID of the workflow that runs while a user's data is deleted in an app, or in all apps if it is None.

    The ID does not show the names, because deleted workflows remain listed for a while.
    """
    return f"forgetting/{digest([tenant, app, user_id])}"


def session_name(session: str) -> str:
    """Return the session ID that is part of a session's workflow ID."""
    return unquote(session.rpartition("/")[2])


def session_invocation(session: str, number: int) -> str:
    """Return the workflow ID of a session's `number`th invocation."""
    return f"{session}/{number}"


def report(number: int, since: int) -> str:
    """Return the reference to a report on invocation `number` that starts with the invocation's log entry `since`."""
    return f"{number}@{since}"


def parse_report(ref: str) -> tuple[int, int]:
    """Parse a reference to a report. Return the invocation number and the index of the report's first entry."""
    number, _, since = ref.partition("@")
    return int(number), int(since)
