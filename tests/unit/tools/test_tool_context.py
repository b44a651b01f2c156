"""The context of a tool."""

import threading
from contextlib import suppress
from unittest.mock import Mock

import pytest
from google.genai import types
from pydantic import ValidationError

from waystation.core import contract
from waystation.core.contract import EventActions, ToolConfirmation
from waystation.core.errors import NotJson
from waystation.core.secrets import Secret
from waystation.events import Event
from waystation.tools.session_view import Session
from waystation.tools.state import State, StateRefused
from waystation.tools.tool_context import Actions, CallbackContext, Context, ToolContext


def test_tool_context_has_three_names() -> None:
    """The class has three names, because code for ADK uses any of them in annotations."""
    assert Context is ToolContext
    assert CallbackContext is ToolContext


def test_a_context_identifies_the_call() -> None:
    """The attributes that identify the call are read-only."""
    context = ToolContext(
        function_call_id="fc-1",
        invocation_id="e-1",
        agent_name="clerk",
        user_id="dana",
        session_id="s-1",
        idempotency_key="e-1/fc-1",
        attempt=2,
        tool_confirmation=ToolConfirmation(confirmed=True, payload={"limit": 5}),
    )
    assert (context.function_call_id, context.invocation_id, context.agent_name) == ("fc-1", "e-1", "clerk")
    assert (context.user_id, context.session_id) == ("dana", "s-1")
    assert (context.idempotency_key, context.attempt) == ("e-1/fc-1", 2)
    assert context.tool_confirmation is not None
    assert context.tool_confirmation.payload == {"limit": 5}
    with pytest.raises(AttributeError):
        context.user_id = "other"  # type: ignore[misc]


def test_a_mock_of_a_context_has_the_attributes_of_adk() -> None:
    """A mock such as `Mock(spec=…)` has the attributes, because it reads them from the class."""
    names = {"agent_name", "branch", "invocation_id", "run_config", "session", "state", "user_content", "user_id"}
    names |= {"function_call_id", "tool_confirmation", "attempt_count", "actions"}
    assert names <= set(dir(Mock(spec=ToolContext)))


def test_a_test_can_create_a_context() -> None:
    """Authors create a context with only the values that their tools use."""
    context = ToolContext(state={"cart": ["x"]})
    assert context.state["cart"] == ["x"]
    assert (context.function_call_id, context.session_id, context.tool_confirmation) == (None, None, None)
    assert context.user_content is None
    assert not context.is_aborted
    context.heartbeat("half way")


def test_user_content_is_a_genai_content() -> None:
    """The content has genai's type, because tools for ADK read its parts."""
    context = ToolContext(user_content={"role": "user", "parts": [{"text": "hello"}]})
    assert context.user_content == types.Content(role="user", parts=[types.Part(text="hello")])


def test_a_heartbeat_contains_no_credential() -> None:
    """A heartbeat contains no credential, because the server stores it for anyone who describes the workflow."""
    with pytest.raises(NotJson):
        ToolContext().heartbeat({"token": Secret("hunter2-hunter2")})


def test_heartbeats_and_cancellation_come_from_the_engine() -> None:
    """The context calls the functions that the engine passes."""
    beats: list[object] = []
    aborted = threading.Event()
    context = ToolContext(heartbeat=lambda *details: beats.append(details), is_aborted=aborted.is_set)
    context.heartbeat()
    context.heartbeat(50, "percent")
    assert beats == [(), (50, "percent")]
    assert not context.is_aborted
    aborted.set()
    assert context.is_aborted


# Actions of a tool


def test_a_call_without_actions_records_none() -> None:
    """A call without actions, which is usual, records none."""
    assert ToolContext().recorded_actions() == EventActions()


