"""Events in ADK's form, in which the ID of a function call is unique in its namespace.

Recorded IDs count the calls of one invocation. Clients match calls with responses by ID in the whole session, and some
send a response with nothing but this ID. So calls have their approval IDs here, and no response reaches another call.
"""

from waystation.core import contract, ids
from waystation.core.payload import JsonObject
from waystation.events import Event

CALLS = ("functionCall", "functionResponse")
MAPS = ("requestedToolConfirmations", "requestedAuthConfigs")


def to_adk_event(recorded: contract.Event) -> JsonObject:
    """Return a recorded event as ADK's server sends it."""
    event = Event.from_recorded(recorded)
    return qualify_calls(event.model_dump(mode="json", by_alias=True, exclude_none=True))


def qualify_calls(event: JsonObject) -> JsonObject:
    """Return an event of ADK's form with the approval IDs of calls instead of their IDs."""
    invocation, event = event["invocationId"], {**event, "actions": {**event["actions"]}}
    for name in MAPS:
        named = event["actions"].get(name) or {}
        event["actions"][name] = {ids.approval(invocation, id): value for id, value in named.items()}
    if called := event.get("longRunningToolIds"):
        event["longRunningToolIds"] = [ids.approval(invocation, id) for id in called]
    if content := event.get("content"):
        event["content"] = {**content, "parts": [_qualify(part, invocation) for part in content.get("parts") or ()]}
    return event


def _qualify(part: JsonObject, invocation: str) -> JsonObject:
    """Return a part, or the arguments of a request for a confirmation or a credential, with approval IDs."""
    qualified = dict(part)
    for name in (*CALLS, "originalFunctionCall"):
        if isinstance(call := part.get(name), dict):
            call = {**call, "id": ids.approval(invocation, call["id"])} if call.get("id") else call
            is_request = str(call.get("name")).startswith("adk_request_") and isinstance(call.get("args"), dict)
            qualified[name] = {**call, "args": _qualify(call["args"], invocation)} if is_request else call
    if isinstance(id := part.get("functionCallId"), str):
        qualified["functionCallId"] = ids.approval(invocation, id)
    return qualified
