"""Logs as messages and events of AG-UI, and answers to interrupts as answers to calls."""

from typing import Any

import pytest
from ag_ui.core import BaseEvent, ResumeEntry, ToolMessage, UserMessage

from tests.unit.core.story import (
    answered,
    log_of,
    model_called,
    model_calls,
    model_replied,
    tool_returned,
    user_message,
)
from waystation.core.budget import Usage
from waystation.core.contract import Event, ModelReply, Piece
from waystation.core.errors import DigestMismatch, InvalidAnswer
from waystation.core.log import Log, ModelReplied
from waystation.core.payload import JsonObject
from waystation.interfaces.ag_ui_events import (
    MESSAGE_ID,
    InvocationMessages,
    RunEvents,
    count_tokens,
    diff_states,
    make_messages,
    parse_content,
    select_state,
)
from waystation.interfaces.ag_ui_interrupts import parse_answer, parse_result, parse_shown

PAY = model_calls("pay", gated=True, args={"amount": 5})


def run_of() -> RunEvents:
    """Return a run whose client knows nothing."""
    return RunEvents(InvocationMessages(), set(), {})


def brief(events: list[BaseEvent]) -> list[str]:
    """Return the type of each event with its text, its step or its sub-agent."""
    names = "delta", "step_name", "subagent_run_id"
    return [
        " ".join([event.type.value, *(str(getattr(event, n)) for n in names if getattr(event, n, None))])
        for event in events
    ]


def piece(log: Log, text: str = "", offset: int = 0, **fields: Any) -> Event:
    """Return partial text of the first model call."""
    made = Piece(1, 1, offset, text, **fields)
    return made.event(invocation_id=log.invocation_id, author="ag", branch=None, timestamp=0.0)


def said(author: str, number: int, branch: str | None = None) -> Event:
    """Return an event with text."""
    content: JsonObject = {"role": "model", "parts": [{"text": "Hi"}]}
    return Event(id=f"inv/e{number}", invocation_id="inv", author=author, branch=branch, content=content)


def test_an_approved_call_has_one_result() -> None:
    """Requests for confirmation are not messages, and the user's message has the ID of the client."""
    began = user_message("Pay.", metadata={MESSAGE_ID: "m1"})
    log = log_of(began, PAY, answered("fc-1"), tool_returned("fc-1", {"paid": 5}), model_called(), model_replied("Ok"))
    found = [(each.role, each.id) for each in make_messages(log)]
    ids = ["m1", "inv/m1", "inv/fc-1/result", "inv/m2"]
    assert found == list(zip(["user", "assistant", "tool", "assistant"], ids, strict=True))


def test_interim_responses_are_progress() -> None:
    """Only the last response of a long-running call is its result."""
    call = model_calls("ask", kind="long_running")
    waiting = log_of(user_message("Ask."), call, tool_returned("fc-1", {"ticket": 1}, final=False))
    closed = log_of(
        user_message("Ask."),
        call,
        tool_returned("fc-1", {"ticket": 1}, final=False),
        answered("fc-1", response={"n": 2}),
    )
    assert [each.role for each in make_messages(waiting)] == ["user", "assistant", "activity"]
    assert "tool" in [each.role for each in make_messages(closed)]


def test_streamed_text_is_completed_by_its_event() -> None:
    """The event adds what is missing; a reader that missed a part gets the whole text."""
    log = log_of(user_message("Hi"), model_replied("Hello"))
    events = log.state.events
    run, late = run_of(), run_of()
    streamed = brief(list(run.feed(log, [piece(log, "Hel"), events[1]])))
    assert [each for each in streamed if "CONTENT" in each] == ["TEXT_MESSAGE_CONTENT Hel", "TEXT_MESSAGE_CONTENT lo"]
    whole = brief(list(late.feed(log, [piece(log, "lo", offset=3), events[1]])))
    assert [each for each in whole if "CONTENT" in each] == ["TEXT_MESSAGE_CONTENT Hello"]
    assert not run.is_stale


@pytest.mark.parametrize("last", ["void", "other text"])
def test_text_that_does_not_count_needs_a_snapshot(last: str) -> None:
    """Another attempt, or a callback that replaced the text, makes the client's copy wrong."""
    log, run = log_of(user_message("Hi"), model_replied("Hello")), run_of()
    end = piece(log, void=True) if last == "void" else log.state.events[1]
    list(run.feed(log, [piece(log, "Good"), end]))
    assert run.is_stale


