"""Run the same conversation with a sample on google-adk's runner and on Waystation's."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from google.genai import types

from verification.adk_samples.scripted_llm import Progress
from verification.differential.record import event_of, record

Json = dict[str, Any]
USER, SESSION = "user", "session"
MAX_MESSAGES = 30
"""Maximum number of messages and answers. A sample that needs more counts as endless."""
_REQUESTS = ("adk_request_confirmation", "adk_request_credential")
_CHANGING = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?[+-]\d\d:?\d\d|Z| [A-Z]{3,4}\b)*"), "<time>"),
    # IDs of google-adk's calls are not replaced here, because they are numbered later.
    (re.compile(r"(?<!adk-)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b0x[0-9a-f]{8,}\b"), "<address>"),
)
"""Texts that differ from run to run."""
_TIMES = (1.6e9, 2.6e9)
"""Numbers in this range count as times: from 2020 to 2052, in seconds since 1970."""


def fix_random_numbers() -> None:
    """Make the numbers that tools draw the same in both runs, even if other code draws numbers, too."""
    random.random = lambda: 0.5
    random.uniform = lambda a, b: a
    random.randint = lambda a, b: a
    random.choice = lambda seq: seq[0]
    random.sample = lambda population, k, *, counts=None: list(population)[:k]
    random.shuffle = lambda x: None


async def converse(runner: Any, sessions: Any, app_name: str, progress: Progress) -> Json:
    """Continue until no call is pending and every reachable agent has acted. Return the record of the session."""
    where = {"app_name": app_name, "user_id": USER, "session_id": SESSION}
    await sessions.create_session(**where, state=dict(progress.state))
    answered: set[str] = set()
    raised = None
    message: types.Content | None = _say("Begin.")
    for _ in range(MAX_MESSAGES):
        if message is None:
            break
        before = len(progress.unvisited)
        try:
            async for _event in runner.run_async(user_id=USER, session_id=SESSION, new_message=message):
                pass
        except Exception as error:  # noqa: BLE001  # part of the record
            raised = f"{type(error).__name__}: {error}"
            break
        session = await sessions.get_session(**where)
        if waiting := next((found for found in _waiting(session.events) if _key(*found) not in answered), None):
            answered.add(_key(*waiting))
            message = _answer(waiting[1])
        else:
            message = _say("Continue.") if 0 < len(progress.unvisited) < before else None
    else:
        raised = f"The conversation did not end after {MAX_MESSAGES} messages."
    session = await sessions.get_session(**where)
    state = {name: value for name, value in session.state.items() if not name.startswith("temp:")}
    left = sorted([*progress.uncalled, *progress.unvisited])
    events = [_comparable(event) for event in session.events]
    return record(events, _steady(state), {}, raised, parallel=False, left=left)


def _say(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def _waiting(events: Sequence[Any]) -> Iterator[tuple[str, types.FunctionCall]]:
    for event in events:
        for call in event.get_function_calls():
            if call.id in (event.long_running_tool_ids or ()):
                yield event.invocation_id, call


def _key(invocation_id: str, call: types.FunctionCall) -> str:
    return f"{invocation_id} {call.id}"


def _answer(call: types.FunctionCall) -> types.Content:
    response: Json = {"confirmed": True} if call.name in _REQUESTS else {"status": "completed"}
    sent = types.FunctionResponse(id=call.id, name=call.name, response=response, will_continue=False)
    return types.Content(role="user", parts=[types.Part(function_response=sent)])


def _comparable(event: Any) -> Json:
    """Return the compared fields of an event. IDs of calls become unique in the session."""
    dumped = event.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
    for part in (dumped.get("content") or {}).get("parts") or ():
        (part.get("functionResponse") or {}).pop("willContinue", None)
    number = event.invocation_id.rpartition("/")[2]
    if number.isdigit():
        dumped = json.loads(re.sub(r"\bfc-(\d)", rf"fc-{number}000\1", json.dumps(dumped)))
    return event_of(_steady(dumped), final=event.is_final_response())


def _steady(value: Any) -> Any:
    """Replace the values that differ from run to run."""
    match value:
        case str():
            for pattern, name in _CHANGING:
                value = pattern.sub(name, value)
            return value
        case float() if _TIMES[0] < value < _TIMES[1]:
            return "<time>"
        case list() | tuple() | set():
            return [_steady(item) for item in value]
        case dict():
            return {_steady(str(key)): _steady(item) for key, item in value.items()}
        case int() | float() | bool() | None:
            return value
    return _steady(str(value))
