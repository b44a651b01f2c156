"""Events in ADK's form, in which the ID of a function call is unique in its namespace.

Recorded IDs count the calls of one invocation. Clients match calls with responses by ID in the whole session, and some
send a response with nothing but this ID. So calls have their approval IDs here, and no response reaches another call.
"""

import re

from waystation.core import contract, ids
from waystation.core.payload import JsonObject
from waystation.events import Event

CALLS = ("functionCall", "functionResponse")
MAPS = ("requestedToolConfirmations", "requestedAuthConfigs")
REQUEST = re.compile(r"(?P<plain>.+-(?:confirmation|credential))~(?P<number>[0-9]{1,9})", re.DOTALL)


def to_adk_event(recorded: contract.Event) -> JsonObject:
    """Return a recorded event as ADK's server sends it."""
    event = Event.from_recorded(recorded)
    return qualify_calls(event.model_dump(mode="json", by_alias=True, exclude_none=True))


def qualify_calls(event: JsonObject, requests: dict[str, str] | None = None) -> JsonObject:
    """Return an event of ADK's form with unique IDs of calls.

    `requests` collects the IDs of requests over the events of a session, because responses have to repeat them.
    """
    invocation, _, number = event["id"].rpartition("/e")
    known = {} if requests is None else requests

    def name(id: str) -> str:
        return known.get(ids.approval(invocation, id), ids.approval(invocation, id))

    def qualify(part: JsonObject) -> JsonObject:
        qualified = dict(part)
        for kind in (*CALLS, "originalFunctionCall"):
            if isinstance(call := part.get(kind), dict) and call.get("id"):
                if kind == "functionCall" and call["id"] != ids.requesting_call(call["id"]):
                    plain = ids.approval(invocation, call["id"])
                    call, known[plain] = {**call, "args": qualify(call["args"])}, f"{plain}~{number}"
                qualified[kind] = {**call, "id": name(call["id"])}
        if isinstance(id := part.get("functionCallId"), str):
            qualified["functionCallId"] = name(id)
        return qualified

    event = {**event, "actions": {**event["actions"]}}
    for kind in MAPS:
        named = event["actions"].get(kind) or {}
        event["actions"][kind] = {name(id): value for id, value in named.items()}
    if content := event.get("content"):
        event["content"] = {**content, "parts": [qualify(part) for part in content.get("parts") or ()]}
    if called := event.get("longRunningToolIds"):
        event["longRunningToolIds"] = [name(id) for id in called]
    return event


def parse_request_id(id: str) -> tuple[str, str]:
    """Return the approval ID of a call, and the number of the event that made a request, which is empty for the call.

    A tool can ask several times for one call. So its requests have different IDs here, and an answer to one that is no
    longer open does not answer the next one.
    """
    match = REQUEST.fullmatch(id)
    return (ids.requesting_call(match["plain"]), match["number"]) if match else (id, "")
