"""What the model is shown."""

from tests.unit.core.story import answered, asked_model, called, log_of, rejected, replied, returned, said
from waystation.core import JsonObject, Log, ModelReplied, ModelReply
from waystation.core.conversation import prompt


def shown(log: Log) -> list[str]:
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
    """In call order, in one content."""
    log = log_of(said("go"), called("a", "b"), returned("fc-2", {"v": 2}), returned("fc-1", {"v": 1}))
    assert shown(log) == ["user: go", "model: a() b()", "user: a={'v': 1} b={'v': 2}"]


def test_ids_of_the_engine_are_not_shown_to_the_model() -> None:
    """Without an id of its own, the model gets none."""
    log = log_of(said("go"), called("a"), returned("fc-1", {}))
    assert prompt.contents(log)[1]["parts"] == [{"functionCall": {"name": "a", "args": {}}}]
    assert prompt.contents(log)[2]["parts"] == [{"functionResponse": {"name": "a", "response": {}}}]


def test_a_conversation_of_an_older_version_can_be_sent() -> None:
    """It may have empty names, empty parts and contents of white space, which services refuse."""
    empty = ModelReplied(0, ModelReply(content={"role": "model", "parts": [{}, {"text": "Hm."}, {"text": None}]}))
    log = log_of(said(" \n"), called(""), returned("fc-1", {}), asked_model(), empty)
    assert shown(log) == ["model: _()", "user: _={}", "model: Hm."]


def test_the_models_own_id_is_echoed() -> None:
    """Providers that pair by id get their own back."""
    log = log_of(said("go"), called("a", model_id="call_77"), returned("fc-1", {}))
    assert prompt.contents(log)[1]["parts"][0]["functionCall"]["id"] == "call_77"
    assert prompt.contents(log)[2]["parts"][0]["functionResponse"]["id"] == "call_77"


def test_an_answer_takes_the_place_of_the_interim_response_and_ends_the_request() -> None:
    """Talk between the call and the answer is left out of this request. Source: adk-semantics 3.7."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        replied("I asked."),
        answered("fc-1"),
    )
    assert shown(log) == ["user: ask", "model: ask()", "user: ask={'status': 'approved'}"]


def test_the_talk_is_back_afterwards() -> None:
    """Later requests show the answer right after its call, then what was said."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        replied("I asked."),
        answered("fc-1"),
        asked_model(3),
        called("log", id="fc-2"),
        returned("fc-2", {"ok": True}),
    )
    assert shown(log) == [
        "user: ask",
        "model: ask()",
        "user: ask={'status': 'approved'}",
        "model: I asked.",
        "model: log()",
        "user: log={'ok': True}",
    ]


def test_calls_made_between_a_call_and_its_answer_are_never_left_out() -> None:
    """Unlike in ADK: a model that does not see a call that it made makes it again."""
    log = log_of(
        said("ask"),
        called("ask", kind="long_running"),
        returned("fc-1", {"status": "pending"}, final=False),
        asked_model(),
        called("log", id="fc-2"),
        returned("fc-2", {"ok": True}),
        asked_model(3),
        replied("Logged."),
        answered("fc-1"),
    )
    assert shown(log) == [
        "user: ask",
        "model: log()",
        "user: log={'ok': True}",
        "model: Logged.",
        "model: ask()",
        "user: ask={'status': 'approved'}",
    ]


def test_requests_to_confirm_are_not_shown_to_the_model() -> None:
    """It sees its call and the outcome."""
    log = log_of(said("pay"), called("pay", gated=True), rejected("fc-1"))
    assert shown(log) == ["user: pay", "model: pay()", "user: pay={'error': 'This tool call is rejected.'}"]


def test_thought_signatures_pass_through_untouched() -> None:
    """Parts are kept as the provider sent them."""
    from waystation.core import Call, ModelReplied, ModelReply

    part = {"functionCall": {"id": "fc-1", "name": "a", "args": {}}, "thoughtSignature": "c2ln", "newField": 1}
    reply = ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id="fc-1"),))
    log = log_of(said("go"), ModelReplied(1, reply), returned("fc-1", {}))
    assert prompt.contents(log)[1]["parts"] == [
        {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": "c2ln", "newField": 1}
    ]
