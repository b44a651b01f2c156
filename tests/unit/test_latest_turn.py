"""The latest turn of a request, which demo models reply to."""

from waystation.core import Event, JsonObject, quoted_content
from waystation.models import LlmRequest
from waystation.testing import latest_turn


def request(*contents: JsonObject | None) -> LlmRequest:
    """Return a request with these contents."""
    return LlmRequest(model="any", contents=[content for content in contents if content])


def said(text: str) -> JsonObject:
    """Return what a user says."""
    return {"role": "user", "parts": [{"text": text}]}


def answer(name: str, response: JsonObject, *beside: JsonObject) -> JsonObject:
    """Return what a tool answers."""
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": response}}, *beside]}


def test_it_begins_with_what_the_user_said_last() -> None:
    """Responses of earlier turns are left out."""
    given = request(said("one"), answer("f", {"n": 1}), said("two"), answer("g", {"n": 2}), answer("h", {"n": 3}))
    assert latest_turn(given) == ("two", [("g", {"n": 2}), ("h", {"n": 3})])


def test_what_is_shown_beside_a_response_was_not_said_by_the_user() -> None:
    """As the answer of an agent whose caller does not summarise it."""
    given = request(said("Summarise!"), answer("summary_agent", {"result": "Short."}, {"text": "Short."}))
    assert latest_turn(given) == ("Summarise!", [("summary_agent", {"result": "Short."})])


def test_what_another_agent_did_was_not_said_by_the_user() -> None:
    """It is told to a model in the user's role, quoted."""
    other = Event(
        id="e-1",
        invocation_id="i",
        author="main_agent",
        timestamp=0.0,
        content={"role": "model", "parts": [{"text": "I hand over."}]},
    )
    assert latest_turn(request(said("Help!"), quoted_content(other))) == ("Help!", [])


def test_nothing_was_said_in_an_empty_request() -> None:
    """Neither by the user nor by a tool."""
    assert latest_turn(request()) == ("", [])
