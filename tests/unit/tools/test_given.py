"""What author code gives to a context is looked at where it is given: value, argument and remedy are named."""

from typing import Any

import pytest

from waystation.tools.outcome import create_failure_outcome, create_outcome
from waystation.tools.session_view import Session
from waystation.tools.state import StateRefused
from waystation.tools.tool_context import ToolContext
from waystation.worker.service_setup import create_temporary_services


def context() -> ToolContext:
    """Return the context of a call of a worker that keeps everything."""
    session = Session(id="s", app_name="shop", user_id="ann")
    return ToolContext(function_call_id="fc-1", session=session, services=create_temporary_services(), tool_name="pay")


async def told(method: str, *given: Any, **named: Any) -> str:
    """Return what the model is told of a tool that calls a method wrongly."""
    used = context()
    try:
        await getattr(used, method)(*given, **named)
    except Exception as error:  # noqa: BLE001  # whatever it is, the model is told of it
        return str((create_failure_outcome(error, context=used).response or {})["error"])
    raise AssertionError(method)


@pytest.mark.parametrize(
    ("method", "given", "text"),
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
    method: str, given: dict[str, Any], text: str
) -> None:
    """Not by an error about code of ours; of a credential only the type is told."""
    assert (await told(method, **given)).startswith(text)


async def test_a_heartbeat_that_cannot_be_told_is_named() -> None:
    """With the place in it."""
    assert (await told("heartbeat", 1, {"x": b"1"})).startswith("'heartbeat[1].x' is bytes, which cannot be recorded;")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("escalate", "x", "Actions: `escalate` is 'x'; use True or False."),
        ("transfer_to_agent", 3, "Actions: `transfer_to_agent` is 3; use text."),
        ("transfer", "x", "Actions: there is no field `transfer`."),
    ],
)
async def test_a_wrong_action_is_told_in_one_line(name: str, value: Any, text: str) -> None:
    """Nothing of pydantic's own layout."""
    used = context()
    with pytest.raises(ValueError, match=name) as raised:
        setattr(used.actions, name, value)
    assert (create_failure_outcome(raised.value, context=used).response or {})["error"] == text


async def test_an_action_that_became_wrong_in_place_is_told_in_one_line() -> None:
    """When the actions are taken."""
    used = context()
    used.actions.artifact_delta["report"] = "latest"  # type: ignore[assignment]
    assert (create_outcome("saved", context=used).response or {})["error"] == (
        "The tool ran, but none of its state changes and actions were saved: EventActions: "
        "`artifact_delta.report` is 'latest'; use a whole number. Do not call it again for this reason alone."
    )


async def test_a_key_of_state_that_is_no_text_is_told_to_be_one() -> None:
    """The remedy is about the key; the value may be fine."""
    used = context()
    with pytest.raises(StateRefused, match="it is under a key of type int, which has no JSON form; use text as keys"):
        used.state[3] = 1  # type: ignore[index]
