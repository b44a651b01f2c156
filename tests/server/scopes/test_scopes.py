"""`user:` and `app:` state is stored with the user or the app, and read when an invocation begins."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue

from tests.server.conftest import Serve
from tests.server.scopes.looking import agent, commands, model_of, pending, remember, scope_ids
from tests.steps import start_and_finish
from waystation.agents import Agent, ParallelAgent, SequentialAgent
from waystation.client.agent_client import AgentClient
from waystation.core.errors import ModelRefused
from waystation.core.scope_state import user_scope
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def ask(tool_context: ToolContext) -> None:
    """Wait for an answer."""
    tool_context.state["user:asked"] = True


async def test_what_is_written_is_read_by_the_next_invocation_in_any_session(serve: Serve, app: str) -> None:
    """State is shared by all sessions of a user. Source: adk-semantics 6.2."""
    clerk = agent(
        calls(("remember", {"key": "user:name", "value": "Ada"}), ("remember", {"key": "app:open", "value": [1]})),
        says("ok"),
        calls(("recall", {"key": "user:name"}), ("recall", {"key": "app:open"})),
        says("ok"),
    )
    async with serve(clerk) as env:
        await env.client.run("clerk", "remember", app=app, session_id="one")
        await env.client.run("clerk", "recall", app=app, session_id="two")
        assert await env.client.user_state(app=app) == {"user:name": "Ada"}
        assert await env.client.app_state(app=app) == {"app:open": [1]}
    assert responses(model_of(clerk).requests[-1])[-2:] == [
        ("recall", {"result": "Ada"}),
        ("recall", {"result": "[1]"}),
    ]


async def test_users_and_apps_are_apart(serve: Serve, app: str) -> None:
    """All users of an app share its state; a user's state belongs to one app."""
    writing = calls(("remember", {"key": "user:x", "value": 1}), ("remember", {"key": "app:y", "value": 2}))
    reading = calls(("recall", {"key": "user:x"}), ("recall", {"key": "app:y"}))
    clerk = agent(writing, says("ok"), reading, says("ok"), reading, says("ok"))
    async with serve(clerk) as env:
        await env.client.run("clerk", "go", app=app, user_id="ada")
        await env.client.run("clerk", "go", app=app, user_id="bob")
        await env.client.run("clerk", "go", app=f"{app}-2", user_id="ada")
    requests = model_of(clerk).requests
    assert [answer for _, answer in responses(requests[3])] == [{"result": "None"}, {"result": "2"}]
    assert [answer for _, answer in responses(requests[5])] == [{"result": "None"}, {"result": "None"}]


async def test_an_instruction_is_filled_in_from_what_is_stored(serve: Serve, app: str) -> None:
    """The first model call already has the stored state of the user."""
    clerk = agent(says("Hi."), instruction="Serve {user:name}; {app:motto?}", tools=())
    async with serve(clerk) as env:
        await env.client.run("clerk", "hi", app=app, state={"user:name": "Ada"}, session_id="one")
        await env.client.run("clerk", "hi", app=app, session_id="two")
    assert [str(request.system_instruction)[:9] for request in model_of(clerk).requests] == ["Serve Ada"] * 2


async def test_given_state_is_stored_and_wins(serve: Serve, app: str) -> None:
    """State passed at the start is stored and replaces older values, as in ADK's create_session."""
    reading = calls(("recall", {"key": "user:a"}), ("recall", {"key": "user:b"}))
    clerk = agent(says("ok"), reading, says("ok"))
    async with serve(clerk) as env:
        await env.client.run("clerk", "hi", app=app, state={"user:a": 1, "user:b": 1})
        result = await env.client.run("clerk", "hi", app=app, state={"user:a": 2})
        assert await env.client.user_state(app=app) == {"user:a": 2, "user:b": 1}
        assert result.state_delta == {}
    assert [answer for _, answer in responses(model_of(clerk).requests[-1])] == [{"result": "2"}, {"result": "1"}]


