"""Construction of the prompt of one agent."""

from tests.unit.core.story import (
    answered,
    log_of,
    model_called,
    model_calls,
    model_replied,
    rejected,
    tool_returned,
    user_message,
)
from waystation.core.contract import ModelReply
from waystation.core.conversation import prompt
from waystation.core.log import Log, ModelReplied
from waystation.core.payload import JsonObject


def prompt_lines(log: Log) -> list[str]:
    """Return the contents as short lines."""
    return [
        f"{content['role']}: {' '.join(brief(part) for part in content['parts'])}" for content in prompt.contents(log)
    ]


def brief(part: JsonObject) -> str:
    if "functionCall" in part:
        return f"{part['functionCall']['name']}()"
    if "functionResponse" in part:
        return f"{part['functionResponse']['name']}={part['functionResponse']['response']}"
    return str(part["text"])


def test_calls_are_followed_by_their_responses() -> None:
    """Responses are in one content after the calls, in call order."""
    log = log_of(
        user_message("go"), model_calls("a", "b"), tool_returned("fc-2", {"v": 2}), tool_returned("fc-1", {"v": 1})
    )
    assert prompt_lines(log) == ["user: go", "model: a() b()", "user: a={'v': 1} b={'v': 2}"]


def test_the_model_does_not_see_ids_of_the_engine() -> None:
    """A call without an ID of the model is sent without an ID."""
    log = log_of(user_message("go"), model_calls("a"), tool_returned("fc-1", {}))
    assert prompt.contents(log)[1]["parts"] == [{"functionCall": {"name": "a", "args": {}}}]
    assert prompt.contents(log)[2]["parts"] == [{"functionResponse": {"name": "a", "response": {}}}]


def test_a_conversation_of_an_older_version_can_be_sent() -> None:
    """Empty names, empty parts and white space are removed, because services refuse them."""
    empty = ModelReplied(0, ModelReply(content={"role": "model", "parts": [{}, {"text": "Hm."}, {"text": None}]}))
    log = log_of(user_message(" \n"), model_calls(""), tool_returned("fc-1", {}), model_called(), empty)
    assert prompt_lines(log) == ["model: _()", "user: _={}", "model: Hm."]


def test_the_models_own_id_is_echoed() -> None:
    """The model's own IDs are returned, because some providers pair calls and responses by ID."""
    log = log_of(user_message("go"), model_calls("a", model_id="call_77"), tool_returned("fc-1", {}))
    assert prompt.contents(log)[1]["parts"][0]["functionCall"]["id"] == "call_77"
    assert prompt.contents(log)[2]["parts"][0]["functionResponse"]["id"] == "call_77"


def test_an_answer_replaces_the_interim_response_and_ends_the_request() -> None:
    """Text between the call and the answer is left out of this request. Source: adk-semantics 3.7."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
        answered("fc-1"),
    )
    assert prompt_lines(log) == ["user: ask", "model: ask()", "user: ask={'status': 'approved'}"]


def test_text_after_the_call_returns_in_later_requests() -> None:
    """Later requests show the answer right after its call, and the text after it."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_replied("I asked."),
        answered("fc-1"),
        model_called(3),
        model_calls("log", id="fc-2"),
        tool_returned("fc-2", {"ok": True}),
    )
    assert prompt_lines(log) == [
        "user: ask",
        "model: ask()",
        "user: ask={'status': 'approved'}",
        "model: I asked.",
        "model: log()",
        "user: log={'ok': True}",
    ]


def test_calls_between_a_call_and_its_answer_are_kept() -> None:
    """Calls in between are kept, unlike in ADK, because a model that does not see a call makes it again."""
    log = log_of(
        user_message("ask"),
        model_calls("ask", kind="long_running"),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        model_called(),
        model_calls("log", id="fc-2"),
        tool_returned("fc-2", {"ok": True}),
        model_called(3),
        model_replied("Logged."),
        answered("fc-1"),
    )
    assert prompt_lines(log) == [
        "user: ask",
        "model: log()",
        "user: log={'ok': True}",
        "model: Logged.",
        "model: ask()",
        "user: ask={'status': 'approved'}",
    ]


def test_the_model_does_not_see_confirmation_requests() -> None:
    """The model sees only its call and the outcome."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), rejected("fc-1"))
    assert prompt_lines(log) == ["user: pay", "model: pay()", "user: pay={'error': 'This tool call is rejected.'}"]


def test_thought_signatures_pass_through_unchanged() -> None:
    """Parts are sent back as the provider sent them."""
    from waystation.core.contract import Call, ModelReply
    from waystation.core.log import ModelReplied

    part = {"functionCall": {"id": "fc-1", "name": "a", "args": {}}, "thoughtSignature": "c2ln", "newField": 1}
    reply = ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id="fc-1"),))
    log = log_of(user_message("go"), ModelReplied(1, reply), tool_returned("fc-1", {}))
    assert prompt.contents(log)[1]["parts"] == [
        {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": "c2ln", "newField": 1}
    ]
