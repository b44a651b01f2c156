"""Deleting a user deletes all data of this user and no other, and can be repeated."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client, ScheduleIntervalSpec, ScheduleSpec, WorkflowExecutionStatus, WorkflowFailureError

from tests.server.conftest import Serve
from tests.server.sessions.test_deletion import until_listed
from tests.steps import start_and_wait, wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.artifacts import InMemoryArtifactService
from waystation.auth import APIKey, APIKeyIn, AuthConfig, AuthCredential, AuthCredentialTypes, InMemoryCredentialService
from waystation.client import DeletedUser
from waystation.client.agent_client import AgentClient
from waystation.core.contract import WORKFLOW
from waystation.core.errors import InvalidInput, StoreFailed, UserForgotten
from waystation.core.scope_state import user_scope
from waystation.history import describe_workflow
from waystation.memory import InMemoryMemoryService
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

CREDENTIAL = AuthConfig(
    auth_scheme=APIKey(in_=APIKeyIn.header, name="X-Key"),
    credential_key="crm",
    exchanged_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="secret"),
)


async def save(text: str, tool_context: ToolContext) -> str:
    """Save a text everywhere."""
    tool_context.state["user:text"] = text
    await tool_context.save_artifact("note.txt", types.Part.from_text(text=text))
    await tool_context.save_artifact("user:note.txt", types.Part.from_text(text=text))
    await tool_context.add_session_to_memory()
    await tool_context.save_credential(CREDENTIAL)
    return "saved"


def ask(question: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


def secretary() -> Agent:
    """Return an agent that saves a text everywhere, and then asks a person."""
    steps = (calls(("save", {"text": "tea"})), calls(("ask", {"question": "now?"})), says("Asked."))

    def reply(request: LlmRequest) -> LlmResponse:
        return steps[len(responses(request))]

    return Agent(name="secretary", model=FunctionModel(reply), tools=[save, LongRunningFunctionTool(ask)])


class Desk:
    """An app whose secretary serves users, each with data in all stores."""

    def __init__(self, client: AgentClient, services: Services) -> None:
        self.client = client
        self.stores: dict[str, Any] = {name: getattr(services, name) for name in ("artifacts", "memory", "credentials")}

    async def serve_user(self, user: str) -> dict[str, str]:
        """Open a session and an invocation that wait for a person, and a schedule. Return their IDs once all are
        listed.

        State is written after the tool call that sets it, and visibility lists a workflow after its start.
        """
        session = self.client.session(agent="secretary", session_id="s", user_id=user, app="desk")
        message = await session.send("tea please")
        invocation = await self.client.start("secretary", "tea please", user_id=user)
        for waiter in (message, invocation):
            await wait_for_calls(waiter, "fc-2")
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=300))])
        schedule = await self.client.schedule("secretary", "tea", spec, id=f"tea-{user}", user_id=user)
        scopes = (user_scope(app, user) for app in ("desk", "waystation"))
        ids = (session.id, message.invocation_id, invocation.id, *scopes)
        quoted = ", ".join(f"'{id}'" for id in ids)

        async def are_listed() -> bool:
            return (await self.client.temporal.count_workflows(f"WorkflowId IN ({quoted})")).count == len(ids)

        await wait_until(are_listed, f"all workflows of {user} in the list")
        return {"session": session.id, "invocation": invocation.id, "schedule": schedule.id}

    async def forget(self, user: str, **options: Any) -> DeletedUser:
        """Delete a user's data."""
        return await self.client.forget_user(user, **self.stores, **options)

    async def count_stored(self, user: str) -> int:
        """Return the number of a user's artifacts, memories and credentials."""
        dry = await self.forget(user, dry_run=True)
        return dry.artifacts + dry.memories + dry.credentials


@pytest.fixture
async def desk(serve: Serve) -> AsyncIterator[Desk]:
    """Return a desk with empty stores."""
    services = Services(
        artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService(), credentials=InMemoryCredentialService()
    )
    async with serve(secretary(), services=services, verify=False) as env:
        yield Desk(env.client, services)


def new_users() -> tuple[str, str]:
    """Return two users who have no data."""
    suffix = uuid.uuid4().hex[:8]
    return f"ann-{suffix}", f"bob-{suffix}"


