"""From the result or exception of a tool to its record."""

import dataclasses
import math
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from waystation.auth import AuthCredential, AuthCredentialTypes
from waystation.core.contract import EventActions, ToolOutcome
from waystation.core.secrets import Secret
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.outcome import create_failure_outcome, create_outcome, describe_error
from waystation.tools.tool_context import ToolContext


def context(**state: Any) -> ToolContext:
    return ToolContext(function_call_id="fc-1", tool_name="pay", state=state)


def record_result(value: object, *, long_running: bool = False) -> ToolOutcome:
    return create_outcome(value, context=context(), long_running=long_running)


class Receipt(BaseModel):
    number: int


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ({"x": 1}, {"x": 1}),
        ({}, {}),
        ("hello", {"result": "hello"}),
        (3, {"result": 3}),
        ([1, 2], {"result": [1, 2]}),
        ((1, 2), {"result": [1, 2]}),
        (None, {"result": None}),
        (False, {"result": False}),
        (Receipt(number=4), {"result": {"number": 4}}),
        ({"receipt": Receipt(number=4)}, {"receipt": {"number": 4}}),
        (Point(x=1), {"result": {"x": 1}}),
        ({1: "a"}, {"1": "a"}),
    ],
)
def test_a_dict_is_the_response_and_other_values_are_its_result(value: object, response: Any) -> None:
    """A dict is the response, and any other value is its `result`, as in ADK with a database session service."""
    assert record_result(value) == ToolOutcome(function_call_id="fc-1", response=response)


def test_actions_and_duration_are_part_of_the_outcome() -> None:
    """The actions are None if the tool has none."""
    acting = context()
    acting.state["paid"] = True
    acting.actions.escalate = True
    outcome = create_outcome("ok", context=acting, duration_s=0.5)
    assert outcome.actions == EventActions(state_delta={"paid": True}, escalate=True)
    assert outcome.duration_s == 0.5
    assert record_result("ok").actions is None


# Long-running tools


@pytest.mark.parametrize("value", [None, {}, 0, "", False, []])
def test_a_long_running_tool_that_returns_nothing_stays_open(value: object) -> None:
    """A long-running tool that returns nothing leaves its call open, without a response."""
    assert record_result(value, long_running=True) == ToolOutcome(function_call_id="fc-1", response=None, final=False)


def test_a_long_running_tool_may_return_an_interim_response() -> None:
    """The model receives it at once, and the call stays open."""
    assert record_result({"ticket": 1}, long_running=True) == ToolOutcome(
        function_call_id="fc-1", response={"ticket": 1}, final=False
    )
    assert record_result("pending", long_running=True).response == {"result": "pending"}


def test_the_state_of_a_silent_long_running_tool_is_kept() -> None:
    """The state is kept, although ADK loses it."""
    writing = context()
    writing.state["asked"] = "dana"
    outcome = create_outcome(None, context=writing, long_running=True)
    assert (outcome.response, outcome.final) == (None, False)
    assert outcome.actions == EventActions(state_delta={"asked": "dana"})


async def test_refused_arguments_close_a_long_running_call() -> None:
    """Refused arguments close the call, because nothing was started that somebody could answer."""

    def ask(question: str) -> None: ...

    refused = await LongRunningFunctionTool(ask).run_async(args={}, tool_context=context())
    outcome = create_outcome(refused, context=context(), long_running=True)
    assert (outcome.final, outcome.error_type) == (True, "InvalidArguments")
    assert outcome.response is not None
    assert list(outcome.response) == ["error"]


def test_a_long_running_tool_that_raises_is_closed() -> None:
    """The model receives the error, as for any tool."""
    assert create_failure_outcome(ValueError("no"), context=context()).final


# Whole responses


def test_a_function_response_is_used_unchanged() -> None:
    """The engine sets only the name and ID of a function response."""
    value = types.FunctionResponse(
        id="x",
        name="y",
        response={"a": 1},
        parts=[types.FunctionResponsePart.from_bytes(data=b"abc", mime_type="image/png")],
    )
    assert record_result(value) == ToolOutcome(
        function_call_id="fc-1",
        response={"a": 1},
        parts=({"inlineData": {"mimeType": "image/png", "data": "YWJj"}},),
    )


def test_media_inside_a_function_response_is_separated_too() -> None:
    """Media at any depth of a result is separated."""
    outcome = record_result(types.FunctionResponse(response={"a": 1, "image": PNG}))
    assert (outcome.response, outcome.parts) == ({"a": 1}, (PNG_JSON,))


