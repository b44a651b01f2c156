"""The model receives a response for any result or exception of a tool."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from waystation.core.contract import ToolOutcome
from waystation.core.payload import JsonObject, decode, encode
from waystation.tools.function_tool import FunctionTool
from waystation.tools.outcome import create_failure_outcome, create_outcome
from waystation.tools.tool_context import ToolContext


class Receipt(BaseModel):
    """A value that a tool returns instead of a dictionary."""

    number: int
    on: date


class Lying(str):
    """A string that reports a wrong length."""

    def __len__(self) -> int:
        return 1


class Unprintable(Exception):
    """An exception that cannot be formatted."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Shy:
    """An object that raises when its attributes are read."""

    def __bool__(self) -> bool:
        raise RuntimeError("no")


def nested(depth: int, value: Any = 1) -> Any:
    """Return lists within lists."""
    for _ in range(depth):
        value = [value]
    return value


def generate() -> Iterator[int]:
    """Yield something."""
    yield 1


def circular() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


def ran_but(problem: str, error_type: str = "NotJson") -> JsonObject:
    """Return the model's response for a result that cannot be recorded."""
    return {
        "error": f"The tool ran, but its result cannot be returned to you: {problem}. "
        "Do not call it again for this reason alone.",
        "error_type": error_type,
    }


PLAIN = "which cannot be recorded; return plain data"
REFUSED: dict[str, tuple[Callable[[], Any], JsonObject]] = {
    "33 MB": (
        lambda: "x" * 33_000_000,
        ran_but(
            "the value is 33,000,018 bytes of JSON (the limit is 32,000,000), which cannot be recorded; return less, "
            "or save it as an artifact and return its name",
            "TooLarge",
        ),
    ),
    "a generator": (generate, ran_but(f"'result' is a value of type builtins.generator, {PLAIN}")),
    "an object": (object, ran_but(f"'result' is a value of type builtins.object, {PLAIN}")),
    "an object that raises when it is looked at": (Shy, ran_but("")),
    "a class": (lambda: Receipt, ran_but("")),
}
"""Values that cannot be recorded, with their responses.

The responses to the last two name an arbitrary path or type.
"""


def replaced(value: Any, *notes: str) -> JsonObject:
    """Return the response to a result whose key `it` has replaced parts, next to a value that is recorded unchanged."""
    return {"it": value, "id": 7, "replaced_values": list(notes)}


class Odd(BaseModel):
    """A model with a field that pydantic cannot write as JSON."""

    data: bytes
    number: int = 1


class Masked(BaseModel):
    """A model that hides a field in JSON, with a part that pydantic cannot write."""

    password: str = "hunter2"
    part: Any

    @field_serializer("password", when_used="json")
    def _hide(self, _: str) -> str:
        return "***"


REPLACED: dict[str, tuple[Callable[[], Any], JsonObject]] = {
    "NaN": (lambda: math.nan, replaced("NaN", "it was the number nan")),
    "infinity": (lambda: [1.0, -math.inf], replaced([1.0, "-Infinity"], "it[1] was the number -inf")),
    "a lone surrogate": (lambda: "a\ud800", replaced("a\ufffd", "it was text with a lone surrogate")),
    "65 bits": (lambda: 2**64, replaced("18446744073709551616", "it was an integer beyond 64 bits")),
    "5,000 digits": (lambda: 10**5_000, replaced("<int>", "it was an integer beyond 64 bits")),
    "bytes": (lambda: b"\x00\xff", replaced("<2 bytes>", "it was bytes")),
    "a set of bytes": (lambda: {b"x", 1}, replaced(["<1 bytes>", 1], "it[] was bytes")),
    "colliding keys": (
        lambda: {1: "a", "1": "b"},
        replaced({"1": "a", "1 (1)": "b"}, "it was an object with two keys that both read '1'"),
    ),
    "a key that is a tuple": (
        lambda: {(1, "a"): 1},
        replaced({'[1,"a"]': 1}, "it was an object with a key of type tuple"),
    ),
    "a key that is a date": (
        lambda: {date(2026, 1, 2): 1},
        replaced({"2026-01-02": 1}, "it was an object with a key of type date"),
    ),
    "a lone surrogate as a key": (lambda: {"\ud800": 1}, replaced({"\ufffd": 1}, "it was text with a lone surrogate")),
    "a class": (lambda: int, replaced("<type>", "it was a value of type builtins.type")),
    "an object that raises": (Shy, replaced("<Shy>", "it was a value of type tests.unit.tools.test_results.Shy")),
    "a model": (lambda: Odd(data=b"\xff"), replaced({"data": "<1 bytes>", "number": 1}, "it.data was bytes")),
    "a model that hides a field": (
        lambda: Masked(part=Masked(part=b"\xff")),
        replaced({"password": "***", "part": {"password": "***", "part": "<1 bytes>"}}, "it.part.part was bytes"),
    ),
    "nesting 220 deep": (
        lambda: nested(220),
        replaced(nested(63, "<list>"), f"it{'[0]' * 63} was nesting deeper than 64 levels"),
    ),
    "itself": (
        lambda: [[circular()]],
        replaced([[["<list>"]]], "it[0][0][0] was a reference to an object that contains it"),
    ),
    "many": (
        lambda: [math.nan] * 30,
        replaced(["NaN"] * 30, *(f"it[{i}] was the number nan" for i in range(20)), "10 more values were replaced"),
    ),
    "a long path": (lambda: {"x" * 300: math.nan}, replaced({"x" * 300: "NaN"}, "a value at a long path was replaced")),
}
"""Values with a part that cannot be recorded, and the response that the model reads."""

