"""From what a tool returned or raised to what is recorded."""

import dataclasses
import math
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from waystation.auth import AuthCredential, AuthCredentialTypes
from waystation.core import EventActions, Secret, ToolOutcome
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.outcome import create_failure_outcome, create_outcome, describe_error
from waystation.tools.tool_context import ToolContext


def context(**state: Any) -> ToolContext:
    return ToolContext(function_call_id="fc-1", tool_name="pay", state=state)


def returned(value: object, *, long_running: bool = False) -> ToolOutcome:
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
def test_a_dict_is_the_response_and_anything_else_its_result(value: object, response: Any) -> None:
    """As in ADK, where a database writes the events."""
    assert returned(value) == ToolOutcome(function_call_id="fc-1", response=response)


def test_actions_and_duration_are_part_of_the_outcome() -> None:
    """Without actions there are none."""
    acting = context()
    acting.state["paid"] = True
    acting.actions.escalate = True
    outcome = create_outcome("ok", context=acting, duration_s=0.5)
    assert outcome.actions == EventActions(state_delta={"paid": True}, escalate=True)
    assert outcome.duration_s == 0.5
    assert returned("ok").actions is None


# Long-running tools


@pytest.mark.parametrize("value", [None, {}, 0, "", False, []])
def test_a_long_running_tool_that_returns_nothing_waits_in_silence(value: object) -> None:
    """No response, and the call stays open."""
    assert returned(value, long_running=True) == ToolOutcome(function_call_id="fc-1", response=None, final=False)


def test_a_long_running_tool_may_answer_meanwhile() -> None:
    """The model is told at once, and the call stays open."""
    assert returned({"ticket": 1}, long_running=True) == ToolOutcome(
        function_call_id="fc-1", response={"ticket": 1}, final=False
    )
    assert returned("pending", long_running=True).response == {"result": "pending"}


def test_what_a_silent_long_running_tool_wrote_to_state_is_kept() -> None:
    """ADK loses it."""
    writing = context()
    writing.state["asked"] = "dana"
    outcome = create_outcome(None, context=writing, long_running=True)
    assert (outcome.response, outcome.final) == (None, False)
    assert outcome.actions == EventActions(state_delta={"asked": "dana"})


async def test_refused_arguments_close_a_long_running_call() -> None:
    """Nothing was started, so nobody will answer."""

    def ask(question: str) -> None: ...

    refused = await LongRunningFunctionTool(ask).run_async(args={}, tool_context=context())
    outcome = create_outcome(refused, context=context(), long_running=True)
    assert (outcome.final, outcome.error_type) == (True, "InvalidArguments")
    assert outcome.response is not None
    assert list(outcome.response) == ["error"]


def test_a_long_running_tool_that_raises_is_closed() -> None:
    """The model is told, as with any tool."""
    assert create_failure_outcome(ValueError("no"), context=context()).final


# Whole responses


def test_a_function_response_is_used_as_it_stands() -> None:
    """Only its name and id are the engine's business."""
    value = types.FunctionResponse(
        id="x",
        name="y",
        response={"a": 1},
        parts=[types.FunctionResponsePart.from_bytes(data=b"abc", mime_type="image/png")],
    )
    assert returned(value) == ToolOutcome(
        function_call_id="fc-1",
        response={"a": 1},
        parts=({"inlineData": {"mimeType": "image/png", "data": "YWJj"}},),
    )


def test_media_inside_a_function_response_is_taken_out_too() -> None:
    """Wherever else it may be in a result."""
    outcome = returned(types.FunctionResponse(response={"a": 1, "image": PNG}))
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
    """A long-running tool can so answer for good."""
    outcome = returned(value, long_running=True)
    assert (outcome.response, outcome.final) == (response, final)


# Media


PNG = types.Part.from_bytes(data=b"abc", mime_type="image/png")
FILE = types.Part.from_uri(file_uri="gs://x", mime_type="text/csv")
PNG_JSON = {"inlineData": {"mimeType": "image/png", "data": "YWJj"}}
FILE_JSON = {"fileData": {"fileUri": "gs://x", "mimeType": "text/csv"}}


