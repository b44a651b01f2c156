"""Deciding without a server what a runner sends and refuses."""

import asyncio
import json
from typing import Any

import pytest
from google.genai import types

from waystation.agents import Agent
from waystation.apps import App
from waystation.core import ids
from waystation.core.errors import AuthoringError
from waystation.core.session_log import SessionInput, SessionLog, SessionMessage
from waystation.events import Event, EventActions
from waystation.runners import InMemoryRunner, Runner
from waystation.runners.consumer_pace import ConsumerPace
from waystation.runners.runner import _check_message
from waystation.runners.session_turns import to_answer
from waystation.sessions import Background, InMemorySessionService, Session
from waystation.sessions.background import CannotConnect

AGENT = Agent(name="agent", model="gemini-3.5-flash")


def message(*parts: types.Part) -> types.Content:
    """Return a user's message."""
    return types.Content(role="user", parts=list(parts))


RESPONSE = types.Part(function_response=types.FunctionResponse(id="fc-1", name="pay", response={}))


@pytest.mark.parametrize(
    ("response", "action", "fields"),
    [
        ({"name": "ask", "response": {"a": 1}}, "respond", {"response": {"a": 1}, "wake": True}),
        ({"name": "ask", "response": {}, "will_continue": False}, "respond", {"response": {}, "wake": True}),
        ({"name": "ask", "response": {}, "will_continue": True}, "progress", {"response": {}, "wake": True}),
    ],
)
def test_function_response_becomes_an_answer(
    response: dict[str, object], action: str, fields: dict[str, object]
) -> None:
    """A response closes a long-running call unless it announces others."""
    assert to_answer(types.FunctionResponse.model_validate(response), wakes=True) == (action, fields)


def confirmation(body: Any, id: str = "fc-1-confirmation") -> tuple[str, dict[str, Any]]:
    """Return the answer that corresponds to a function response to a confirmation request."""
    response = types.FunctionResponse.model_construct(id=id, name="adk_request_confirmation", response=body)
    return to_answer(response, wakes=True)


@pytest.mark.parametrize("payload", [0, [], False, "", {"days": 2}])
@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize(
    ("body", "action"),
    [
        ({"confirmed": True}, "approve"),
        ({"confirmed": "true", "hint": "Sure?"}, "approve"),
        ({"confirmed": "yes"}, "approve"),
        ({"confirmed": 1}, "approve"),
        ({"confirmed": False}, "reject"),
        ({"confirmed": "false"}, "reject"),
        ({"confirmed": "no"}, "reject"),
        ({"confirmed": "0"}, "reject"),
        ({}, "reject"),
    ],
)
def test_confirmation_is_parsed_by_the_rules_of_adk(
    body: dict[str, Any], action: str, is_wrapped: bool, payload: Any
) -> None:
    """The response may be JSON in `response`, as ADK's clients send it, and words are read as bools, as by pydantic.

    The payload can be any value.
    """
    sent = body | {"payload": payload}
    assert confirmation({"response": json.dumps(sent)} if is_wrapped else sent) == (action, {"payload": payload})


@pytest.mark.parametrize(
    "body",
    [
        {"confirmed": "maybe"},
        {"confirmed": None},
        {"confirmed": [1]},
        {"confirmed": 2},
        {"confirmed": True, "more": 1},
        {"response": "{"},
        {"response": "true"},
        {"response": True},
        {"response": '{"confirmed": false, "confirmed": true}'},
        None,
    ],
)
def test_response_that_is_not_a_confirmation_decides_nothing(body: object) -> None:
    """The error says that the call is still pending, and what to send."""
    with pytest.raises(ValueError, match=r"'fc-1-confirmation' does not confirm .* still pending\. Send"):
        confirmation(body)


def test_payload_for_more_budget_is_the_grant() -> None:
    """The field `response` contains the grant."""
    sent = confirmation({"confirmed": True, "payload": {"max_total_tokens": 5}}, f"{ids.budget(1)}-confirmation")
    assert sent == ("approve", {"response": {"max_total_tokens": 5}})


def test_credential_is_refused_as_a_function_response() -> None:
    """A credential is refused, because histories must not contain credentials."""
    with pytest.raises(ValueError, match=r"Invocation\.authorize"):
        to_answer(types.FunctionResponse(name="adk_request_credential", response={}), wakes=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (message(types.Part(function_call=types.FunctionCall(name="pay"))), "cannot contain function calls"),
        (message(types.Part(text="Hi."), RESPONSE), "cannot contain both"),
        (None, "requires either a new_message or an invocation_id"),
    ],
)
def test_message_that_adk_refuses_is_refused(content: types.Content | None, problem: str) -> None:
    """The message is refused for ADK's reasons."""
    with pytest.raises(ValueError, match=problem):
        _check_message(content, None)


