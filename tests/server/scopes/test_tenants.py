"""Tenants see nothing of each other, although their apps, users and sessions have the same names."""

from datetime import timedelta
from typing import Any

import pytest
from google.genai import types
from temporalio.client import ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from tests.documents import blocks, how_to, section
from tests.server.approvals.asking import asker, boss, ids, listed
from tests.server.conftest import Serve, empty_server
from tests.steps import start_and_finish
from waystation.agents import Agent
from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthCredential, AuthCredentialTypes
from waystation.client.search_attributes import AGENT
from waystation.core.errors import InvalidInput
from waystation.core.ids import app_key, fairness_key
from waystation.core.payload import JsonObject, digest
from waystation.core.scope_state import app_scope, user_scope
from waystation.memory import MemoryEntry
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says
from waystation.tools.tool_context import ToolContext

TENANTS = "acme", "globex", None
"""None stands for data without a tenant."""
KEY = AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"), credential_key="crm")


async def keep(secret: str, tool_context: ToolContext) -> str:
    """Keep a secret in every place that a tool can write to."""
    for scope in ("user:", "app:", ""):
        tool_context.state[f"{scope}secret"] = secret
    for name in ("secret.txt", "user:secret.txt"):
        await tool_context.save_artifact(name, types.Part.from_text(text=secret))
    entry = MemoryEntry(content=types.Content(parts=[types.Part.from_text(text=f"The secret is {secret}.")]))
    await tool_context.add_memory(memories=[entry])
    await tool_context.add_session_to_memory()
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=f"key-{secret}")
    await tool_context.save_credential(KEY.model_copy(update={"exchanged_auth_credential": credential}))
    return "kept"


async def look(tool_context: ToolContext) -> JsonObject:
    """Return everything that a tool can read."""
    names = await tool_context.list_artifacts()
    parts = [await tool_context.load_artifact(name) for name in names]
    credential = await tool_context.load_credential(KEY)
    return {
        "tenant": tool_context.tenant,
        "state": [tool_context.state.get(f"{scope}secret") for scope in ("user:", "app:", "")],
        "artifacts": [part.text for part in parts if part],
        "memories": [str(memory.content) for memory in (await tool_context.search_memory("secret")).memories],
        "key": credential and digest(credential.api_key),  # the key itself would be masked
        "events": [event.model_dump_json() for event in tool_context.session.events],
    }


def clerk() -> Agent:
    """Return an agent that stores each message, or looks around."""

    def act(request: LlmRequest) -> LlmResponse:
        text, told = latest_turn(request)
        return says("Done.") if told else calls(("look", {}) if text == "look" else ("keep", {"secret": text}))

    return Agent(name="clerk", model=FunctionModel(act), tools=[keep, look])


async def test_clients_read_and_delete_the_data_of_one_tenant(serve: Serve, app: str) -> None:
    """Sessions, their queries and lists, and the state of users and apps are separate."""
    async with serve(clerk(), verify=False) as env:
        client = env.client
        sessions = [client.session(agent="clerk", session_id="s", app=app, tenant=tenant) for tenant in TENANTS]
        for session, tenant in zip(sessions, TENANTS, strict=True):
            await session.say(f"of-{tenant}")
        for session, tenant in zip(sessions, TENANTS, strict=True):
            secret = f"of-{tenant}"
            queried = [await session.handle.query(name) for name in ("events", "state", "invocations")]
            read = await session.events(), await session.state(), *queried
            states = await client.user_state(app=app, tenant=tenant), await client.app_state(app=app, tenant=tenant)
            assert states == ({"user:secret": secret}, {"app:secret": secret})
            for other in TENANTS:
                assert (f"of-{other}" in str(read)) is (other == tenant)
            entries = [entry async for entry in client.sessions.list(app=app, tenant=tenant)]
            expected = TENANTS if tenant is None else (tenant,)
            assert {entry.tenant for entry in entries} == set(expected)
        artifacts, memory = env.services.artifacts, env.services.memory
        deleted = await client.delete_session("s", app=app, tenant="acme", artifacts=artifacts, memory=memory)
        assert (deleted.id, deleted.artifacts) == (sessions[0].id, ["secret.txt"])
        assert deleted.memories > 0
        assert await client.delete_user_state(app=app, tenant="acme")
        assert await client.user_state(app=app, tenant="acme") == {}
        for session, tenant in zip(sessions[1:], TENANTS[1:], strict=True):
            assert f"of-{tenant}" in str(await session.events())
            assert await client.user_state(app=app, tenant=tenant) == {"user:secret": f"of-{tenant}"}


