"""Events and pending calls as lines of text that are safe to print in a terminal.

Text from models, tools and users is never interpreted as markup, and every character that could control the terminal
is escaped.
"""

import datetime
import json
import time
import unicodedata
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rich.style import Style
from rich.text import Text

from waystation.core import ids, summary
from waystation.core.actions import ACTIONS
from waystation.core.approval import PendingCall, default_hint
from waystation.core.contract import Event, text_of
from waystation.core.log import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, Failure, responses
from waystation.core.payload import JsonObject
from waystation.core.secrets import hide_named_secrets
from waystation.presentation import text_safety

MAX_TEXT = 4_000
"""Maximum number of characters to show of a text. `--json` shows the whole text."""
MAX_JSON = 300
"""Maximum number of characters to show of a response or other value. `--json` shows the whole value."""
MAX_ARGUMENT = 2_000
"""Maximum number of characters to show of an argument to a call that needs approval, or of a value in the debugger."""

_JOINER = "\u200d"
"""The zero-width joiner, which combines emoji. `escape` keeps it because it cannot control the terminal."""

HOLDS = {
    "agent_missing": "no worker serves the agent",
    "tool_missing": "no worker has the tool",
    "toolset_failed": "a toolset does not list its tools",
    "store_failed": "a store is not available",
    "identity_unavailable": "the identity of the requester cannot be verified at the moment",
    "model_unavailable": "the model is not available",
    "rate_limited": "the model's rate limit is reached",
    "budget_exhausted": "the budget of the tenant or the user is used up",
    "worker_stopped": "a worker stopped before it started a call",
    "remote_waits": "a remote agent waits for an authorization on its side",
}
"""Descriptions of the reasons why invocations are held."""

Kind = Literal["text", "call", "response", "state", "error", "note"]
_STYLES: dict[Kind, Style] = {
    "text": Style(),
    "call": Style(color="yellow"),
    "response": Style(color="cyan"),
    "state": Style(color="magenta"),
    "error": Style(color="red"),
    "note": Style(dim=True),
}


def escape(text: str) -> str:
    """Return `text` as one line, with unprintable characters escaped, except spaces and the zero-width joiner."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char == _JOINER or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def escape_lines(text: str | Text) -> Text:
    """Return multiline text with each line escaped. Styles are lost if anything had to be escaped."""
    plain = text if isinstance(text, str) else text.plain
    escaped = "\n".join(map(escape, plain.split("\n")))
    return text if isinstance(text, Text) and escaped == plain else Text(escaped)


def format_json(value: object, *, indent: int | None = None) -> str:
    """Return the complete value as JSON, with every character that could control the terminal escaped.

    This function does not hide secrets, so hide them first if the value will be displayed.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in text)


def clip(text: str) -> str:
    """Return the text or, if it is longer than `MAX_TEXT`, its beginning followed by its length."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"


def format_state(values: JsonObject) -> str:
    """Return a state or an event as indented JSON, with secrets hidden and long strings clipped."""

    def short(value: Any) -> Any:
        match value:
            case str():
                return clip(value)
            case dict():
                return {key: short(item) for key, item in value.items()}
            case list():
                return [short(item) for item in value]
            case _:
                return value

    return format_json(short(hide_named_secrets(values)), indent=2)


def clip_json(value: object, length: int = MAX_JSON, *, name: str = "") -> str:
    """Return a value as JSON on one line, with secrets hidden. A long value is clipped at the end.

    Args:
        value: The value.
        length: The maximum number of characters.
        name: The name of the value, which may suggest a secret.
    """
    text = format_json(hide_named_secrets(value, name))
    return text if len(text) <= length else text[: length - 1] + "…"


def clip_middle(value: object, name: str) -> str:
    """Return an argument's value as JSON on one line for an approver, with secrets hidden.

    Clip a long value in the middle, not at the end, because malicious content is often hidden at the end.
    """
    text, tail = format_json(hide_named_secrets(value, name)), MAX_ARGUMENT // 4
    return "".join(piece.text for piece in text_safety.split_pieces(text, MAX_ARGUMENT - tail, tail))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text about an event."""

    kind: Kind
    who: str
    text: str

    def styled(self) -> Text:
        """Return the line as styled text for a terminal."""
        result = Text()
        if self.who:
            result.append(self.who, Style(bold=True))
        result.append(self.text, _STYLES[self.kind])
        return result


