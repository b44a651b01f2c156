"""How events, calls and waits read in a terminal.

Text of models, tools and users is shown with every character that could steer a terminal escaped, and never as markup.
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

from waystation.core import (
    REQUEST_CONFIRMATION,
    REQUEST_CREDENTIAL,
    Event,
    Failure,
    JsonObject,
    PendingCall,
    ids,
    summary,
    text_of,
    usual_hint,
)
from waystation.presentation import text_safety

MAX_TEXT = 4_000
"""Characters of a text that people are shown; `--json` shows all of it."""
MAX_JSON = 300
"""Characters of a response or a value that people are shown; `--json` shows all of it."""

MAX_ARGUMENT = 2_000
"""Characters of an argument that somebody is to approve."""

_JOINER = "\u200d"
"""Holds emoji together, and steers nothing."""

DONE = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved with other arguments",
    "respond": "answered",
    "progress": "told of progress",
    "claim": "taken on",
    "release": "given back",
    "view": "looked at",
    "waive": "let through without the approval that it needed",
    "cancel": "closed",
}
"""What an answer does to a call."""

Kind = Literal["text", "call", "response", "state", "error", "note"]
_STYLES: dict[Kind, Style] = {
    "text": Style(),
    "call": Style(color="yellow"),
    "response": Style(color="cyan"),
    "state": Style(color="magenta"),
    "error": Style(color="red"),
    "note": Style(dim=True),
}


def safe(text: str) -> str:
    """Return `text` on one line, with control characters, escapes and direction marks made visible."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char == _JOINER or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def visible(text: str | Text) -> Text:
    """Return lines of a text, safe where they are not yet."""
    plain = text if isinstance(text, str) else text.plain
    shown = "\n".join(map(safe, plain.split("\n")))
    return text if isinstance(text, Text) and shown == plain else Text(shown)


def safe_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON that is itself valid and cannot steer a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in text)