@pytest.mark.parametrize(
    ("value", "response", "final"),
    [
        (types.FunctionResponse(response={"a": 1}, will_continue=False), {"a": 1}, True),
        (types.FunctionResponse(will_continue=False), {}, True),
        (types.FunctionResponse(response={"a": 1}, will_continue=True), {"a": 1}, False),
        (types.FunctionResponse(response={"a": 1}), {"a": 1}, False),
        (types.FunctionResponse(), None, False),
    ],
)
def test_will_continue_false_closes_a_long_running_call(value: object, response: object, final: bool) -> None:
    """A tool returns its final response with `will_continue=False`."""
    outcome = record_result(value, long_running=True)
    assert (outcome.response, outcome.final) == (response, final)


# Media


PNG = types.Part.from_bytes(data=b"abc", mime_type="image/png")
FILE = types.Part.from_uri(file_uri="gs://x", mime_type="text/csv")
PNG_JSON = {"inlineData": {"mimeType": "image/png", "data": "YWJj"}}
FILE_JSON = {"fileData": {"fileUri": "gs://x", "mimeType": "text/csv"}}


def test_unset_fields_of_a_model_are_left_out() -> None:
    """Unset fields are left out, but None in a dictionary stays, as in ADK's sessions."""
    assert record_result({"part": [types.Part(text="a")], "none": None}).response == {
        "part": [{"text": "a"}],
        "none": None,
    }


@pytest.mark.parametrize(
    ("value", "response", "parts"),
    [
        (PNG, {}, (PNG_JSON,)),
        ([PNG], {}, (PNG_JSON,)),
        ([PNG, "x"], {"result": ["x"]}, (PNG_JSON,)),
        ((PNG, "x", "y"), {"result": ["x", "y"]}, (PNG_JSON,)),
        ({"image": PNG}, {}, (PNG_JSON,)),
        ({"a": 1, "image": PNG, "files": [FILE, 3]}, {"a": 1, "files": [3]}, (PNG_JSON, FILE_JSON)),
        ({"a": 1, "files": [FILE]}, {"a": 1}, (FILE_JSON,)),
        ({"a": {}, "image": PNG}, {"a": {}}, (PNG_JSON,)),
        (types.Part(text="hello"), {"result": {"text": "hello"}}, ()),
    ],
)
def test_media_is_separated_from_the_result(value: object, response: Any, parts: Any) -> None:
    """The separated form equals google-adk 2.13's form of the value."""
    assert record_result(value) == ToolOutcome(function_call_id="fc-1", response=response, parts=parts)


# Exceptions


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Lying(str):
    def __len__(self) -> int:
        return 0

    def encode(self, *args: object, **kwargs: object) -> bytes:
        raise AssertionError


class LyingError(Exception):
    def __str__(self) -> str:
        return Lying("a lie")


@pytest.mark.parametrize(
    ("error", "text", "name"),
    [
        (ValueError("no such account"), "no such account", "ValueError"),
        (KeyError("a"), "'a'", "KeyError"),
        (TimeoutError(), "TimeoutError", "TimeoutError"),
        (Hostile(), "(the text of this Hostile cannot be read)", "Hostile"),
        (LyingError(), "a lie", "LyingError"),
        (ValueError("half \ud800 pair"), "half ? pair", "ValueError"),
        (
            ExceptionGroup("2 failed", [ValueError("a"), KeyError("b")]),
            "2 failed (2 sub-exceptions): a; 'b'",
            "ExceptionGroup",
        ),
    ],
)
def test_an_exception_is_reported_to_the_model(error: BaseException, text: str, name: str) -> None:
    """The response has the text of the exception and the name of its class."""
    assert create_failure_outcome(error, context=context()) == ToolOutcome(
        function_call_id="fc-1", response={"error": text, "error_type": name}, error_type=name
    )


@pytest.mark.parametrize("text", ["x" * 3_000_000, "é" * 3_000_000, "\ud800" * 3_000_000])
def test_a_long_text_is_cut(text: str) -> None:
    """A text above 4 KiB of UTF-8 is cut, and says so."""
    description = describe_error(ValueError(text))
    assert len(description.encode()) <= 4096
    assert len(description.encode()) > 4090
    assert description.endswith(" … (cut)")


def test_state_written_before_an_exception_is_kept() -> None:
    """State from before an exception is kept for a callback that recovers from it, as in ADK."""
    writing = context()
    writing.state["step"] = 1
    assert create_failure_outcome(ValueError("no"), context=writing).actions == EventActions(state_delta={"step": 1})