def format_event(event: Event) -> Iterator[Line]:
    """Yield an event as lines, one per fact. For multiline text, yield each line separately."""
    who, notes = escape(event.author), event.custom_metadata or {}
    names = {response.get("name") for response in event.function_responses()}
    # The note about an answer says more than the answer itself: it names the approver.
    is_noted = "approval" in notes and not names.isdisjoint((REQUEST_CONFIRMATION, REQUEST_CREDENTIAL))
    for part in () if is_noted else (event.content or {}).get("parts") or ():
        yield from format_part(part, who, event.long_running_tool_ids or ())
    for key, value in event.actions.state_delta.items():
        yield Line("state", "", f"state: {escape(key)} = {clip_json(value, name=key)}")
    for key in event.actions.removed_keys:
        yield Line("state", "", f"state: {escape(key)} removed")
    if event.actions.compaction:
        text = summary.clip(text_of(event.actions.compaction.compacted_content), MAX_JSON)
        yield Line("note", "", f"summary of {event.covered.count if event.covered else 0} events: {escape(text)}")
    if event.actions.transfer_to_agent:
        yield Line("note", who, f" transfers to {escape(event.actions.transfer_to_agent)}")
    if event.error_code:
        yield Line("error", who, f" {escape(event.error_code)}: {escape(event.error_message or 'no message')}")
    for name, note in notes.items():
        if isinstance(note, dict):
            yield from _note_lines(name, note)


def format_part(part: JsonObject, who: str = "", long_running: Container[str] = ()) -> Iterator[Line]:
    """Yield one part of a `Content` as lines.

    Args:
        part: The part.
        who: Author of the content.
        long_running: IDs of the long-running calls in the content.
    """
    if text := part.get("text"):
        kind: Kind = "note" if part.get("thought") else "text"
        first, *others = clip(str(text).rstrip()).splitlines() or [""]
        yield Line(kind, who, f"{' thinks' if part.get('thought') else ''}: {escape(first)}")
        for other in others:
            yield Line(kind, "", escape(other.expandtabs(4)))
    elif call := part.get("functionCall"):
        yield _call_line(who, call, str(call.get("id")) in long_running)
    elif response := part.get("functionResponse"):
        yield _response_line(response)
    else:
        names = ", ".join(escape(name) for name in part if name not in ("thoughtSignature", "text"))
        if names:
            yield Line("note", who, f": [{names}]")


def _call_line(who: str, call: JsonObject, is_long_running: bool) -> Line:
    if call.get("name") == REQUEST_CONFIRMATION:
        request = call.get("args") or {}
        original = request.get("originalFunctionCall") or {}
        hint, tool = (request.get("toolConfirmation") or {}).get("hint") or "", str(original.get("name"))
        if ids.is_budget(str(original.get("id"))):
            return Line("call", who, f" needs more budget: {escape(hint)}")
        why = f": {escape(hint)}" if hint not in ("", default_hint(tool)) else ""
        return Line("call", who, f" needs a confirmation for {escape(tool)}{why}")
    if call.get("name") == REQUEST_CREDENTIAL:
        request = call.get("args") or {}
        return Line("call", who, f" needs a credential for the call [{escape(str(request.get('functionCallId')))}]")
    line = escape(summary.call(str(call.get("name")), call.get("args") or {}))
    number = f" [{escape(str(call['id']))}]" if call.get("id") else ""
    return Line("call", who, f" calls {line}{number}{', long-running' if is_long_running else ''}")