def clipped(text: str) -> str:
    """Return the beginning of a long text, and how long it is."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"


def state(held: JsonObject) -> str:
    """Return a state with its long texts clipped, one value a line."""

    def short(value: Any) -> Any:
        match value:
            case str():
                return clipped(value)
            case dict():
                return {key: short(item) for key, item in value.items()}
            case list():
                return [short(item) for item in value]
            case _:
                return value

    return safe_json(short(held), indent=2)


def short_json(value: object, length: int = MAX_JSON) -> str:
    """Return compact JSON, clipped."""
    text = safe_json(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def both_ends(value: object) -> str:
    """Return compact JSON of what somebody is to approve; of a long one also the end, where things hide."""
    tail = MAX_ARGUMENT // 4
    return "".join(piece.text for piece in text_safety.pieces_of(safe_json(value), MAX_ARGUMENT - tail, tail))


@dataclass(frozen=True, slots=True)
class Line:
    """One fact about an event."""

    kind: Kind
    who: str
    text: str

    def styled(self) -> Text:
        """Return the line as text for a terminal."""
        result = Text()
        if self.who:
            result.append(self.who, Style(bold=True))
        result.append(self.text, _STYLES[self.kind])
        return result


def lines_of(event: Event) -> Iterator[Line]:
    """Yield what an event says, one fact a line; a text yields as many lines as it has."""
    who = safe(event.author)
    for part in (event.content or {}).get("parts") or ():
        yield from lines_of_part(part, who, event.long_running_tool_ids or ())
    for key, value in event.actions.state_delta.items():
        yield Line("state", "", f"state: {safe(key)} = {short_json(value)}")
    for key in event.actions.removed_keys:
        yield Line("state", "", f"state: {safe(key)} removed")
    if event.actions.compaction:
        text = summary.clip(text_of(event.actions.compaction.compacted_content), MAX_JSON)
        yield Line("note", "", f"summary of {event.covered.count if event.covered else 0} events: {safe(text)}")
    if event.actions.transfer_to_agent:
        yield Line("note", who, f" transfers to {safe(event.actions.transfer_to_agent)}")
    if event.error_code:
        yield Line("error", who, f" {safe(event.error_code)}: {safe(event.error_message or 'no message')}")
    for name, note in (event.custom_metadata or {}).items():
        if isinstance(note, dict):
            yield from _note_lines(name, note)


def lines_of_part(part: JsonObject, who: str = "", later: Container[str] = ()) -> Iterator[Line]:
    """Yield what one part of a content says; `later` are the ids of calls that are long-running."""
    if text := part.get("text"):
        kind: Kind = "note" if part.get("thought") else "text"
        first, *others = clipped(str(text).rstrip()).splitlines() or [""]
        yield Line(kind, who, f"{' thinks' if part.get('thought') else ''}: {safe(first)}")
        for other in others:
            yield Line(kind, "", safe(other.expandtabs(4)))
    elif call := part.get("functionCall"):
        yield _call_line(who, call, str(call.get("id")) in later)
    elif response := part.get("functionResponse"):
        yield _response_line(response)
    else:
        names = ", ".join(safe(name) for name in part if name not in ("thoughtSignature", "text"))
        if names:
            yield Line("note", who, f": [{names}]")


def _call_line(who: str, call: JsonObject, later: bool) -> Line:
    if call.get("name") == REQUEST_CONFIRMATION:
        asked = call.get("args") or {}
        original = asked.get("originalFunctionCall") or {}
        hint, tool = (asked.get("toolConfirmation") or {}).get("hint") or "", str(original.get("name"))
        if ids.is_budget(str(original.get("id"))):
            return Line("call", who, f" needs more budget: {safe(hint)}")
        why = f": {safe(hint)}" if hint not in ("", usual_hint(tool)) else ""
        return Line("call", who, f" needs a confirmation for {safe(tool)}{why}")
    if call.get("name") == REQUEST_CREDENTIAL:
        asked = call.get("args") or {}
        return Line("call", who, f" needs a credential for the call [{safe(str(asked.get('functionCallId')))}]")
    shown = safe(summary.call(str(call.get("name")), call.get("args") or {}))
    number = f" [{safe(str(call['id']))}]" if call.get("id") else ""
    return Line("call", who, f" calls {shown}{number}{', long-running' if later else ''}")


def _response_line(response: JsonObject) -> Line:
    said = response.get("response") or {}
    if ids.is_budget(str(response.get("id"))):
        return Line("response", "user", " granted more" if said.get("confirmed") else " granted no more")
    if response.get("name") == REQUEST_CONFIRMATION:
        which = f" [{safe(ids.requesting_call(str(response['id'])))}]" if response.get("id") else ""
        done = "confirmed" if said.get("confirmed") else "refused"
        return Line("response", "user", f" {done} the call{which}")
    if response.get("name") == REQUEST_CREDENTIAL:
        return Line("response", "user", " gave the credential" if said.get("authorized") else " gave no credential")
    return Line("response", safe(str(response.get("name"))), f" answers {short_json(said)}")


def _note_lines(name: str, note: JsonObject) -> Iterator[Line]:
    """Yield how what the engine notes of an event reads."""
    call = safe(str(note.get("function_call_id")))
    match name:
        case "approval" if origin := note.get("origin"):
            yield Line("note", "", f"[{call}] runs unasked, as approved with {safe(str(origin))}")
        case "approval":
            verified = " (identity verified)" if note.get("verified") else ""
            whom = f" by {safe(str(note['by']))}{verified}" if note.get("by") else ""
            so_far = f", {len(note['approved_by'])} of {note['needed']}" if "needed" in note else ""
            said = f": “{safe(clipped(str(note['comment'])))}”" if note.get("comment") else ""
            done = DONE.get(str(note.get("action")), "answered")
            yield Line("note", "", f"[{call}] {done}{whom}{so_far}{said}")
        case "ignored_answer":
            by = f" by {safe(str(note['by']))}" if note.get("by") else ""
            why = f"{safe(str(note.get('reason')))}: {safe(str(note.get('message')))}"
            yield Line("note", "", f"an answer{by} was ignored, {why}")
        case "not_notified":
            channels = (note.get("channels") or {}).items()
            which = ", ".join(f"{safe(str(channel))} ({safe(str(why))})" for channel, why in channels)
            yield Line("error", "", f"[{call}] people were not told by {which}")
        case "compaction_failed":
            yield Line("error", "", f"older events were not summarised: {safe(str(note.get('reason')))}")


def number(event: Event) -> str:
    """Return the number of an event, which other commands take, as it stands before a line; blank for partial text."""
    return f"{'' if event.index is None else event.index + 1:>3}  "


def clock(timestamp: float, *, now: float | None = None, zone: bool = False) -> str:
    """Return a time of today as such, any other with its date; in local time, on request with the name of its zone.

    `now` defaults to the time of the system.
    """
    moment = datetime.datetime.fromtimestamp(timestamp).astimezone()
    today = datetime.datetime.fromtimestamp(time.time() if now is None else now).astimezone()
    shape = "%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S"
    return moment.strftime(f"{shape} %Z" if zone else shape)


span = partial(text_safety.duration, short=True)
"""Formats a length of time in a few characters, such as `36 h`."""


def date(timestamp: float) -> str:
    """Return a time to the minute, with its date and its zone."""
    return datetime.datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def until(deadline: float, now: float) -> str:
    """Return a deadline with what is left of it."""
    left = deadline - now
    return f"{date(deadline)}, {f'in {text_safety.duration(left)}' if left > 0 else 'which has passed'}"


def failure(failure: Failure) -> str:
    """Return why an activity gave no result."""
    if failure.kind != "error":
        said = {"cancelled": "cancelled", "heartbeat": "its worker was lost (heartbeat)"}
        return said.get(failure.kind, f"time was up ({failure.kind.replace('_', ' ')})")
    return ": ".join(filter(None, (failure.error_type, failure.message)))


def asked(call: PendingCall) -> str:
    """Return a call that waits in one line."""
    if omitted := _omitted(call):
        return f"{safe(call.tool)}(…), {omitted:,} bytes of arguments"
    return safe(summary.call(call.tool, call.args))


def _omitted(call: PendingCall) -> int:
    """Return the size of the arguments of which a memo has only that; 0 when they are there."""
    return int(call.args["omitted_bytes"]) if set(call.args) == {"omitted_bytes"} else 0


def facts(call: PendingCall) -> Iterator[tuple[str, str]]:
    """Yield what one has to know of a call before answering it, each with a label."""
    if call.kind == "confirmation":
        clipped = asked(call).endswith("…")
        for name, value in call.args.items() if not _omitted(call) else ():
            if clipped or summary.shortened(value):  # all of what the line of the call shows in part, but for secrets
                yield "with", f"{safe(name)} = {both_ends(unsecret(name, value))}"
    if call.hint and call.hint != usual_hint(call.tool):
        yield "hint", safe(call.hint)
    if uri := login_uri(call):
        yield "log in", safe(uri)
    if call.interim is not None:
        yield "so far", short_json(call.interim)
    yield "until", until(call.deadline, time.time())


def unsecret(name: str, value: Any) -> Any:
    """Return an argument without what its name, or a name in it, says is secret."""
    if summary.SECRET_NAMES.search(name):
        return "…"
    match value:
        case dict():
            return {key: unsecret(key, inner) for key, inner in value.items()}
        case list():
            return [unsecret(name, inner) for inner in value]
    return value


def auth_scheme(call: PendingCall) -> JsonObject:
    """Return the scheme of the credential that a call waits for."""
    config = call.payload if isinstance(call.payload, dict) else {}
    scheme = config.get("authScheme")
    return scheme if isinstance(scheme, dict) else {}


def login_uri(call: PendingCall) -> str | None:
    """Return where the user logs in for a call that waits for that, None when no login is needed."""
    found: Any = call.payload
    for name in ("exchangedAuthCredential", "oauth2", "authUri"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def answers(call: PendingCall) -> tuple[str, ...]:
    """Return the commands that answer a call, the usual one first; only those that it takes."""
    if call.kind == "credential":
        return "authorize", "reject"
    # What was asked for in a form is not answered by a mere yes.
    usual = ("respond" if call.kind == "long_running" and call.response_schema else "approve", "reject")
    if call.policy is None or call.policy.actions is None:
        return usual
    return tuple(each for each in dict.fromkeys((*usual, "edit", "respond")) if each in call.policy.actions)
