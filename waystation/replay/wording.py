"""What workflow code asks of the server, in the words of agents."""

from collections.abc import Mapping, Sequence
from typing import Any

from waystation.core import ids, summary
from waystation.core.entry import (
    AnswerCounted,
    AnswerIgnored,
    Began,
    Body,
    CallLost,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    MessageJoined,
    ModelLost,
    ModelReplied,
)
from waystation.core.fork import TAKE_OVER_ACTIVITY
from waystation.core.log import Log
from waystation.core.notice import NOTIFY_ACTIVITY
from waystation.core.payload import JsonObject, encode
from waystation.core.review import REVIEW_ACTIVITY
from waystation.core.scope import DELIVERY_ACTIVITY
from waystation.core.wire import (
    ARCHIVE_ACTIVITY,
    CHILD_ACTIVITY,
    COLLECT_ACTIVITY,
    MEMO_PENDING,
    MODEL_ACTIVITY,
    SESSION_ARCHIVE_ACTIVITY,
    WORKFLOW,
)
from waystation.replay.commands import Command, value_of

_WAITS = {
    "confirmation": "approval of",
    "credential": "a login for",
    "long_running": "the answer to",
    "budget": "more budget:",
}


def said(command: Command | None, log: Log | None) -> str:
    """Return what a command asks for; `log` is what had happened by then, when there is one."""
    if command is None:
        return "nothing"
    given = _given(command)
    match command.kind:
        case "activity":
            return _activity(command, given, log)
        case "timer":
            return f"wait {command.fields['seconds']:g} s at most"
        case "child" if command.name == WORKFLOW:
            return f"start agent {given.get('agent')} as {command.id}"
        case "child":
            return f"start {command.name} {command.id}"
        case "signal":
            return f"send {command.name!r} to {command.id}"
        case "cancel":
            return f"cancel {command.id}"
        case "memo":
            return _memo(command)
        case "attributes":
            found = (f"{key}={_text(_only(held))}" for key, held in command.fields.items())
            return f"set search attributes {', '.join(found)}"
        case "accept":
            return "take an update"
        case "answer" | "complete" if "result" in command.fields:
            does = "complete with" if command.kind == "complete" else "answer an update with"
            result = _only(command.fields["result"])
            text = result.get("text") if isinstance(result, dict) else None
            return f"{does} {_text(text if text else result)}"
        case "answer" | "fail":
            does = "fail with" if command.kind == "fail" else "refuse an update with"
            return f"{does} {command.fields['type']}: {summary.clip(command.fields['message'])}"
        case "cancelled":
            return "end as cancelled"
        case _:
            return "continue as new"


def _activity(command: Command, given: JsonObject, log: Log | None) -> str:
    match command.name:
        case name if name == MODEL_ACTIVITY:
            what = "callbacks of" if given.get("phase") == "leave" else f"model call {given.get('number')} of"
            return f"{what} {given.get('agent')}"
        case name if name == DELIVERY_ACTIVITY:
            return "tell user: and app: state"
        case name if name == REVIEW_ACTIVITY:
            return f"look into an answer to {given.get('call')}"
        case name if name == NOTIFY_ACTIVITY:
            return f"tell people: {given.get('occasion')} {given.get('function_call_id')}"
        case name if name == CHILD_ACTIVITY:
            return f"ask what became of {given.get('workflow_id')}"
        case name if name == TAKE_OVER_ACTIVITY:
            return "take over what happened before the fork"
        case name if name == COLLECT_ACTIVITY:
            return f"read what invocation {given.get('number')} did"
        case name if name in (ARCHIVE_ACTIVITY, SESSION_ARCHIVE_ACTIVITY):
            return "archive the log"
        case name if "." in name and "function_call_id" in given:
            args = given.get("args")
            if args is None and log and (call := log.calls.get(given["function_call_id"])):
                args = call.args
            return f"call {summary.call(name.rpartition('.')[2], args if isinstance(args, dict) else {})}"
        case name:
            return f"run activity {name}"


def _memo(command: Command) -> str:
    pending = _only(command.fields.get(MEMO_PENDING, ()))
    if isinstance(pending, list):
        return waits(pending) or "say that nothing waits"
    return "say that nothing waits" if MEMO_PENDING in command.fields else f"set memo {', '.join(command.fields)}"


def waits(pending: Sequence[Any]) -> str | None:
    """Return for what a workflow waits, given its pending calls; None when there are none."""
    calls = [call for call in pending if isinstance(call, Mapping)]
    shown = [
        f"{_WAITS.get(str(call.get('kind')), 'an answer to')} {summary.call(str(call.get('tool')), _args(call))}"
        for call in calls
    ]
    return f"wait for {' and '.join(shown)}" if shown else None


def _args(call: Mapping[str, Any]) -> JsonObject:
    args = call.get("args")
    return args if isinstance(args, dict) and set(args) != {"omitted_bytes"} else {}


def _given(command: Command) -> JsonObject:
    found = _only(command.fields.get("input", ()))
    return found if isinstance(found, dict) else {}


def _only(contents: Any) -> Any:
    return value_of(contents[0]) if contents else None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else f"{len(value)} bytes" if isinstance(value, bytes) else _json(value)
    return summary.clip(text)


def _json(value: Any) -> str:
    return encode(value).decode()


def happened(body: Body) -> str | None:
    """Return an entry of a log as what something comes after; None for one that only follows from others."""
    match body:
        case Began():
            return "the start"
        case ModelReplied() | ModelLost():
            return f"model reply {body.number}"
        case CallReturned():
            return f"the result of {body.outcome.function_call_id}"
        case CallLost() | ChildReturned():
            return f"the result of {body.function_call_id}"
        case AnswerCounted():
            return f"the answer to {ids.requesting_call(body.function_call_id)}"
        case AnswerIgnored():
            return "an answer that did not count"
        case DeadlinePassed():
            return f"the deadline of {body.function_call_id}"
        case MessageJoined():
            return "a further message"
        case CancelRequested():
            return "the request to cancel"
        case _:
            return None