def test_actions_and_state_are_recorded_together() -> None:
    """Actions and state are recorded under ADK's names."""
    context = ToolContext(state={"old": 1})
    context.state["new"] = 2
    del context.state["old"]
    context.actions.skip_summarization = True
    context.actions.transfer_to_agent = "support"
    context.actions.escalate = True
    context.actions.artifact_delta["f.txt"] = 0
    assert context.recorded_actions() == EventActions(
        state_delta={"new": 2},
        removed_keys=("old",),
        skip_summarization=True,
        transfer_to_agent="support",
        escalate=True,
        artifact_delta={"f.txt": 0},
    )


def test_the_state_delta_of_actions_belongs_to_the_state() -> None:
    """The delta in the actions belongs to the state, because some tools for ADK write to it."""
    context = ToolContext(state={"a": 1})
    context.state["b"] = 2
    context.actions.state_delta["c"] = 3
    context.actions.state_delta.update({"d": 4})
    assert dict(context.actions.state_delta) == {"b": 2, "c": 3, "d": 4}
    assert len(context.actions.state_delta) == 3
    assert repr(context.actions.state_delta) == "{'b': 2, 'c': 3, 'd': 4}"
    assert context.state["c"] == 3
    del context.actions.state_delta["c"]
    assert "c" not in context.state
    with pytest.raises(StateRefused):
        context.actions.state_delta["x"] = object()


@pytest.mark.parametrize("name", ["skip_summary", "transfer_to", "route"])
def test_an_unknown_action_is_an_error(name: str) -> None:
    """An unknown action is an error, because a misspelled action would have no effect."""
    with pytest.raises(ValueError, match=name):
        setattr(ToolContext().actions, name, True)


def test_an_action_of_the_wrong_type_raises_where_it_is_set() -> None:
    """The error is raised in the tool, and not when the outcome is recorded."""
    with pytest.raises(ValidationError):
        ToolContext().actions.transfer_to_agent = 7  # type: ignore[assignment]


def test_contexts_do_not_share_actions() -> None:
    """Each call has its own actions."""
    ToolContext().actions.artifact_delta["f"] = 1
    assert ToolContext().actions.artifact_delta == {}


def test_simultaneous_first_actions_of_threads_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions of all threads count, although they are created at their first use."""
    make, both = Actions.over, threading.Barrier(2)

    def slowly(state: State) -> Actions:
        with suppress(threading.BrokenBarrierError):  # widens the race in which each thread could create actions
            both.wait(timeout=0.1)
        return make(state)

    monkeypatch.setattr(Actions, "over", slowly)
    context = ToolContext(function_call_id="fc-1")

    def save(name: str) -> None:
        context.actions.artifact_delta[name] = 1

    threads = [threading.Thread(target=save, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert context.recorded_actions().artifact_delta == {"a": 1, "b": 1}


def test_adks_invocation_context_is_refused_with_the_remedy() -> None:
    """Code that tests for the invocation context with `hasattr` continues without it."""
    context = ToolContext(session=Session(id="s1"))
    assert not hasattr(context, "_invocation_context")
    with pytest.raises(AttributeError, match="Use the context's own `session`"):
        _ = context._invocation_context
    with pytest.raises(AttributeError, match="Use the context's own `session`"):
        context.get_invocation_context()


def test_events_of_the_session_are_those_of_adk() -> None:
    """The events form a list with genai's types, and each is converted when it is first read."""
    content = {"role": "model", "parts": [{"functionCall": {"id": "fc-1", "name": "pay", "args": {"n": 1}}}]}
    recorded = contract.Event(invocation_id="i", author="clerk", timestamp=5.0, content=content)
    own = Event(author="user", timestamp=7.0)
    session = ToolContext(session=Session(id="s1", events=[recorded, own])).session
    assert session.events[0].get_function_calls() == [types.FunctionCall(id="fc-1", name="pay", args={"n": 1})]
    assert session.events[-1] is own
    assert [event.author for event in reversed(session.events)] == ["user", "clerk"]
    assert session.last_update_time == 7.0