def test_runner_requires_an_agent_and_a_name() -> None:
    """The arguments follow ADK's rules."""
    service = InMemorySessionService()
    with pytest.raises(ValueError, match="Got none"):
        Runner(session_service=service)
    with pytest.raises(ValueError, match="app_name is required"):
        Runner(agent=AGENT, session_service=service)
    with pytest.raises(ValueError, match="Pass exactly one"):
        Runner(agent=AGENT, app=App(name="app", root_agent=AGENT), session_service=service)
    with pytest.raises(ValueError, match="not supported"):
        Runner(node=AGENT, session_service=service)


async def test_methods_that_cannot_be_durable_are_refused_with_the_remedy() -> None:
    """The errors name the method and what to use instead."""
    runner = InMemoryRunner(AGENT)
    with pytest.raises(NotImplementedError, match=r"`run_live` is not supported.* Use `run_async`"):
        await anext(runner.run_live(user_id="ann", session_id="s", live_request_queue=None))
    with pytest.raises(NotImplementedError, match=r"`rewind_async` is not supported.*'i-1'.* `waystation fork`"):
        await runner.rewind_async(user_id="ann", session_id="s", rewind_before_invocation_id="i-1")


def test_wrong_model_name_is_refused_when_the_runner_is_created() -> None:
    """The wrong name is refused before a server is started. Credentials are checked with the first message."""
    with pytest.raises(AuthoringError, match="Agent 'a': the model 'gtp-4' is not a model of"):
        InMemoryRunner(Agent(name="a", model="gtp-4"))
    InMemoryRunner(Agent(name="a", model="claude-sonnet-5-5"))


async def test_missing_credentials_are_named_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing credential is reported without connecting to the server, which does not exist."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    runner = InMemoryRunner(Agent(name="a", model="claude-sonnet-5-5"))
    with pytest.raises(AuthoringError, match="Set ANTHROPIC_API_KEY"):
        await anext(runner.run_async(user_id="ann", session_id="s", new_message=message(types.Part(text="Hi."))))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"content": message(types.Part(text="Hi."))}, "cannot add content to a recorded session. Send a message"),
        ({"actions": EventActions(state_delta={"user:name": "Ann"})}, "cannot change 'user:name'"),
        ({"actions": EventActions(escalate=True)}, "cannot record `escalate`"),
    ],
)
async def test_event_with_more_than_state_is_not_appended(fields: dict[str, Any], problem: str) -> None:
    """The error names the part that cannot be recorded, and nothing is sent."""
    session = Session(id="s", app_name="app", user_id="ann")
    with pytest.raises(NotImplementedError, match=f"`append_event` {problem}"):
        await InMemorySessionService().append_event(session, Event(author="system", **fields))
    assert (session.events, session.state) == ([], {})


def test_runner_takes_its_name_from_the_app() -> None:
    """Without an app, an in-memory runner has ADK's default name."""
    assert (
        Runner(app=App(name="orders", root_agent=AGENT), session_service=InMemorySessionService()).app_name == "orders"
    )
    assert InMemoryRunner(AGENT).app_name == "InMemoryRunner"


def test_runner_refuses_other_session_services() -> None:
    """A service that keeps sessions elsewhere is refused, because it cannot be durable."""
    with pytest.raises(TypeError, match="does not record histories"):
        Runner(agent=AGENT, app_name="app", session_service=object())  # type: ignore[arg-type]


def test_message_can_change_the_agent_of_a_session() -> None:
    """Later messages go to the same agent, and an earlier transfer does not count for it."""
    log = SessionLog("session/app/user/s", SessionInput(agent="", session_id="s"))
    agents = []
    for message in (
        SessionMessage(message="1", agent="first"),
        SessionMessage(message="2"),
        SessionMessage(message="3", agent="second"),
    ):
        log.accept(message)
        started = log.start("run")
        assert started is not None
        number, invocation = started
        agents.append((invocation.agent, invocation.root))
        log.end(number, "completed", next_agent="helper")
    assert agents == [("first", None), ("helper", "first"), ("second", None)]


async def test_server_that_does_not_respond_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured server is never replaced by an embedded one."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(
        CannotConnect, match=r"cannot be reached at 127\.0\.0\.1:1: .* \(TEMPORAL_ADDRESS or the profile\)"
    ):
        await Background().client()


async def test_activity_waits_until_the_program_has_handled_earlier_events() -> None:
    """An activity waits for the program that follows its invocation, and not without such a program."""
    pace = ConsumerPace()
    await pace.wait("i", 3)
    await pace.advance("i", 2)
    waiting = asyncio.create_task(pace.wait("i", 3))
    await asyncio.sleep(0)
    assert not waiting.done()
    await pace.advance("i", 3)
    await waiting
    waiting = asyncio.create_task(pace.wait("i", 4))
    await asyncio.sleep(0)
    await pace.advance("i", None)
    await waiting
