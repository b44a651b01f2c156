"""Names that the engine mints, and references into a history.

Ids derive from the invocation and a counter, so a replay, a retry and a reset mint the same ones. A reference says
where in the history a log entry was born; activities are told references, never content.
"""

from urllib.parse import quote

MAX_SESSION_ID_CHARS = 900
"""The server refuses workflow ids over 1,000; those of a session's invocations, and of agents they call, add to it."""
START = "start"
"""The input of the invocation."""
CANCEL = "cancel"
"""The request to cancel it."""
END = "end"
"""The end of it."""
CALLED = ">"
_TURN = "@"
_WRAP_UP = "^"
_RUN = "~"
DEADLINE = "x:"
_IGNORED = "!"
_SUBMITTED = "?"
_REVIEW = "r:"
NOTICE = "n:"
_TOLD = "t:"
_BUDGET = "budget-"
_DELIVERY = "d:"
_ARCHIVE = "archive-"
_STOPPING = ".stopping"
_NOT_FOUND = "not-in-store-"
_FORK = "~"
FORK = "fork"
"""Id of the activity that reads what an invocation takes over of another one."""


def model_called(number: int, turn: int, wrap_up: bool = False) -> str:
    """Return the reference of the moment at which model call `number` was scheduled, for the agent at work `turn`."""
    return f"{CALLED}{number}{f'{_TURN}{turn}' if turn else ''}{_WRAP_UP if wrap_up else ''}"


def called_model(ref: str) -> tuple[int, int, bool]:
    """Return number and turn of such a reference, and whether the model was told to wrap up."""
    number, _, turn = ref.removeprefix(CALLED).removesuffix(_WRAP_UP).partition(_TURN)
    return int(number), int(turn or 0), ref.endswith(_WRAP_UP)


def model_replied(number: int) -> str:
    """Return the id of the activity of model call `number`, which begins the reference of its result."""
    return f"m{number}"


def signalled(number: int) -> str:
    """Return the reference of the signal that was the `number`th to arrive, of whatever name."""
    return f"s{number}"


def updated(number: int) -> str:
    """Return the reference of the update that was the `number`th to be accepted."""
    return f"u{number}"


def ignored(ref: str) -> str:
    """Return the reference of a signal whose answer did not count; so every reader knows without judging again."""
    return f"{ref}{_IGNORED}"


def is_ignored(ref: str) -> bool:
    """Whether a reference says that its answer did not count."""
    return ref.endswith(_IGNORED)


def submitted(ref: str) -> str:
    """Return the reference of a signal or update whose answer is to be reviewed before it may count."""
    return f"{ref}{_SUBMITTED}"


def is_submitted(ref: str) -> bool:
    """Whether a reference says that its answer is to be reviewed."""
    return ref.endswith(_SUBMITTED)


def message(ref: str) -> str:
    """Return the reference without the judgement; any other reference is returned unchanged."""
    return ref.removesuffix(_IGNORED).removesuffix(_SUBMITTED)


def review(ref: str) -> str:
    """Return the id of the activity that reviews the answer of a signal or update."""
    return f"{_REVIEW}{ref}"


def is_review(ref: str) -> bool:
    """Whether an activity, or its result, is of that kind."""
    return ref.startswith(_REVIEW)


def reviewed(ref: str) -> str:
    """Return whose answer such an activity, or its result, is about."""
    return ref.removeprefix(_REVIEW).partition(".")[0].removesuffix(_IGNORED)


def notice_due(function_call_id: str, wait: int, number: int) -> str:
    """Return the reference of a reminder or an escalation: the `number`th of the `wait`th time that a call waits."""
    return f"{NOTICE}{function_call_id}.{wait}.{number}"


def due_notice(ref: str) -> tuple[str, int, int]:
    """Return call, wait and number of such a reference."""
    function_call_id, wait, number = ref.removeprefix(NOTICE).rsplit(".", 2)
    return function_call_id, int(wait), int(number)


def notification(function_call_id: str, wait: int, occasion: str) -> str:
    """Return the id of the activity that tells people of a call."""
    return f"{_TOLD}{function_call_id}.{wait}.{occasion}"


def is_notification(ref: str) -> bool:
    """Whether an activity is of that kind."""
    return ref.startswith(_TOLD)


def notified(ref: str) -> tuple[str, str]:
    """Return the call that such an activity is about, and the occasion."""
    function_call_id, _, occasion = ref.removeprefix(_TOLD).split(".", 2)
    return function_call_id, occasion


def not_found(number: int) -> str:
    """Return the mark in a history by which a run says that it did not find its `number`th signal in the store."""
    return f"{_NOT_FOUND}{number}"


def signal_not_found(mark: str) -> str | None:
    """Return the reference of the signal of which such a mark says so; None when the mark says something else."""
    number = mark.removeprefix(_NOT_FOUND)
    return signalled(int(number)) if number != mark and number.isdecimal() else None


def result(activity_id: str, mark: str) -> str:
    """Return the reference of a result; `mark` tells the attempts of one activity apart."""
    return f"{activity_id}.{mark}" if mark else activity_id


def delivery(last: int) -> str:
    """Return the id of the activity that tells scopes what events up to number `last` wrote to them."""
    return f"{_DELIVERY}{last}"


def is_delivery(ref: str) -> bool:
    """Whether an activity is of that kind; function calls begin with `fc`, model calls with `m`."""
    return ref.startswith(_DELIVERY)


def delivered(ref: str) -> int:
    """Return the number of the last event of such a delivery."""
    return int(ref.removeprefix(_DELIVERY))


def deadline_passed(function_call_id: str) -> str:
    """Return the reference of a deadline that passed without an answer."""
    return f"{DEADLINE}{function_call_id}"


def function_call(number: int, turn: int = 0) -> str:
    """Return the id of the `number`th function call that the agent at work `turn` makes.

    Agents work side by side, so they cannot share a counter.
    """
    return f"fc-{turn}-{number}" if turn else f"fc-{number}"


def archive(number: int) -> str:
    """Return the id of the activity that archives entries; what it returns is no entry of the log."""
    return f"{_ARCHIVE}{number}"


def is_archive(activity_id: str) -> bool:
    """Whether an activity of that id archives entries."""
    return activity_id.startswith(_ARCHIVE)


def looked_after(function_call_id: str, stopping: bool) -> str:
    """Return the id of the activity that asks what became of a called agent; another one once it was told to end."""
    return f"{function_call_id}{_STOPPING}" if stopping else function_call_id


def called_agent(activity_id: str) -> str:
    """Return for which call such an activity asks."""
    return activity_id.removesuffix(_STOPPING)


def performance(function_call_id: str, run: int) -> str:
    """Return the id of the activity that carries out a call, which some calls need more than once."""
    return f"{function_call_id}{_RUN}{run}" if run else function_call_id


def performed(activity_id: str) -> tuple[str, int]:
    """Return which call such an activity carries out, and how often the call had returned before."""
    call_id, _, run = activity_id.partition(_RUN)
    return call_id, int(run or 0)


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