async def test_what_was_written_is_there_while_the_invocation_waits_for_a_person(serve: Serve, app: str) -> None:
    """Other invocations see the writes while this one waits, which may take days."""
    clerk = agent(calls(("ask", {})), says("done"), tools=(LongRunningFunctionTool(ask),))
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "go", app=app)
        await pending(invocation)
        async with asyncio.timeout(20):
            while not await env.client.user_state(app=app):
                await asyncio.sleep(0.02)
        assert await env.client.user_state(app=app) == {"user:asked": True}
        await invocation.respond({"ok": True})
        await invocation.result()
        assert (await commands(invocation)).count("apply_scopes") == 1


async def test_a_failed_invocation_has_stored_what_it_said(serve: Serve, app: str) -> None:
    """The writes of a failed invocation are stored, as in ADK."""
    clerk = agent(calls(("remember", {"key": "user:a", "value": 1})), ModelRefused("no"))
    async with serve(clerk) as env:
        with pytest.raises(WorkflowFailureError):
            await env.client.run("clerk", "go", app=app)
        assert await env.client.user_state(app=app) == {"user:a": 1}


async def test_what_a_call_wrote_is_stored_when_a_sibling_ends_the_invocation(serve: Serve, app: str) -> None:
    """The writes of a finished call are stored although a call of the same batch fails the invocation."""

    def explode() -> None:
        raise ValueError("boom")

    async def linger() -> None:
        await asyncio.Event().wait()

    clerk = agent(
        calls(("remember", {"key": "user:a", "value": 1}), ("explode", {}), ("linger", {})),
        tools=(remember, FunctionTool(explode, on_error="raise"), linger),
    )
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "go", app=app)
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        written = [e.actions.state_delta for e in (await invocation.log()).state.events if e.actions.state_delta]
        stored = await env.client.user_state(app=app)
    assert stored == ({"user:a": 1} if written else {})


async def test_a_cancelled_invocation_has_stored_what_it_said(serve: Serve, app: str) -> None:
    """A cancellation neither undoes nor stops storing."""
    clerk = agent(calls(("ask", {})), tools=(LongRunningFunctionTool(ask),))
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "go", app=app)
        await pending(invocation)
        await invocation.cancel()
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        assert await env.client.user_state(app=app) == {"user:asked": True}


async def test_a_called_agent_reads_and_writes_through_its_caller(serve: Serve, app: str) -> None:
    """Only the top invocation reads and delivers scopes."""
    child = agent(
        calls(("recall", {"key": "user:a"}), ("remember", {"key": "user:b", "value": 2})), says("ok"), name="child"
    )
    clerk = agent(calls(("child", {"request": "go"})), says("ok"), tools=(AgentTool(child),))
    async with serve(clerk) as env:
        invocation = await start_and_finish(env.client.start("clerk", "go", app=app, state={"user:a": 1}))
        assert await commands(env.client.invocation(f"{invocation.id}/fc-1")) == [
            "call_model", "child.recall", "child.remember", "call_model",
        ]  # fmt: skip
        assert await env.client.user_state(app=app) == {"user:a": 1, "user:b": 2}
    assert responses(model_of(child).requests[-1])[0] == ("recall", {"result": "1"})


async def test_agents_of_a_sequence_share_what_is_read_and_told(serve: Serve, app: str) -> None:
    """Agents of a sequence share the writes of tools, `output_key` and callbacks."""

    def greet(callback_context: ToolContext) -> None:
        callback_context.state["app:greeted"] = callback_context.state.get("app:greeted", 0) + 1

    first = Agent(name="first", model=ScriptedModel(*[says("Ada")] * 2), output_key="user:name")
    second = Agent(
        name="second",
        model=(model := ScriptedModel(*[says("hi")] * 2)),
        instruction="{user:name}, visit {app:greeted}",
        before_agent_callback=greet,
    )
    async with serve(SequentialAgent(name="both", sub_agents=[first, second])) as env:
        await env.client.run("both", "go", app=app)
        await env.client.run("both", "go", app=app)
        assert await env.client.user_state(app=app) == {"user:name": "Ada"}
        assert await env.client.app_state(app=app) == {"app:greeted": 2}
    assert [str(r.system_instruction).split("\n")[0] for r in model.requests] == ["Ada, visit 1", "Ada, visit 2"]