async def is_open(client: Client, workflow_id: str) -> bool:
    """Return whether a workflow is running."""
    described = await describe_workflow(client, workflow_id)
    return described is not None and described.status is WorkflowExecutionStatus.RUNNING


async def test_everything_of_a_user_is_deleted_and_nothing_of_others(desk: Desk) -> None:
    """A deletion covers invocations, sessions, state, schedules, artifacts, memories and credentials in all apps."""
    ann, bob = new_users()
    names, others = await desk.serve_user(ann), await desk.serve_user(bob)
    before = await desk.count_stored(bob)
    deleted = await desk.forget(ann)
    scopes = {user_scope(app, ann) for app in ("desk", "waystation")}
    assert set(deleted.workflows) == {names["session"], f"{names['session']}/1", names["invocation"], *scopes}
    assert set(deleted.stopped) == set(deleted.workflows)
    assert (deleted.schedules, deleted.artifacts, deleted.memories > 0) == ([names["schedule"]], 4, True)
    assert (deleted.credentials, await desk.count_stored(ann)) == (2, 0)
    assert [id for id in deleted.workflows if await is_open(desk.client.temporal, id)] == []
    assert await desk.client.user_state(user_id=ann) == {}
    assert [schedule.id async for schedule in await desk.client.temporal.list_schedules()] == [others["schedule"]]
    assert await desk.count_stored(bob) == before
    assert await desk.client.user_state(user_id=bob) == {"user:text": "tea"}
    for name in ("session", "invocation"):
        assert await is_open(desk.client.temporal, others[name])
    assert any("backups" in reason for reason in deleted.left)
    await desk.forget(bob)


@pytest.mark.slow
async def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """A dry run lists exactly the data that the deletion then deletes."""
    ann, _ = new_users()
    names = await desk.serve_user(ann)
    dry = await desk.forget(ann, dry_run=True)
    assert await is_open(desk.client.temporal, names["session"])
    deleted = await desk.forget(ann)
    assert dry.to_json() == deleted.to_json() | {"dry_run": True}


@pytest.mark.slow
async def test_a_deletion_can_be_interrupted_and_repeated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a store fails, workflows have ended but are still listed, and the next attempt deletes everything."""
    ann, _ = new_users()
    await desk.serve_user(ann)
    with monkeypatch.context() as failing:
        failing.setattr(InMemoryMemoryService, "list_user_apps", _fail)
        with pytest.raises(StoreFailed):
            await desk.forget(ann)
    deleted = await desk.forget(ann)
    assert (len(deleted.workflows), deleted.stopped, deleted.memories > 0) == (5, [], True)
    assert (await desk.forget(ann)).stopped == []


async def _fail(*_: object, **__: object) -> list[str]:
    raise StoreFailed("a memory store", "it does not answer")


@pytest.mark.slow
async def test_only_one_app_is_deleted(desk: Desk) -> None:
    """Data of the same user in other apps, and in other tenants, stays."""
    ann, _ = new_users()
    names = await desk.serve_user(ann)
    tenants = await start_and_wait(
        desk.client.start("secretary", "tea", user_id=ann, app="desk", tenant="acme"), "fc-2"
    )
    deleted = await desk.forget(ann, app="desk")
    scope = user_scope("desk", ann)
    assert set(deleted.workflows) == {names["session"], f"{names['session']}/1", scope}
    assert await is_open(desk.client.temporal, tenants.id)
    assert await desk.client.user_state(user_id=ann) == {"user:text": "tea"}
    deleted = await desk.forget(ann, tenant="acme")
    assert set(deleted.workflows) == {tenants.id, user_scope("acme~~desk", ann)}
    await desk.forget(ann)


@pytest.mark.slow
async def test_a_deleted_user_can_return(desk: Desk) -> None:
    """A new invocation starts with empty state."""
    ann, _ = new_users()
    await desk.serve_user(ann)
    await desk.forget(ann)
    await start_and_wait(desk.client.start("secretary", "tea", user_id=ann), "fc-2")

    async def has_state() -> bool:
        return await desk.client.user_state(user_id=ann) == {"user:text": "tea"}

    await wait_until(has_state, "the state of the new invocation")
    await desk.forget(ann)


async def start_elsewhere(desk: Desk, user: str, id: str, type: str = WORKFLOW, app: str = "waystation") -> str:
    """Start a workflow as a program does that does not use the client. Return its ID once it is listed."""
    queue = desk.client.task_queue if type == WORKFLOW else "others"
    params = {"agent": "secretary", "message": "tea", "user_id": user, "app": app}
    await desk.client.temporal.start_workflow(type, params, id=id, task_queue=queue)
    await until_listed(desk.client, id, 1)
    return id


@pytest.mark.slow
async def test_the_recorded_input_shows_the_owner_not_the_id(desk: Desk) -> None:
    """IDs begin with that of an invocation of the user, or have the form of another user's data."""
    ann, bob = new_users()
    orders = (await desk.client.start("secretary", "tea", user_id=ann, id=f"orders-{ann}")).id
    others = [
        await start_elsewhere(desk, bob, f"{orders}/17"),
        await start_elsewhere(desk, bob, f"session/x/{ann}/s/1"),
    ]
    others.append(await start_elsewhere(desk, ann, f"{orders}/18", type="Shipping"))
    own = await start_elsewhere(desk, ann, f"invocation/waystation/{bob}/x")
    await wait_for_calls(desk.client.invocation(own), "fc-2")
    dry = await desk.forget(ann, dry_run=True)
    assert dry.owners[own] == {"user_id": ann, "app": "waystation", "tenant": None}
    deleted = await desk.forget(ann)
    assert set(deleted.workflows) == set(dry.workflows) | {user_scope("waystation", ann)} >= {orders, own}
    assert [await is_open(desk.client.temporal, id) for id in (orders, own)] == [False, False]
    assert [await is_open(desk.client.temporal, id) for id in others] == [True, True, True]