RECORDED: dict[str, tuple[Callable[[], Any], JsonObject]] = {
    "None": (lambda: None, {"result": None}),
    "nothing": (dict, {}),
    "text": (lambda: "done", {"result": "done"}),
    "a list": (lambda: [1, 2], {"result": [1, 2]}),
    "a set": (lambda: {3, 1, 2}, {"result": [1, 2, 3]}),
    "a tuple": (lambda: (1, "a"), {"result": [1, "a"]}),
    "a model": (lambda: Receipt(number=7, on=date(2026, 1, 2)), {"result": {"number": 7, "on": "2026-01-02"}}),
    "a time": (lambda: {"at": datetime(2026, 1, 2, tzinfo=UTC)}, {"at": "2026-01-02T00:00:00Z"}),
    "text that lies about its length": (lambda: {"text": Lying("abc")}, {"text": "abc"}),
    "an emoji and a NUL": (lambda: {"text": "\0🙂\u202e"}, {"text": "\0🙂\u202e"}),
    "the largest integer": (lambda: {"n": 2**63 - 1}, {"n": 2**63 - 1}),
    "nesting 60 deep": (lambda: {"n": nested(60)}, {"n": nested(60)}),
    "0.9 MB": (lambda: {"text": "x" * 900_000}, {"text": "x" * 900_000}),
}
"""Results of tools, and the response that the model reads."""


RAISED: dict[str, tuple[Callable[[], BaseException], JsonObject]] = {
    "an exception": (lambda: ValueError("no such account"), {"error": "no such account", "error_type": "ValueError"}),
    "one without text": (lambda: KeyError(), {"error": "KeyError", "error_type": "KeyError"}),
    "SystemExit": (
        lambda: SystemExit(3),
        {"error": "SystemExit(3) was raised out of the tool.", "error_type": "RuntimeError"},
    ),
    "KeyboardInterrupt": (
        lambda: KeyboardInterrupt(),
        {"error": "KeyboardInterrupt", "error_type": "KeyboardInterrupt"},
    ),
    "StopIteration": (
        lambda: StopIteration(5),
        {"error": "StopIteration(5) was raised out of the tool.", "error_type": "RuntimeError"},
    ),
    "one that cannot be shown": (
        Unprintable,
        {"error": "(the text of this Unprintable cannot be read)", "error_type": "Unprintable"},
    ),
    "a surrogate": (lambda: ValueError("a\ud800b"), {"error": "a?b", "error_type": "ValueError"}),
    "3 MB": (
        lambda: ValueError("x" * 3_000_000),
        {"error": "x" * (4_096 - len(" … (cut)".encode())) + " … (cut)", "error_type": "ValueError"},
    ),
}


def outcome_of_call(function: Callable[[], Any]) -> ToolOutcome:
    """Return the outcome of a tool that returns the result of this function."""
    context = ToolContext(function_call_id="fc-1", tool_name="work")
    return create_outcome(function(), context=context, long_running=False)


@pytest.mark.parametrize("form", REFUSED)
def test_a_result_that_cannot_be_recorded_is_an_error(form: str) -> None:
    """The call is closed with an error that says that the tool ran."""
    value, response = REFUSED[form]
    read = outcome_of_call(value).response
    assert read is not None
    if response == ran_but(""):
        assert read["error"].startswith("The tool ran, but its result cannot be ")
        assert read["error"].endswith(" Do not call it again for this reason alone.")
    else:
        assert read == response


@pytest.mark.parametrize("form", REPLACED)
def test_an_unrecordable_part_of_a_result_is_replaced_and_named(form: str) -> None:
    """The unrecordable part is replaced, the rest arrives, and the call has no error."""
    value, response = REPLACED[form]
    outcome = outcome_of_call(lambda: {"it": value(), "id": 7})
    assert (outcome.response, outcome.error_type) == (response, None)
    assert decode(encode(outcome.response)) == outcome.response


@pytest.mark.parametrize("own", [3, None, "text", {"a": 1}])
def test_a_field_with_the_name_of_the_notes_is_kept(own: Any) -> None:
    """A field with the name of the notes is kept. The notes get another name, unless the field is a list."""
    outcome = outcome_of_call(lambda: {"it": math.nan, "replaced_values": own})
    assert outcome.response == {"it": "NaN", "replaced_values": own, "_replaced_values": ["it was the number nan"]}


@pytest.mark.parametrize("form", RECORDED)
def test_a_result_that_can_be_recorded_is_the_response(form: str) -> None:
    """A dictionary is the response itself, anything else is its `result`, as in ADK."""
    value, response = RECORDED[form]
    assert outcome_of_call(value).response == response


@pytest.mark.parametrize("form", RAISED)
async def test_an_exception_is_reported_to_the_model(form: str) -> None:
    """An exception becomes the response to the call."""
    error, response = RAISED[form]

    def fail() -> Any:
        raise error()

    context = ToolContext(function_call_id="fc-1", tool_name="fail")
    with pytest.raises(BaseException) as raised:  # noqa: PT011  # compared below
        await FunctionTool(fail).run_async(args={}, tool_context=context)
    assert create_failure_outcome(raised.value, context=context).response == response