async def test_parallel_agents_tell_each_their_own(serve: Serve, app: str) -> None:
    """The writes of parallel agents are delivered together at the end."""
    branches = [
        agent(calls(("remember", {"key": f"user:{name}", "value": 1})), says("ok"), name=name) for name in ("a", "b")
    ]
    async with serve(ParallelAgent(name="all", sub_agents=list(branches))) as env:
        invocation = await start_and_finish(env.client.start("all", "go", app=app))
        assert (await commands(invocation)).count("apply_scopes") == 1
        assert await env.client.user_state(app=app) == {"user:a": 1, "user:b": 1}


async def test_invocations_at_the_same_time_lose_nothing_of_one_another(serve: Serve, app: str) -> None:
    """Concurrent invocations write key by key and keep each other's writes."""
    clerks = [
        agent(calls(("remember", {"key": f"user:{i}", "value": i})), says("ok"), name=f"clerk{i}") for i in range(8)
    ]
    async with serve(*clerks) as env:
        await asyncio.gather(*(env.client.run(f"clerk{i}", "go", app=app) for i in range(8)))
        assert await env.client.user_state(app=app) == {f"user:{i}": i for i in range(8)}


async def test_an_invocation_that_uses_no_scope_reads_and_tells_none(serve: Serve, app: str) -> None:
    """An invocation without scopes has no additional activity, event or workflow."""

    clerk = agent(calls(("remember", {"key": "plain", "value": 1})), says("ok"))
    async with serve(clerk) as env:
        invocation = await start_and_finish(env.client.start("clerk", "go", app=app, state={"given": 1}))
        assert await commands(invocation) == ["call_model", "clerk.remember", "call_model"]
        types = {event.event_type for event in (await invocation.history()).events}
        assert await scope_ids(env, app) == []
    assert EventType.EVENT_TYPE_MARKER_RECORDED not in types


async def test_names_do_not_reach_into_one_another(serve: Serve, app: str) -> None:
    """Different names never share a scope."""
    users = ["a/b", "..", "%2F", "", "Ünïcödé ☃", "user/x/y"]
    replies = [(calls(("remember", {"key": "user:a", "value": user})), says("ok")) for user in users]
    async with serve(agent(*itertools.chain(*replies))) as env:
        for number, user in enumerate(users):
            params = {"agent": "clerk", "message": "go", "app": app, "user_id": user}
            handle = await env.temporal.start_workflow(
                "AgentInvocation", params, id=f"{app}-named-{number}", task_queue=env.client.task_queue
            )
            await handle.result()
        assert [await env.client.user_state(app=app, user_id=user) for user in users] == [{"user:a": u} for u in users]
        assert await env.client.user_state(app=app) == {}


async def test_names_that_fit_into_no_id_are_refused(serve: Serve, app: str) -> None:
    """Names that are too long for an id fail before a model is called; the error names the long one."""
    async with serve(agent(says("ok"))) as env:
        with pytest.raises(WorkflowFailureError) as failed:
            await env.client.run("clerk", "go", app=app, user_id="x" * 1_000, id=f"{app}-named")
    assert getattr(failed.value.cause, "type", "") == "ScopeNameTooLong"
    assert "use shorter names" in str(failed.value.cause)


@pytest.mark.slow
async def test_state_that_grows_too_large_is_refused_and_told(serve: Serve, app: str) -> None:
    """State over the limit is refused with an event of the invocation; the stored state stays."""
    clerk = agent(calls(("remember", {"key": "user:big", "value": "x" * 499_000})), says("ok"))
    async with serve(clerk) as env:
        await env.client.run("clerk", "go", app=app, state={"user:small": "y" * 2_000}, id=f"{app}-1")
        log = await env.client.invocation(f"{app}-1").log()
        assert list(await env.client.user_state(app=app)) == ["user:small"]
    [told] = [e.custom_metadata for e in log.state.events if e.custom_metadata]
    assert told["state_not_stored"][0]["id"] == f"{app}-1/e3"
    assert "500000 are kept" in told["state_not_stored"][0]["reason"]


@pytest.mark.slow
async def test_deleted_state_is_gone_and_begins_anew(serve: Serve, app: str) -> None:
    """Deleted state is gone, even for processes that cached it."""
    clerk = agent(
        calls(("remember", {"key": "user:a", "value": 1})), says("ok"), calls(("recall", {"key": "user:a"})), says("ok")
    )
    async with serve(clerk) as env:
        await env.client.run("clerk", "go", app=app)
        assert await env.client.delete_user_state(app=app)
        assert await env.client.user_state(app=app) == {}
        await env.client.run("clerk", "go", app=app, state={"user:b": 2})
        assert await env.client.user_state(app=app) == {"user:b": 2}
        assert await env.client.delete_app_state(app=app) is False
    assert responses(model_of(clerk).requests[-1])[-1] == ("recall", {"result": "None"})


