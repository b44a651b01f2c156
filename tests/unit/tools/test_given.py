"""Invalid arguments of context methods are refused at once, with value, argument and remedy."""

from typing import Any

import pytest

from waystation.tools.outcome import create_failure_outcome, create_outcome
from waystation.tools.session_view import Session
from waystation.tools.state import StateRefused
from waystation.tools.tool_context import ToolContext
from waystation.worker.service_setup import create_temporary_services


def context() -> ToolContext:
    """Return the context of a call in a worker with all services."""
    session = Session(id="s", app_name="shop", user_id="ann")
    return ToolContext(function_call_id="fc-1", session=session, services=create_temporary_services(), tool_name="pay")


async def error_of(method: str, *arguments: Any, **named: Any) -> str:
    """Return the model's response for a tool that calls a method wrongly."""
    used = context()
    try:
        await getattr(used, method)(*arguments, **named)
    except Exception as error:  # noqa: BLE001  # the model receives any error
        return str((create_failure_outcome(error, context=used).response or {})["error"])
    raise AssertionError(method)


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("request_confirmation", {"hint": 3}, "ToolConfirmation: `hint` is 3; use text."),
        ("request_confirmation", {"payload": {"of": object}}, "'payload.of' is a value of type builtins.type, which"),
        ("save_artifact", {"filename": 3, "artifact": {"text": "x"}}, "`filename` of `save_artifact` is 3; use text."),
        (
            "save_artifact",
            {"filename": "n", "artifact": "x"},
            "An artifact must be a google.genai.types.Part, not str.",
        ),
        ("save_artifact", {"filename": "n", "artifact": {"txt": 1}}, "Part: there is no field `txt`."),
        ("load_artifact", {"filename": None}, "`filename` of `load_artifact` is None; use text."),
        (
            "load_artifact",
            {"filename": "n", "version": "1"},
            "`version` of `load_artifact` is '1'; use a whole number, or None for the latest.",
        ),
        ("get_artifact_version", {"filename": 3}, "`filename` of `get_artifact_version` is 3; use text."),
        ("search_memory", {"query": 3}, "`query` of `search_memory` is 3; use text."),
        ("add_memory", {"memories": "tea"}, "`memories` of `add_memory` is 'tea'; use a list of MemoryEntry objects."),
        ("add_memory", {"memories": ["tea"]}, "`memories` of `add_memory` contains 'tea'; use a list of MemoryEntry"),
        (
            "add_events_to_memory",
            {"events": 3},
            "`events` of `add_events_to_memory` is 3; use a list of Event objects.",
        ),
        (
            "request_credential",
            {"auth_config": "hunter2"},
            "`auth_config` of `request_credential` is a str; use an Auth",
        ),
        (
            "get_auth_response",
            {"auth_config": None},
            "`auth_config` of `get_auth_response` is None; use an AuthConfig.",
        ),
        ("load_credential", {"auth_config": 3}, "`auth_config` of `load_credential` is an int; use an AuthConfig."),
        ("save_credential", {"auth_config": 3}, "`auth_config` of `save_credential` is an int; use an AuthConfig."),
        ("get_credential", {"key": 3}, "`key` of `get_credential` is 3; use text."),
        ("render_ui_widget", {"widget": 3}, "`widget` of `render_ui_widget` is 3; use an object with an `id`."),
    ],
)
async def test_a_wrong_argument_is_named_with_its_value_and_the_remedy(
    method: str, arguments: dict[str, Any], text: str
) -> None:
    """The error is about the argument and not about internal code; for a credential it contains only the type."""
    assert (await error_of(method, **arguments)).startswith(text)


async def test_a_heartbeat_that_cannot_be_sent_is_named() -> None:
    """The error contains the place of the value."""
    assert (await error_of("heartbeat", 1, {"x": b"1"})).startswith(
        "'heartbeat[1].x' is bytes, which cannot be recorded;"
    )


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("escalate", "x", "Actions: `escalate` is 'x'; use True or False."),
        ("transfer_to_agent", 3, "Actions: `transfer_to_agent` is 3; use text."),
        ("transfer", "x", "Actions: there is no field `transfer`."),
    ],
)
async def test_a_wrong_action_is_reported_in_one_line(name: str, value: Any, text: str) -> None:
    """The error does not use pydantic's layout."""
    used = context()
    with pytest.raises(ValueError, match=name) as raised:
        setattr(used.actions, name, value)
    assert (create_failure_outcome(raised.value, context=used).response or {})["error"] == text


async def test_an_action_that_was_changed_in_place_is_reported_in_one_line() -> None:
    """The error is raised in one line when the actions are recorded."""
    used = context()
    used.actions.artifact_delta["report"] = "latest"  # type: ignore[assignment]
    assert (create_outcome("saved", context=used).response or {})["error"] == (
        "The tool ran, but none of its state changes and actions were saved: EventActions: "
        "`artifact_delta.report` is 'latest'; use a whole number. Do not call it again for this reason alone."
    )


async def test_a_key_of_state_that_is_not_a_string_is_refused() -> None:
    """The remedy is about the key, because the value may be valid."""
    used = context()
    with pytest.raises(StateRefused, match="it is under a key of type int, which has no JSON form; use text as keys"):
        used.state[3] = 1  # type: ignore[index]
