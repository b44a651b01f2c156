"""Deleting a session deletes exactly its own data."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client, WorkflowExecution

from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session, settled_events
from tests.server.sessions.test_client import asking, waits
from waystation.agents import Agent
from waystation.artifacts import InMemoryArtifactService
from waystation.client import Session
from waystation.client.agent_client import AgentClient
from waystation.core.contract import WORKFLOW
from waystation.embedded import EmbeddedServer
from waystation.memory import InMemoryMemoryService
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext


async def listed(client: AgentClient, prefix: str) -> list[str]:
    """Return the IDs of the workflows below a name."""
    query = f"WorkflowId STARTS_WITH '{prefix}'"
    return sorted({run.id async for run in client.temporal.list_workflows(query)})


async def until_listed(client: AgentClient, prefix: str, count: int) -> None:
    """Wait until visibility lists exactly these workflows."""
    while len(await listed(client, prefix)) < count:
        await asyncio.sleep(0.05)


async def keep(text: str, tool_context: ToolContext) -> str:
    """Store a text."""
    await tool_context.save_artifact("note.txt", types.Part.from_text(text=text))
    await tool_context.save_artifact("user:note.txt", types.Part.from_text(text=text))
    await tool_context.add_session_to_memory()
    return "kept"


def keeper() -> Agent:
    """Return an agent that stores each message."""
    return Agent(name="keeper", model=ScriptedModel(calls(("keep", {"text": "tea"})), says("Kept.")), tools=[keep])


def names_of(session: Session) -> dict[str, Any]:
    """Return the names of a session."""
    return {"session_id": session.given.session_id, "user_id": session.given.user_id}


async def test_all_data_of_a_session_is_deleted(serve: Serve) -> None:
    """A repeatable deletion covers workflows, artifacts and memories of the session, but not of the user."""
    services = Services(artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService())
    async with serve(keeper(), services=services, verify=False) as env:
        session = new_session(env, "keeper")
        await session.say("tea please")
        stores: dict[str, Any] = {"artifacts": services.artifacts, "memory": services.memory}
        deleted = await env.client.sessions.delete(**names_of(session), **stores)
        assert deleted.workflows == [session.id, f"{session.id}/1"]
        assert (deleted.artifacts, deleted.memories, deleted.left) == (["note.txt"], 1, [])
        assert deleted.stopped == [session.id]
        second_deletion = await env.client.sessions.delete(**names_of(session), **stores)
        assert (second_deletion.artifacts, second_deletion.memories, second_deletion.stopped) == ([], 0, [])
        where = {"app_name": "waystation", "user_id": "ann", "session_id": session.given.session_id}
        assert services.artifacts is not None
        assert await services.artifacts.list_artifact_keys(**where) == ["user:note.txt"]


async def test_a_workflow_whose_id_only_looks_like_the_sessions_stays(serve: Serve) -> None:
    """The recorded parent identifies the session's invocations, and the recorded source their forks."""
    async with serve(asking(), verify=False) as env:
        session = new_session(env, "asker")
        await session.send("buy")
        await waits(session, 1)
        fork = await env.client.forks.start(f"{session.id}/1", 1)
        params = {"agent": "asker", "message": "buy", "user_id": "bob"}
        for number, type in ((2, WORKFLOW), (3, "Shipping")):
            await env.temporal.start_workflow(type, params, id=f"{session.id}/{number}", task_queue="nobody")
        await until_listed(env.client, session.id, 5)
        deleted = await env.client.sessions.delete(**names_of(session))
        assert deleted.workflows == [session.id, f"{session.id}/1", fork.id]


async def listing_nothing(*_: object, **__: object) -> AsyncIterator[WorkflowExecution]:
    """Return an empty list, like a visibility that lags far behind."""
    listed: list[WorkflowExecution] = []
    for execution in listed:
        yield execution