async def test_a_scope_continues_as_new_and_loses_nothing(serve: Serve, app: str) -> None:
    """Readers follow a scope that continues as new, with or without a cache; repeated deliveries count once."""
    async with serve(agent(says("ok"), says("ok"))) as env:
        await env.client.run("clerk", "go", app=app, state={"user:first": 1}, id=f"{app}-1")
        told_by = (await env.temporal.get_workflow_handle(f"{app}-1").describe()).run_id
        scope = env.temporal.get_workflow_handle(user_scope(app, "user"))
        run = (await scope.describe()).run_id
        for n in range(199):
            await scope.signal("apply", {"id": f"other/e{n}", "set": {"user:n": n}})
        async with asyncio.timeout(20):
            while (await scope.describe()).run_id == run:
                await asyncio.sleep(0.02)
        await scope.signal("apply", {"id": f"{app}-1/e0", "run": told_by, "set": {"user:first": "again"}})
        assert await scope.query("state") == {"user:first": 1, "user:n": 198}
        assert await env.client.user_state(app=app) == {"user:first": 1, "user:n": 198}
        result = await start_and_finish(env.client.start("clerk", "go", app=app))
        assert await result.state() == {"user:first": 1, "user:n": 198}


async def test_junk_signals_wedge_nothing(serve: Serve, app: str) -> None:
    """Every invalid signal is counted as refused and blocks nothing."""
    async with serve(agent(says("ok"))) as env:
        await env.client.run("clerk", "go", app=app, state={"user:a": 1})
        scope = env.temporal.get_workflow_handle(user_scope(app, "user"))
        junk = [None, 1, "x", {}, {"id": 1}, {"id": "i"}, {"id": "i/e-1"}, {"id": "i/e1", "set": 3}, {"id": "/e1"}]
        for value in junk:
            await scope.signal("apply", value)
        await scope.signal("apply", {"id": "i/e1", "set": {"app:x": 1}})
        await scope.signal("other", {"id": "i/e2", "set": {"user:x": 1}})
        await scope.signal("apply", {"id": "j/e1", "set": {"user:b": 2}})
        assert await scope.query("state") == {"user:a": 1, "user:b": 2}
        assert await env.client.user_state(app=app) == {"user:a": 1, "user:b": 2}
        assert len(await scope.query("refused")) == len(junk) + 2


BROKEN = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{broken"))


@pytest.mark.parametrize("given", [[], [BROKEN], [{"state": {"user:a": 2}}]], ids=["nothing", "broken", "a state"])
async def test_a_scope_that_a_stranger_started_is_as_good_as_any(serve: Serve, app: str, given: list[Any]) -> None:
    """The input of a scope that somebody else started is not state."""
    async with serve(agent(says("ok"))) as env:
        id = user_scope(app, "user")
        scope = await env.temporal.start_workflow("AgentScope", args=given, id=id, task_queue=env.client.task_queue)
        await env.client.run("clerk", "go", app=app, state={"user:a": 1})
        assert await scope.query("state") == await env.client.user_state(app=app) == {"user:a": 1}


async def test_reading_needs_no_worker(serve: Serve, app: str) -> None:
    """State is read from the history without a worker."""
    async with serve(agent(says("ok"))) as env:
        await env.client.run("clerk", "go", app=app, state={"user:a": 1})
    assert await env.client.user_state(app=app) == {"user:a": 1}


@pytest.mark.slow
async def test_large_state_needs_no_store(serve: Serve, app: str, tmp_path: Path) -> None:
    """Large state is sent in signals that are never offloaded, so every reader computes the same state."""
    clerk = agent(calls(("remember", {"key": "user:text", "value": "x" * 300_000})), says("ok"))
    async with serve(clerk) as env:
        await env.client.run("clerk", "remember", app=app)
        other = await AgentClient.connect(address=env.server.address, store=tmp_path)
        assert await other.user_state(app=app) == {"user:text": "x" * 300_000}
