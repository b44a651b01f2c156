"""Demo models reply to the latest turn of a request."""

from waystation.core.contract import Event
from waystation.core.conversation.prompt import quoted_content
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest
from waystation.testing import latest_turn


def request(*contents: JsonObject | None) -> LlmRequest:
    """Return a request with these contents."""
    return LlmRequest(model="any", contents=[content for content in contents if content])


def user_text(text: str) -> JsonObject:
    """Return a user's text."""
    return {"role": "user", "parts": [{"text": text}]}


def answer(name: str, response: JsonObject, *beside: JsonObject) -> JsonObject:
    """Return the response of a tool."""
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": response}}, *beside]}


def test_the_turn_begins_with_the_users_last_text() -> None:
    """Responses of earlier turns are left out."""
    contents = request(
        user_text("one"), answer("f", {"n": 1}), user_text("two"), answer("g", {"n": 2}), answer("h", {"n": 3})
    )
    assert latest_turn(contents) == ("two", [("g", {"n": 2}), ("h", {"n": 3})])


def test_text_next_to_a_response_is_not_the_users() -> None:
    """Text next to a response is not the user's; an agent without summarization, for example, sends such text."""
    contents = request(user_text("Summarize!"), answer("summary_agent", {"result": "Short."}, {"text": "Short."}))
    assert latest_turn(contents) == ("Summarize!", [("summary_agent", {"result": "Short."})])


def test_the_work_of_another_agent_is_not_the_users_text() -> None:
    """The text of another agent has the user's role and is quoted, so it is not the user's."""
    other = Event(
        id="e-1",
        invocation_id="i",
        author="main_agent",
        timestamp=0.0,
        content={"role": "model", "parts": [{"text": "I hand over."}]},
    )
    assert latest_turn(request(user_text("Help!"), quoted_content(other))) == ("Help!", [])


def test_an_empty_request_has_no_turn() -> None:
    """The turn of an empty request has neither text nor responses."""
    assert latest_turn(request()) == ("", [])