@pytest.mark.slow
async def test_workflows_that_visibility_does_not_list_yet_are_deleted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a session right after its answers leaves none of its invocations."""
    async with serve(asking(), verify=False) as env:
        session = new_session(env, "asker")
        await session.say("one")
        await session.say("two")
        await session.send("buy")
        await waits(session, 3)
        with monkeypatch.context() as late:
            late.setattr(Client, "list_workflows", listing_nothing)
            deleted = await env.client.sessions.delete(**names_of(session))
        assert deleted.workflows == [session.id, *(f"{session.id}/{number}" for number in (1, 2, 3))]
        assert deleted.stopped == [session.id, f"{session.id}/3"]


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["listed", "not listed yet"])
async def test_running_work_is_stopped_first(serve: Serve, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """A deletion stops pending calls, called agents and queued messages, and cancels tools."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        """Work until cancelled."""
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "done"

    worker = Agent(name="worker", model=ScriptedModel(calls(("work", {}))), tools=[work], description="Works.")
    boss = Agent(name="boss", model=ScriptedModel(calls(("worker", {"request": "go"}))), tools=[AgentTool(worker)])
    async with serve(boss, verify=False) as env:
        session = new_session(env, "boss")
        await session.send("go")
        await session.send("and then")
        await asyncio.wait_for(started.wait(), 20)
        if late:
            monkeypatch.setattr(Client, "list_workflows", listing_nothing)
        else:
            await until_listed(env.client, session.id, 3)
        deleted = await env.client.sessions.delete(**names_of(session))
        assert deleted.workflows == [session.id, f"{session.id}/1", f"{session.id}/1/fc-1"]
        assert deleted.stopped == deleted.workflows
        await asyncio.wait_for(cancelled.wait(), 20)
        assert deleted.left == ["artifacts: no artifact service was given", "memories: no memory service was given"]


async def test_an_idle_session_is_deleted_without_waiting(serve: Serve) -> None:
    """No worker is running, and none is needed."""
    async with serve(asking(), verify=False) as env:
        session = new_session(env, "asker")
        await session.say("one")
    deleted = await asyncio.wait_for(env.client.sessions.delete(**names_of(session), grace=timedelta(hours=1)), 20)
    assert deleted.stopped == [session.id]


async def test_no_worker_has_to_run(serve: Serve) -> None:
    """Pending invocations are terminated and all runs of the session are deleted without a worker."""
    async with serve(asking(), verify=False) as env:
        session = new_session(env, "asker", cut_after=1)
        await session.say("one")
        await session.say("two")
        await session.send("buy")
        await waits(session, 3)
        await until_listed(env.client, session.id, 4)
    deleted = await env.client.sessions.delete(**names_of(session), grace=timedelta(milliseconds=100))
    assert set(deleted.workflows) == {session.id, *(f"{session.id}/{n}" for n in (1, 2, 3))}
    assert deleted.runs > 4
    assert set(deleted.stopped) == {session.id, f"{session.id}/3"}


@pytest.mark.slow
async def test_a_deleted_session_can_start_over() -> None:
    """The new session with the same name has no old data, once the server has deleted it."""
    # Servers usually look every 30 s.
    soon = {f"history.{queue}ProcessorUpdateAckInterval": "1s" for queue in ("transfer", "visibility")}
    async with EmbeddedServer(dynamic_config=soon) as server, AgentEnvironment(asking(), server=server) as env:
        session = new_session(env, "asker")
        await session.say("one")
        await env.client.sessions.delete(**names_of(session))
        while await env.client.sessions.delete(**names_of(session)):
            await asyncio.sleep(0.1)  # the server does not report the end of a deletion
        new = env.client.session(agent="asker", **names_of(session))
        await new.say("two")
        assert len(await settled_events(new)) == 2


SIMILAR = [
    (("a", "s"), ("a/s", "s")),
    (("a", "s"), ("a", "s/1")),
    (("a", "s"), ("a", "s1")),
    (("a", "s"), ("b", "s")),
    (("a_", "s"), ("ab", "s")),
    (("a%", "s"), ("ab", "s")),
    (("a", "%' OR '1'='1"), ("b", "s")),
    (("..", ".."), ("a", "s")),
]


async def test_other_sessions_stay(serve: Serve) -> None:
    """Sessions with similar names stay."""
    async with serve(asking(), verify=False) as env:
        for number, (mine, theirs) in enumerate(SIMILAR):
            app = f"{env.client.task_queue}-{number}"
            both = [
                env.client.session(agent="asker", app=app, user_id=user, session_id=name)
                for user, name in (mine, theirs)
            ]
            for session in both:
                await session.say("hello")
            await until_listed(env.client, f"session/{app}/", 4)
            deleted = await env.client.sessions.delete(mine[1], user_id=mine[0], app=app)
            assert deleted.workflows == [both[0].id, f"{both[0].id}/1"]
            assert len(await both[1].events()) == 2
            assert (await both[1].say("still there?")).text == "You said still there?."


@pytest.mark.slow
async def test_sessions_are_listed_without_a_worker(serve: Serve) -> None:
    """Sessions have their original names and states in the list; one that continued as new is listed once."""
    async with serve(asking(), verify=False) as env:
        app = env.client.task_queue
        odd = env.client.session(agent="asker", app=app, user_id="a/b %", session_id="ü ' \n")
        other = env.client.session(agent="asker", app=app, user_id="bob", session_id="s")
        other.given = other.given.model_copy(update={"cut_after": 1})
        await odd.send("buy")
        await waits(odd, 1)
        for text in ("one", "two", "three"):
            await other.say(text)
        await other.close()
        await other.handle.result()

        async def entries(**filters: str) -> list[tuple[str, str, str, str]]:
            listed_entries = [entry async for entry in env.client.sessions.list(app=app, **filters)]
            return sorted((e.user_id, e.session_id, e.agent, e.status) for e in listed_entries)

        expected = [("a/b %", "ü ' \n", "asker", "waiting"), ("bob", "s", "asker", "closed")]
        while (listed_entries := await entries()) != expected:
            assert len(listed_entries) <= 2
            await asyncio.sleep(0.05)  # visibility lags
        assert await entries(user_id="bob") == expected[1:]
        assert await entries(agent="nobody") == []