@pytest.mark.slow
async def test_pending_calls_are_listed_by_tenant(serve: Serve, app: str) -> None:
    """Called agents belong to the tenant of their caller, and so do the invocations of a session."""
    async with serve(boss(asker()), asker(), verify=False) as env:
        started = []
        for tenant in TENANTS:
            session = env.client.session(agent="boss", session_id="s", app=app, user_id=app, tenant=tenant)
            started.append(await (await session.send("go")).invocation())
        everything = await listed(env.client, 3, user_id=app)
        assert {call.tenant for call in everything} == set(TENANTS)
        for tenant, invocation in zip(TENANTS[:2], started[:2], strict=True):
            [call] = await listed(env.client, 1, tenant=tenant, user_id=app)
            assert (ids([call]), call.tenant) == ([f"{invocation.id}/fc-1/fc-1"], tenant)
        assert await listed(env.client, 0, tenant="nobody", user_id=app) == []
        for call in everything:
            await env.client.approvals.respond(call.approval_id, {"ok": True})
        for invocation in started:
            await invocation.result()


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_all_workflows_of_a_tenant_or_user_have_its_fairness_key(
    serve: Serve, app: str, tenant: str | None
) -> None:
    """The server takes the tasks of each key in turns. Invocations of sessions and called agents inherit the key."""
    async with serve(boss(clerk()), clerk(), verify=False) as env:
        session = env.client.session(agent="boss", session_id="s", app=app, user_id="ann", tenant=tenant)
        sent = await session.send("go")
        await (await sent.invocation()).result()
        alone = await env.client.start("clerk", "look", app=app, user_id="ann", tenant=tenant)
        keys = []
        for id in (session.id, sent.invocation_id, f"{sent.invocation_id}/fc-1", alone.id):
            begun, *_ = (await env.temporal.get_workflow_handle(id).fetch_history()).events
            keys.append(begun.workflow_execution_started_event_attributes.priority.fairness_key)
        assert keys == [fairness_key(app_key(app, tenant), "ann")] * 4


async def test_a_priority_applies_to_all_workflows_of_an_invocation(serve: Serve, app: str) -> None:
    """Invocations of a session and called agents inherit the priority, and keep the fairness key."""
    async with serve(boss(clerk()), clerk(), verify=False) as env:
        session = env.client.session(agent="boss", session_id="s", app=app, tenant="acme", priority=1)
        sent = await session.send("go")
        await (await sent.invocation()).result()
        alone = await start_and_finish(env.client.start("clerk", "look", app=app, tenant="acme", priority=5))
        begun = []
        for id in (session.id, sent.invocation_id, f"{sent.invocation_id}/fc-1", alone.id):
            first, *_ = (await env.temporal.get_workflow_handle(id).fetch_history()).events
            priority = first.workflow_execution_started_event_attributes.priority
            begun.append((priority.priority_key, priority.fairness_key))
    assert begun == [(1, "acme")] * 3 + [(5, "acme")]


async def test_an_unknown_priority_is_refused(serve: Serve) -> None:
    """An unknown priority is refused, because the server would replace it."""
    async with serve(clerk()) as env:
        for start in (env.client.start("clerk", "look", priority=6), env.client.run("clerk", "look", priority=0)):
            with pytest.raises(InvalidInput, match=r"The priority \d is not valid. Use 1"):
                await start
        with pytest.raises(InvalidInput, match="The priority 9 is not valid"):
            env.client.session(agent="clerk", session_id="s", priority=9)