def test_sub_agents_begin_and_end_with_their_branch() -> None:
    """An agent that works again is another sub-agent, and what a run leaves open is suspended."""
    log, run = log_of(user_message("Hi")), run_of()
    authors = ("a", None), ("left", "p.left"), ("right", "p.right"), ("ag", None), ("a", None)
    list(run.feed(log, log.state.events))
    fed = brief(list(run.feed(log, [said(name, 2 + at, branch) for at, (name, branch) in enumerate(authors)])))
    assert [each for each in fed if each.startswith("SUBAGENT")] == [
        "SUBAGENT_STARTED inv/a/1",
        "SUBAGENT_STARTED inv/left/1",
        "SUBAGENT_STARTED inv/right/1",
        "SUBAGENT_FINISHED inv/a/1",
        "SUBAGENT_FINISHED inv/left/1",
        "SUBAGENT_FINISHED inv/right/1",
        "SUBAGENT_STARTED inv/a/2",
    ]
    assert brief(list(run.end())) == ["STEP_FINISHED model", "SUBAGENT_FINISHED inv/a/2"]


def test_the_state_changes_by_patches_and_is_that_of_the_session() -> None:
    """Names are escaped as JSON Patch demands; the user's and the app's state stays here."""
    assert select_state({"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}) == {"a": 1}
    assert diff_states({"a": 1, "b/~": 2, "c": None}, {"a": 1, "c": 3, "d": None}) == [
        {"op": "remove", "path": "/b~1~0"},
        {"op": "replace", "path": "/c", "value": 3},
        {"op": "add", "path": "/d", "value": None},
    ]


def test_usage_is_that_of_the_run_by_model() -> None:
    """Output contains thoughts, and a run that continues reports only its own calls."""
    usage = Usage(prompt_tokens=10, output_tokens=2, thoughts_tokens=3, cached_tokens=4)
    reply = ModelReplied(0, ModelReply(content={"role": "model", "parts": [{"text": "Hi"}]}, usage=usage, model="m"))
    log = log_of(user_message("Hi"), reply)
    [counted] = count_tokens(log) or []
    assert (counted.model, counted.input_tokens, counted.output_tokens, counted.total_tokens) == ("m", 10, 5, 15)
    assert count_tokens(log, len(log.entries)) is None


@pytest.mark.parametrize(
    ("payload", "kind", "action"),
    [
        ({"approved": True}, "confirmation", "approve"),
        ({"approved": False, "editedArgs": {"a": 1}}, "confirmation", "reject"),
        ({"approved": True, "editedArgs": {"a": 1}}, "confirmation", "edit"),
        ({"response": {"a": 1}}, "long_running", "respond"),
        ({"approved": False}, "long_running", "reject"),
        (None, "confirmation", None),
        ({}, "confirmation", None),
        ({"approved": 1}, "confirmation", None),
        ({"approved": "yes"}, "confirmation", None),
        ({"response": {"a": 1}}, "confirmation", None),
        ({"editedArgs": {"a": 1}}, "confirmation", None),
        ({"approved": True, "args": {"a": 1}}, "confirmation", None),
    ],
)
def test_only_explicit_payloads_count(payload: Any, kind: str, action: str | None) -> None:
    """Consent is exactly `true`, or the response that a call asks for; unknown fields are refused."""
    log = log_of(user_message("Pay."), PAY)
    call = log.state.pending()[0].model_copy(update={"kind": kind})
    entry = ResumeEntry(interrupt_id="inv/fc-1", status="resolved", payload=payload)
    if action is None:
        with pytest.raises(InvalidAnswer):
            parse_answer(entry, call)
    else:
        assert parse_answer(entry, call).action == action


def test_a_changed_call_needs_the_digest_of_what_was_shown() -> None:
    """A client that repeats nothing has seen the first version, if at all."""
    state = log_of(user_message("Pay."), PAY).state.calls["fc-1"]
    assert parse_shown(None, state, "approve").digest is None
    state.waits = 2
    with pytest.raises(DigestMismatch):
        parse_shown({"question": 3}, state, "approve")
    assert parse_shown({"digest": "d", "question": 3}, state, "approve").question == 3
    with pytest.raises(InvalidAnswer):
        parse_shown({"digest": "d", "question": "3"}, state, "approve")


def test_results_of_tools_are_objects() -> None:
    """Other content is wrapped, and an error is kept beside it."""
    results = [ToolMessage(id="r", tool_call_id="c", content=text) for text in ('{"a": 1}', "[1]", "red")]
    failed = ToolMessage(id="r", tool_call_id="c", content="{}", error="No camera")
    responses = [parse_result(each).response for each in (*results, failed)]
    assert responses == [{"a": 1}, {"result": [1]}, {"result": "red"}, {"error": "No camera"}]


def test_files_are_data_and_never_addresses() -> None:
    """Files elsewhere are left out, so that a message cannot make this server or a model fetch them."""
    source = {"type": "data", "value": "AA==", "mimeType": "image/png"}
    parts = [{"type": "text", "text": "Look"}, {"type": "image", "source": source}]
    parts.append({"type": "image", "source": {"type": "url", "value": "http://169.254.169.254/"}})
    content = parse_content(UserMessage.model_validate({"id": "m", "role": "user", "content": parts}))
    assert content["parts"] == [{"text": "Look"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}}]
