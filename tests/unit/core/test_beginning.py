"""What an invocation makes of the argument that it is started with."""

import json
from typing import Any

import pytest

from waystation.core import Began, InvocationInput, Refused, begin_entry, search_attributes_of

CALL = {"functionCall": {"name": "pay", "args": {"amount": 5}}}
RESPONSE = {"functionResponse": {"id": "fc-1", "name": "pay", "response": {"status": "approved"}}}


def said(message: Any, **more: Any) -> dict[str, Any]:
    """Return an input with this message."""
    return {"agent": "greeter", "message": message, **more}


def with_state(json: bytes) -> bytes:
    """Return an input with this state, as it stands."""
    return b'{"agent": "greeter", "message": "hi", "state": ' + json + b"}"


BAD: dict[str, Any] = {
    "broken JSON": b'{"agent": "greeter", ',
    "nothing": b"",
    "null": None,
    "a string": "greeter",
    "a list": ["greeter", "hi"],
    "an empty object": {},
    "no agent": {"message": "hi"},
    "no message": {"agent": "greeter"},
    "an agent that is a number": {"agent": 5, "message": "hi"},
    "a message that is a number": said(5),
    "a message that is a list": said(["hi"]),
    "a content without parts": said({"role": "user"}),
    "parts that are no list": said({"parts": {"text": "hi"}}),
    "a part that is a string": said({"parts": ["hi"]}),
    "a function call": said({"role": "user", "parts": [CALL]}),
    "a function call in snake case": said({"parts": [{"function_call": CALL["functionCall"]}]}),
    "a function response": said({"role": "user", "parts": [{"text": "ok"}, RESPONSE]}),
    "a state that is a list": said("hi", state=[1]),
    "a user that is an object": said("hi", user_id={"name": "ann"}),
    "a budget that is a string": said("hi", budget="much"),
    "an agent with too long a name": {"agent": "a" * 1_900_000, "message": "hi"},
    "a user with too long a name": said("hi", user_id="u" * 1_900_000),
    "a session with too long a name": said("hi", session_id="s" * 1_001),
    "a root with too long a name": said("hi", root="r" * 1_001),
    "NaN": with_state(b'{"n": NaN}'),
    "a number that overflows": with_state(b'{"n": 1e400}'),
    "an integer of 5,000 digits": with_state(b'{"n": ' + b"9" * 5_000 + b"}"),
    "a lone surrogate": with_state(b'{"s": "\\udfff"}'),
    "nesting 190 deep": with_state(b'{"a":' * 190 + b"1" + b"}" * 190),
    "nesting 100,000 deep": b"[" * 100_000,
}
"""None of these is an invocation's input."""


def data_of(value: Any) -> bytes:
    """Return an argument as it arrives: bytes as they are, anything else as JSON."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.mark.parametrize("form", BAD)
def test_an_argument_that_is_no_input_is_refused(form: str) -> None:
    """The message says what is wrong, and repeats no content."""
    body = begin_entry([data_of(BAD[form])])
    assert isinstance(body, Refused)
    assert body.message.startswith("The input of AgentInvocation") or "message of AgentInvocation" in body.message
    assert len(body.message) < 600


def test_an_argument_that_is_an_input_is_taken() -> None:
    """The smallest that there is."""
    body = begin_entry([data_of(said("hi"))])
    assert isinstance(body, Began)
    assert (body.input.agent, body.input.message) == ("greeter", "hi")


def test_only_a_parent_makes_an_invocation_a_called_agent() -> None:
    """Any program can start one, and must neither share another's artifacts nor count its depth from below zero."""
    called = [data_of(said("hi", origin="invocation/of/another", depth=-100))]
    alone, child = begin_entry(called), begin_entry(called, parent="invocation/of/another")
    assert isinstance(alone, Began)
    assert isinstance(child, Began)
    assert (alone.input.origin, alone.input.depth, child.input.origin) == (None, 0, "invocation/of/another")


@pytest.mark.parametrize("count", [0, 2, 3])
def test_another_number_of_arguments_is_refused(count: int) -> None:
    """The message says how many there were."""
    body = begin_entry([data_of(said("hi"))] * count)
    assert body == Refused(f"AgentInvocation takes one argument, an object, but received {count}.")


def test_a_null_character_does_not_reach_search_attributes() -> None:
    """A server on PostgreSQL could not store it, and would never list the invocation."""
    started = InvocationInput(agent="clerk", message="hi", user_id="a\0nn")
    assert search_attributes_of(started) == {"WaystationAgent": "clerk", "WaystationUser": "ann"}