async def test_scheduled_invocations_have_the_fairness_key_of_their_tenant(serve: Serve) -> None:
    """The action of the schedule contains the key, and the priority."""
    async with serve(clerk()) as env:
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=1))])
        schedule = await env.client.schedule("clerk", "look", spec, id=env.client.task_queue, tenant="acme", priority=2)
        action = (await schedule.describe()).schedule.action
        await schedule.delete()
    assert isinstance(action, ScheduleActionStartWorkflow)
    assert (action.priority.fairness_key, action.priority.priority_key) == ("acme", 2)


async def test_a_tenant_is_found_although_only_the_input_names_it(serve: Serve, app: str) -> None:
    """A program that starts a workflow with search attributes may leave out the one for the tenant."""
    async with serve(asker(), verify=False) as env:
        params = {"agent": "asker", "message": "go", "user_id": app, "tenant": "acme"}
        handle = await env.temporal.start_workflow(
            "AgentInvocation",
            params,
            id=f"raw-{app}",
            task_queue=env.client.task_queue,
            search_attributes=TypedSearchAttributes([SearchAttributePair(AGENT, "asker")]),
        )
        [call] = await listed(env.client, 1, tenant="acme", user_id=app)
        assert call.invocation_id == handle.id
        await env.client.approvals.respond(call.approval_id, {"ok": True})
        await handle.result()


async def test_a_fork_belongs_to_the_tenant_of_its_source(serve: Serve, app: str) -> None:
    """A fork that names another tenant is refused."""
    async with serve(clerk(), verify=False) as env:
        source = await start_and_finish(env.client.start("clerk", "of-acme", app=app, tenant="acme"))
        prepared = await env.client.forks.prepare(source.id, 1)
        assert prepared.given.tenant == "acme"
        forged: Any = prepared.given.model_dump(mode="json", exclude_defaults=True) | {"tenant": "globex"}
        handle = await env.temporal.start_workflow(
            "AgentInvocation", forged, id=f"{source.id}-forged", task_queue=env.client.task_queue
        )
        with pytest.raises(Exception) as refused:  # noqa: PT011  # the cause names it
            await handle.result()
        assert "`tenant` of a fork" in str(refused.value.__cause__)


@pytest.mark.slow
async def test_the_program_of_the_page_works(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints the answer, the state, no pending call, and the session."""
    [program] = blocks(section(how_to("separate-tenants"), "## Name the tenant"), "python")
    names: JsonObject = {}
    exec(program, names)
    support = Agent(name="support", model=FunctionModel(lambda _: says("On its way.")))
    async with empty_server() as server, serve(support, server=server, verify=False) as env:
        await names["main"](env.client)
    answer, state, pending, sessions = capsys.readouterr().out.splitlines()
    assert (answer, state, pending) == ("On its way.", "{}", "[]")
    assert "id='session/acme~~waystation/ann/orders'" in sessions


async def test_a_tenant_that_is_not_valid_is_refused_by_the_client(serve: Serve) -> None:
    """The client refuses an invalid tenant before anything starts."""
    async with serve(clerk()) as env:
        with pytest.raises(InvalidInput, match="tenant"):
            await env.client.start("clerk", "x", tenant="a/b")
        with pytest.raises(ValueError, match="tenant"):
            env.client.session(agent="clerk", session_id="s", tenant="A")
        with pytest.raises(ValueError, match="tenant"):
            await env.client.user_state(tenant="a~~b")


async def test_without_a_tenant_nothing_is_recorded_about_it(serve: Serve, app: str) -> None:
    """Histories, IDs, memos and search attributes are the same as before there were tenants."""
    async with serve(clerk()) as env:
        session = env.client.session(agent="clerk", session_id="s", app=app)
        sent = await session.send("mine")
        await (await sent.invocation()).result()
        for id in (session.id, sent.invocation_id, app_scope(app), user_scope(app, "user")):
            handle = env.temporal.get_workflow_handle(id)
            description = (await handle.describe()).raw_description
            recorded = [event.SerializeToString() for event in (await handle.fetch_history()).events]
            assert b"enant" not in b"".join([*recorded, description.SerializeToString()])
        await session.close()