def _response_line(response: JsonObject) -> Line:
    result = response.get("response") or {}
    if ids.is_budget(str(response.get("id"))):
        return Line("response", "", f"more budget was {'granted' if result.get('confirmed') is True else 'refused'}")
    if response.get("name") == REQUEST_CONFIRMATION:
        id = f" [{escape(ids.requesting_call(str(response['id'])))}]" if response.get("id") else ""
        done = "confirmed" if result.get("confirmed") is True else "rejected"
        return Line("response", "", f"the call{id} was {done}")
    if response.get("name") == REQUEST_CREDENTIAL:
        return Line("response", "", f"{'the' if result.get('authorized') is True else 'no'} credential was provided")
    return Line("response", escape(str(response.get("name"))), f" answers {clip_json(result)}")


def _note_lines(name: str, note: JsonObject) -> Iterator[Line]:
    call = escape(str(note.get("function_call_id")))
    match name:
        case "approval" if origin := note.get("origin"):
            yield Line("note", "", f"[{call}] runs without asking, as remembered from {escape(str(origin))}")
        case "approval":
            verified = " (identity verified)" if note.get("verified") else ""
            by = f" by {escape(str(note['by']))}{verified}" if note.get("by") else ""
            so_far = f", {len(note['approved_by'])} of {note['needed']}" if "needed" in note else ""
            comment = f": “{escape(clip(str(note['comment'])))}”" if note.get("comment") else ""
            row = ACTIONS.get(str(note.get("action")))
            changes = "".join(f", {line}" for line in list_changes(note.get("edited") or {}))
            yield Line("note", "", f"[{call}] {row.effect if row else 'answered'}{by}{so_far}{changes}{comment}")
        case "ignored_answer":
            by = f" by {escape(str(note['by']))}" if note.get("by") else ""
            why = f"{escape(str(note.get('reason')))}: {escape(str(note.get('message')))}"
            yield Line("note", "", f"an answer{by} was ignored, {why}")
        case "not_notified":
            channels = (note.get("channels") or {}).items()
            names = ", ".join(f"{escape(str(channel))} ({escape(str(why))})" for channel, why in channels)
            yield Line("error", "", f"[{call}] notification failed: {names}")
        case "held":
            yield Line("error", "", f"held, {format_hold(note)}")
        case "unusable_reply":
            yield Line("error", "", f"the model is asked again: {escape(clip(str(note.get('message'))))}")
        case "compaction_failed":
            yield Line("error", "", f"older events were not summarized: {escape(str(note.get('reason')))}")


def list_changes(changes: JsonObject) -> Iterator[str]:
    """Yield a line for each argument that approvers changed, such as `amount: 5000 → 500`."""
    for name, change in changes.items():
        yield f"{escape(name)}: " + " → ".join(
            clip_json(change[side], name=name) if side in change else "none" for side in ("from", "to")
        )


def format_hold(hold: JsonObject) -> str:
    """Describe in one line what is held and why, given an item of the memo or the event's metadata."""
    reason, call = str(hold.get("reason")), hold.get("function_call_id")
    place = f"[{escape(str(call))}] " if call else ""
    return f"{place}{HOLDS.get(reason, escape(reason))}: {escape(clip(str(hold.get('message'))))}"


def format_held(invocation_id: str, hold: JsonObject) -> str:
    """Describe in one line since when and why an invocation is held."""
    return f"{escape(invocation_id)} since {format_time(float(hold.get('since') or 0))}, {format_hold(hold)}"


def format_number(event: Event) -> str:
    """Return the prefix of an event's line: the event number that commands accept, or blanks for partial text."""
    return f"{'' if event.index is None else event.index + 1:>3}  "


def format_time(timestamp: float, *, now: float | None = None, zone: bool = False) -> str:
    """Format a time in the local time zone.

    Args:
        timestamp: The time, in seconds since 1970.
        now: The current time, in seconds since 1970. Defaults to the system time. Times on the current day are
            formatted without the date.
        zone: Whether to add the abbreviation of the time zone.
    """
    moment = datetime.datetime.fromtimestamp(timestamp).astimezone()
    today = datetime.datetime.fromtimestamp(time.time() if now is None else now).astimezone()
    shape = "%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S"
    return moment.strftime(f"{shape} %Z" if zone else shape)