# Values that cannot be recorded


def test_a_result_that_is_not_json_says_that_the_tool_ran() -> None:
    """The response says that the tool ran, so that the model does not repeat the effect; the state is kept."""
    writing = context()
    writing.state["paid"] = True
    outcome = create_outcome(b"x", context=writing)
    assert outcome.response == {
        "error": "The tool ran, but its result cannot be returned to you: 'result' is bytes, which cannot be recorded; "
        "save them as an artifact, or return them base64-encoded. Do not call it again for this reason alone.",
        "error_type": "NotJson",
    }
    assert outcome.error_type == "NotJson"
    assert outcome.actions == EventActions(state_delta={"paid": True})


def test_a_result_over_the_limit_says_that_the_tool_ran() -> None:
    """The response says that the tool ran; the server would otherwise fail the activity and retry it."""
    outcome = record_result("x" * 33_000_000)
    assert outcome.response == {
        "error": "The tool ran, but its result cannot be returned to you: the value is 33,000,018 bytes of JSON (the "
        "limit is 32,000,000), which cannot be recorded; return less, or save it as an artifact and return its name. "
        "Do not call it again for this reason alone.",
        "error_type": "TooLarge",
    }


def test_media_counts_towards_the_limit() -> None:
    """Media counts towards the limit, because it is in the same payload."""
    outcome = record_result(types.Part.from_bytes(data=b"x" * 25_000_000, mime_type="image/png"))
    assert (outcome.error_type, outcome.parts) == ("TooLarge", ())


def test_a_part_of_the_state_that_is_not_json_is_replaced_and_named() -> None:
    """The rest of the state is kept, even if the part was written in place, or if the result has such a part, too."""
    writing = context(prefs={})
    writing.state["paid"] = [math.nan, True]
    writing.state["prefs"]["client"] = object()
    outcome = create_outcome({"file": b"x"}, context=writing)
    assert outcome.response == {
        "file": "<1 bytes>",
        "replaced_values": [
            "file was bytes",
            "state paid[0] was the number nan",
            "state prefs.client was a value of type builtins.object",
        ],
    }
    assert outcome.actions == EventActions(state_delta={"paid": ["NaN", True], "prefs": {"client": "<object>"}})


def test_an_exception_is_reported_even_if_the_state_is_refused() -> None:
    """The exception is reported, because the model needs it first."""
    writing = context(prefs={})
    writing.state["prefs"]["client"] = Secret("hunter2222")
    outcome = create_failure_outcome(ValueError("no"), context=writing)
    assert outcome.response == {"error": "no", "error_type": "ValueError"}
    assert outcome.actions is None


def test_no_secret_reaches_the_note_on_a_replaced_value() -> None:
    """A secret in a key and one that is part of a credential are hidden."""
    used = context()
    used.note_credential(AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="hunter2222"))
    outcome = create_outcome({"hunter2222": math.nan}, context=used)
    assert "hunter" not in str(outcome.response)
    outcome = create_outcome({Secret("hunter2222"): 1, "a": math.nan}, context=context())
    assert (outcome.error_type, "hunter" in str(outcome.response)) == ("NotJson", False)


def test_state_over_the_limit_is_reported_and_dropped() -> None:
    """State over the limit is dropped and reported; its size is counted apart from the result."""
    writing = context()
    writing.state["big"] = "x" * 1_000_001
    outcome = create_outcome("ok", context=writing)
    assert (outcome.error_type, outcome.actions) == ("TooLarge", None)
    fitting = context()
    fitting.state["big"] = "x" * 900_000
    assert create_outcome("y" * 900_000, context=fitting).error_type is None


def test_actions_that_cannot_be_recorded_are_reported() -> None:
    """Actions with a lone surrogate, for example, are reported, because they could be written but never read."""
    acting = context()
    acting.actions.artifact_delta["\ud800"] = 1
    outcome = create_outcome("ok", context=acting)
    assert outcome.response is not None
    assert outcome.response["error"].startswith("The tool ran, but none of its state changes and actions")
    assert outcome.actions is None


async def test_a_returned_exception_was_not_raised() -> None:
    """A returned exception is an ordinary value that is not JSON."""

    def confused() -> Exception:
        return ValueError("x")

    value = await FunctionTool(confused).run_async(args={}, tool_context=context())
    assert record_result(value).error_type == "NotJson"
