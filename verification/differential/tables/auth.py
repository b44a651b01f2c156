"""Asking for credentials. Section 11 of the semantics page. Entering credentials differs and is not compared."""

from typing import Any

from verification.differential.scenario import Json, Scenario, alone, calls
from waystation.auth import AuthConfig
from waystation.tools import ToolContext


def _config(key: str) -> AuthConfig:
    scheme: Any = {"type": "apiKey", "in": "header", "name": "X-Key"}
    return AuthConfig(auth_scheme=scheme, credential_key=key)


def read(day: str, tool_context: ToolContext) -> Json:
    """Read a calendar."""
    if tool_context.get_auth_response(_config("calendar")):
        return {day: "free"}
    tool_context.request_credential(_config("calendar"))
    return {"pending": True}


def mail(to: str, tool_context: ToolContext) -> Json:
    """Send a mail."""
    tool_context.state["asked"] = to
    tool_context.request_credential(_config("mail"))
    return {"status": "login needed"}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


TOOLS: list[Any] = [read, mail, add]


def _asks(name: str, *wanted: tuple[str, Json]) -> Scenario:
    return alone(f"auth_{name}", calls(*wanted), tools=lambda: list(TOOLS))


TABLE: list[Scenario] = [
    _asks("asked_for", ("read", {"day": "monday"})),
    _asks("asked_for_beside_state", ("mail", {"to": "ann"})),
    _asks("asked_for_beside_another_tool", ("add", {"a": 1, "b": 2}), ("read", {"day": "monday"})),
    _asks("asked_for_twice", ("read", {"day": "monday"}), ("read", {"day": "friday"})),
    _asks("two_asked_for", ("read", {"day": "monday"}), ("mail", {"to": "ann"})),
]