format_span = partial(text_safety.format_duration, short=True)
"""Format a duration in a few characters, such as `36 h`."""


def format_date(timestamp: float) -> str:
    """Format a time with date and time zone, to the minute."""
    return datetime.datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def format_deadline(deadline: float, now: float) -> str:
    """Format a deadline together with the time left until then."""
    left = deadline - now
    return f"{format_date(deadline)}, {f'in {text_safety.format_duration(left)}' if left > 0 else 'which has passed'}"


def describe_failure(failure: Failure, task_queue: str | None = None) -> str:
    """Describe why an activity, which was on this task queue if it is known, failed to return a result."""
    if failure.kind != "error":
        reasons = {"cancelled": "cancelled", "heartbeat": "worker lost (no heartbeat)"}
        return reasons.get(failure.kind, f"timed out ({failure.kind.replace('_', ' ')})")
    explained = responses.explain_undecrypted(failure.message, task_queue)
    return explained or ": ".join(filter(None, (failure.error_type, failure.message)))


def format_call(call: PendingCall) -> str:
    """Format a pending call as one line, such as `pay(amount=9)`. If its arguments were omitted, show their size."""
    if set(call.args) == {"omitted_bytes"}:  # the arguments were too large for the workflow memo
        return f"{escape(call.tool)}(…), {call.args['omitted_bytes']:,} bytes of arguments"
    return escape(summary.call(call.tool, call.args))


def format_titled_call(call: PendingCall) -> str:
    """Format a pending call as one line, after its title if it has one."""
    return f"{escape(call.title)}: {format_call(call)}" if call.title else format_call(call)


def list_facts(call: PendingCall) -> Iterator[tuple[str, str]]:
    """Yield labeled facts that an approver needs to know before answering a call."""
    if call.title:
        yield "title", escape(call.title)
    if origin := summary.origin(call.tool_origin):
        yield "origin", escape(origin)
    if call.kind == "confirmation":
        clipped = format_call(call).endswith("…")
        for name, value in call.args.items():
            if clipped or summary.shortened(value):  # the one-line form of the call shows only part of this value
                yield "with", f"{escape(name)} = {clip_middle(value, name)}"
    if call.hint and call.hint != default_hint(call.tool):
        yield "hint", escape(call.hint)
    if uri := get_login_uri(call):
        yield "log in", escape(uri)
    if call.tenant:
        yield "tenant", escape(call.tenant)
    if call.interim is not None:
        yield "progress", clip_json(call.interim)
    yield "until", format_deadline(call.deadline, time.time())


def get_auth_scheme(call: PendingCall) -> JsonObject:
    """Return the auth scheme of the credential that a call needs, or an empty object if it does not need one."""
    config = call.payload if isinstance(call.payload, dict) else {}
    scheme = config.get("authScheme")
    return scheme if isinstance(scheme, dict) else {}


def get_login_uri(call: PendingCall) -> str | None:
    """Return the URL of the login that a call needs, or None if it does not need a login."""
    value: Any = call.payload
    for name in ("exchangedAuthCredential", "oauth2", "authUri"):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def list_answers(call: PendingCall) -> tuple[str, ...]:
    """Return the names of the commands that can decide a call, with the most common one first."""
    if call.kind == "credential":
        return "authorize", "reject"
    if call.machine:
        return "replace", "cancel"
    if call.kind == "unknown":
        return "ran", "not-run", "start-again"
    # A call with a response schema needs a response that matches the schema, so an approval is not enough.
    usual = ("respond" if call.kind == "long_running" and call.response_schema else "approve", "reject")
    if call.policy is None or call.policy.actions is None:
        return usual
    return tuple(action for action in dict.fromkeys((*usual, "edit", "respond")) if action in call.policy.actions)