@pytest.mark.slow
async def test_nothing_starts_for_a_user_who_is_being_forgotten(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing starts until the deletion is complete, even after an interruption. Other apps still serve the user."""
    ann, _ = new_users()
    names: dict[str, Any] = {"user_id": ann, "app": "desk"}
    await desk.forget(ann, dry_run=True)
    await desk.client.start("secretary", "tea", **names)
    session = desk.client.session(agent="secretary", session_id="s", **names)
    with monkeypatch.context() as failing:
        failing.setattr(InMemoryMemoryService, "list_user_apps", _fail)
        with pytest.raises(StoreFailed):
            await desk.forget(ann, app="desk")
    for start in (
        desk.client.start("secretary", "tea", **names),
        desk.client.schedule("secretary", "tea", ScheduleSpec(), id=ann, **names),
        session.create(),
        session.send("tea"),
    ):
        with pytest.raises(UserForgotten):
            await start
    elsewhere = await start_elsewhere(desk, ann, f"elsewhere-{ann}", app="desk")
    with pytest.raises(WorkflowFailureError, match="failed") as failed:
        await desk.client.temporal.get_workflow_handle(elsewhere).result()
    assert getattr(failed.value.cause, "type", None) == "UserForgotten"
    await wait_for_calls(await desk.client.start("secretary", "tea", user_id=ann, app="other"), "fc-2")
    await desk.forget(ann, app="desk")
    await wait_for_calls(await session.send("tea"), "fc-2")


@pytest.mark.slow
async def test_a_deletion_ends_although_starts_go_on(desk: Desk) -> None:
    """The client refuses starts as soon as the deletion has begun, so the deletion ends."""
    ann, _ = new_users()

    async def go_on() -> None:
        while True:
            await desk.client.start("secretary", "tea", user_id=ann)

    await wait_for_calls(await desk.client.start("secretary", "tea", user_id=ann), "fc-2")
    starting = asyncio.create_task(go_on())
    deleted = await desk.forget(ann)
    with pytest.raises(UserForgotten):
        await starting
    assert not any("keep starting" in reason for reason in deleted.left)
    assert await desk.count_stored(ann) == 0


async def test_an_id_in_use_is_not_that_of_another_user(desk: Desk) -> None:
    """Starting again returns the existing invocation only to its own user, app and tenant, and no other workflow."""
    ann, bob = new_users()
    names: dict[str, Any] = {"id": f"mine-{ann}", "user_id": ann}
    assert [(await desk.client.start("secretary", "tea", **names)).existed for _ in range(2)] == [False, True]
    for other in ({"user_id": bob}, {"app": "other"}, {"tenant": "acme"}):
        with pytest.raises(InvalidInput, match="another user, app or tenant"):
            await desk.client.start("secretary", "tea", **names | other)