def test_what_is_not_set_in_a_model_is_left_out() -> None:
    """As ADK's sessions store it; None in a dictionary stays."""
    assert returned({"part": [types.Part(text="a")], "none": None}).response == {"part": [{"text": "a"}], "none": None}


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
def test_media_is_taken_out_of_the_result(value: object, response: Any, parts: Any) -> None:
    """Each row is what google-adk 2.13 makes of the value."""
    assert returned(value) == ToolOutcome(function_call_id="fc-1", response=response, parts=parts)


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
def test_an_exception_is_told_to_the_model(error: BaseException, text: str, name: str) -> None:
    """With its text and the name of its class, whatever they are."""
    assert create_failure_outcome(error, context=context()) == ToolOutcome(
        function_call_id="fc-1", response={"error": text, "error_type": name}, error_type=name
    )


@pytest.mark.parametrize("text", ["x" * 3_000_000, "é" * 3_000_000, "\ud800" * 3_000_000])
def test_a_long_text_is_cut(text: str) -> None:
    """To 4 KiB of UTF-8, and it says so."""
    told = describe_error(ValueError(text))
    assert len(told.encode()) <= 4096
    assert len(told.encode()) > 4090
    assert told.endswith(" … (cut)")


def test_what_a_tool_wrote_before_it_raised_is_kept() -> None:
    """As in ADK, when somebody recovers from the exception."""
    writing = context()
    writing.state["step"] = 1
    assert create_failure_outcome(ValueError("no"), context=writing).actions == EventActions(state_delta={"step": 1})


# What cannot be recorded


def test_a_result_that_is_no_json_is_told_and_the_tool_did_run() -> None:
    """The model must not repeat the effect because of it; state is kept."""
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


def test_a_result_over_the_limit_is_told_and_the_tool_did_run() -> None:
    """The server would fail the activity, and repeat it."""
    outcome = returned("x" * 33_000_000)
    assert outcome.response == {
        "error": "The tool ran, but its result cannot be returned to you: the value is 33,000,018 bytes of JSON (the "
        "limit is 32,000,000), which cannot be recorded; return less, or save it as an artifact and return its name. "
        "Do not call it again for this reason alone.",
        "error_type": "TooLarge",
    }


def test_media_counts_towards_the_limit() -> None:
    """It is in the same payload."""
    outcome = returned(types.Part.from_bytes(data=b"x" * 25_000_000, mime_type="image/png"))
    assert (outcome.error_type, outcome.parts) == ("TooLarge", ())


def test_a_part_of_the_state_that_is_no_json_is_replaced_and_named() -> None:
    """The rest of the state is kept, also if the part was written in place, or beside a result with another."""
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


def test_an_exception_is_told_even_if_the_state_written_before_is_refused() -> None:
    """It is what the model has to know first."""
    writing = context(prefs={})
    writing.state["prefs"]["client"] = Secret("hunter2222")
    outcome = create_failure_outcome(ValueError("no"), context=writing)
    assert outcome.response == {"error": "no", "error_type": "ValueError"}
    assert outcome.actions is None


def test_no_secret_reaches_the_note_on_a_replaced_value() -> None:
    """Neither one in a key, nor one that is part of a credential."""
    used = context()
    used.note_credential(AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="hunter2222"))
    outcome = create_outcome({"hunter2222": math.nan}, context=used)
    assert "hunter" not in str(outcome.response)
    outcome = create_outcome({Secret("hunter2222"): 1, "a": math.nan}, context=context())
    assert (outcome.error_type, "hunter" in str(outcome.response)) == ("NotJson", False)


def test_state_over_the_limit_is_told_and_none_of_it_is_kept() -> None:
    """Counted apart from the result."""
    writing = context()
    writing.state["big"] = "x" * 1_000_001
    outcome = create_outcome("ok", context=writing)
    assert (outcome.error_type, outcome.actions) == ("TooLarge", None)
    fitting = context()
    fitting.state["big"] = "x" * 900_000
    assert create_outcome("y" * 900_000, context=fitting).error_type is None


def test_actions_that_cannot_be_recorded_are_told() -> None:
    """A name with a lone surrogate can be written and never be read."""
    acting = context()
    acting.actions.artifact_delta["\ud800"] = 1
    outcome = create_outcome("ok", context=acting)
    assert outcome.response is not None
    assert outcome.response["error"].startswith("The tool ran, but none of its state changes and actions")
    assert outcome.actions is None


async def test_a_tool_that_returns_an_exception_did_not_raise() -> None:
    """It is a value like any other, and no JSON."""

    def confused() -> Exception:
        return ValueError("x")

    value = await FunctionTool(confused).run_async(args={}, tool_context=context())
    assert returned(value).error_type == "NotJson"
