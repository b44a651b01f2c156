"""Events in ADK's form, in which the ID of a function call is unique in its namespace.

Recorded IDs count the calls of one invocation. Clients match calls with responses by ID in the whole session, and some
send a response with nothing but this ID. So calls have their approval IDs here, and no response reaches another call.
"""

from typing import Any

from waystation.core import contract, ids
from waystation.core.payload import JsonObject
from waystation.events import Event


def to_adk_event(recorded: contract.Event) -> JsonObject:
    """Return a recorded event as ADK's server sends it."""
    event = Event.from_recorded(recorded)
    return qualify_calls(event.model_dump(mode="json", by_alias=True, exclude_none=True))


def qualify_calls(event: JsonObject) -> JsonObject:
    """Return an event of ADK's form with the approval IDs of calls instead of their IDs."""
    invocation = event["invocationId"]

    def qualify(id: str) -> str:
        return ids.approval(invocation, id)

    content, actions = event.get("content") or {}, dict(event.get("actions") or {})
    parts = [
        {key: _qualify_call(value, qualify) if key in CALLS else value for key, value in part.items()}
        for part in content.get("parts") or ()
    ]
    for name in ("requestedToolConfirmations", "requestedAuthConfigs"):
        if name in actions:
            actions[name] = {qualify(id): value for id, value in actions[name].items()}
    qualified = {**event, "actions": actions}
    if content:
        qualified["content"] = {**content, "parts": parts}
    if "longRunningToolIds" in event:
        qualified["longRunningToolIds"] = list(map(qualify, event["longRunningToolIds"]))
    return qualified


CALLS = ("functionCall", "functionResponse")
REQUESTED = "originalFunctionCall"
"""The argument of a request for a confirmation that contains the call."""


def _qualify_call(call: JsonObject, qualify: Any) -> JsonObject:
    qualified = {**call, "id": qualify(call["id"])} if call.get("id") else call
    args = call.get("args") or {}
    if call.get("name", "").startswith("adk_request_"):
        args = {
            key: _qualify_call(value, qualify)
            if key == REQUESTED and isinstance(value, dict)
            else qualify(value)
            if key == "functionCallId"
            else value
            for key, value in args.items()
        }
        qualified = {**qualified, "args": args}
    return qualified
