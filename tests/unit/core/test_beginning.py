"""Parsing the argument with which an invocation starts."""

import json
from typing import Any

import pytest

from waystation.core.contract import InvocationInput
from waystation.core.log import Began, Refused, begin_entry
from waystation.core.session_log import search_attributes_of

CALL = {"functionCall": {"name": "pay", "args": {"amount": 5}}}
RESPONSE = {"functionResponse": {"id": "fc-1", "name": "pay", "response": {"status": "approved"}}}


def input_with(message: Any, **more: Any) -> dict[str, Any]:
    """Return an input with this message."""
    return {"agent": "greeter", "message": message, **more}


def with_state(json: bytes) -> bytes:
    """Return an encoded input with this JSON as its state."""
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
    "a message that is a number": input_with(5),
    "a message that is a list": input_with(["hi"]),
    "a content without parts": input_with({"role": "user"}),
    "parts that are not a list": input_with({"parts": {"text": "hi"}}),
    "a part that is a string": input_with({"parts": ["hi"]}),
    "a function call": input_with({"role": "user", "parts": [CALL]}),
    "a function call in snake case": input_with({"parts": [{"function_call": CALL["functionCall"]}]}),
    "a function response": input_with({"role": "user", "parts": [{"text": "ok"}, RESPONSE]}),
    "a state that is a list": input_with("hi", state=[1]),
    "a user that is an object": input_with("hi", user_id={"name": "ann"}),
    "a budget that is a string": input_with("hi", budget="much"),
    "an agent with too long a name": {"agent": "a" * 1_900_000, "message": "hi"},
    "a user with too long a name": input_with("hi", user_id="u" * 1_900_000),
    "a session with too long a name": input_with("hi", session_id="s" * 1_001),
    "a root with too long a name": input_with("hi", root="r" * 1_001),
    "NaN": with_state(b'{"n": NaN}'),
    "a number that overflows": with_state(b'{"n": 1e400}'),
    "an integer of 5,000 digits": with_state(b'{"n": ' + b"9" * 5_000 + b"}"),
    "a lone surrogate": with_state(b'{"s": "\\udfff"}'),
    "nesting 190 deep": with_state(b'{"a":' * 190 + b"1" + b"}" * 190),
    "nesting 100,000 deep": b"[" * 100_000,
}
"""Invalid inputs of an invocation."""


def encoded(value: Any) -> bytes:
    """Return an argument as it arrives: bytes unchanged, anything else as JSON."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.mark.parametrize("form", BAD)
def test_an_invalid_input_is_refused(form: str) -> None:
    """The message names the mistake and repeats no content."""
    body = begin_entry([encoded(BAD[form])])
    assert isinstance(body, Refused)
    assert body.message.startswith("The input of AgentInvocation") or "message of AgentInvocation" in body.message
    assert len(body.message) < 600


def test_a_valid_input_is_accepted() -> None:
    """An input needs only an agent and a message."""
    body = begin_entry([encoded(input_with("hi"))])
    assert isinstance(body, Began)
    assert (body.input.agent, body.input.message) == ("greeter", "hi")


def test_only_a_parent_makes_an_invocation_a_called_agent() -> None:
    """Any program can start an invocation, so only a parent workflow may set the origin and the depth."""
    called = [encoded(input_with("hi", origin="invocation/of/another", depth=-100))]
    alone, child = begin_entry(called), begin_entry(called, parent="invocation/of/another")
    assert isinstance(alone, Began)
    assert isinstance(child, Began)
    assert (alone.input.origin, alone.input.depth, child.input.origin) == (None, 0, "invocation/of/another")


@pytest.mark.parametrize(
    ("parent", "user", "accepted"),
    [("session/waystation/ann/s", "ann", True), ("Payroll", "ann", False), ("session/waystation/ann/s", "eve", False)],
    ids=["its session", "a foreign parent", "another user"],
)
def test_the_session_of_an_invocation_started_it_for_its_user(parent: str, user: str, accepted: bool) -> None:
    """Only the user's own session may start an invocation; others could read the conversation of another user."""
    link = {"id": "session/waystation/ann/s", "number": 2}
    body = begin_entry([encoded(input_with("hi", user_id=user, session_id="s", session=link))], parent=parent)
    assert isinstance(body, Began) is accepted


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_wrong_number_of_arguments_is_refused(count: int) -> None:
    """The message names the number of arguments."""
    body = begin_entry([encoded(input_with("hi"))] * count)
    assert body == Refused(f"AgentInvocation takes one argument, an object, but received {count}.")


def test_a_null_character_does_not_reach_search_attributes() -> None:
    """Null characters are removed, because a server on PostgreSQL cannot store them."""
    started = InvocationInput(agent="clerk", message="hi", user_id="a\0nn")
    assert search_attributes_of(started) == {"WaystationAgent": "clerk", "WaystationUser": "ann"}
