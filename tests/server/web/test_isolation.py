"""No tenant reads the data of another one, although their apps, users, sessions and agents have the same names.

`KINDS` lists each kind of data with a function that tries to read it. The test calls each function for the tenant's own
data, and for those of another tenant.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from temporalio.client import ScheduleActionExecutionStartWorkflow, ScheduleHandle, ScheduleIntervalSpec, ScheduleSpec

from tests.fakes.openid import FakeOpenId
from tests.server.approvals.asking import listed
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of
from tests.server.scopes.test_tenants import keep, look
from tests.server.web.logins import gatekeeper
from tests.server.web.sites import Browser, site
from tests.server.web.test_roles import EXPECTED, ask
from tests.server.web.test_tenants_of_people import EVERYTHING, member, tenants_installed
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation import Agent, AgentClient, LongRunningFunctionTool
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject, digest
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

LISTS = (
    "/invocations?called=1&q={name}",
    "/sessions",
    "/approvals",
    "/approvals/rows",
    "/approvals/several?{calls}",
)
WEEKLY = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=7))])


@dataclass
class Member:
    """A person of a tenant, and what was recorded for the tenant."""

    tenant: str | None
    client: AgentClient
    name: str
    """The name of the user, the app and the session."""
    token: str
    browser: Browser
    invocations: Mapping[str, Invocation]
    """Invocations that wait for an answer, by the way in which they were started."""
    found: JsonObject
    """The results of the tool `look`."""

    @property
    def names(self) -> dict[str, Any]:
        """Return the user, the app and the tenant."""
        return {"user_id": self.name, "app": self.name, "tenant": self.tenant}

    def is_shown_in(self, content: object) -> bool:
        """Return whether content has something that only this tenant may see."""
        secret, ids = f"of-{self.tenant}-001", [invocation.id for invocation in self.invocations.values()]
        session = self.invocations["session"].id.rpartition("/")[0]
        marks = secret, digest(f"key-{secret}"), session, quote(session, safe=""), *ids
        return any(mark in str(content) for mark in marks)

    async def open(self, path: str) -> str:
        """Return a page, the first part of a stream that has a secret, or an empty string if the page is refused."""
        lines = list[str]()
        async with self.browser.http.stream("GET", path) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if "event-stream" in response.headers["content-type"] and "-001" in line:
                    break
        return "\n".join(lines) if response.is_success else ""


Read = Callable[[Member, Member], Awaitable[object]]
"""Returns what the first person can read of the second person's data."""


def page(path: str, way: str) -> Read:
    """Open a page about an invocation a call or a schedule of the other tenant."""

    async def read(me: Member, other: Member) -> object:
        return await me.open(name_in(path, other.invocations[find_way(path, way)]))

    return read


def find_way(path: str, way: str) -> str:
    """Return which invocation a route is asked about: for a schedule, the one that it has started."""
    return "schedule" if "/schedules/" in path else way


def name_in(path: str, invocation: Invocation) -> str:
    """Return the path of a route for an invocation or, if the route is about those, for its call or its session."""
    page = path.removeprefix("/api/v1")
    id = invocation.id + ("/fc-1" if page.startswith(("/approvals", "/calls")) else "")
    if page.startswith("/sessions"):
        id = id.rpartition("/")[0]
    if page.startswith("/schedules"):
        id = id[: -len("-2026-11-30T09:00:00Z")]
    has_artifact = page.endswith(("/artifact", "/artifacts/content"))
    return path.replace("{id}", quote(id, safe="")) + ("?name=secret.txt" if has_artifact else "")


def listing(path: str) -> Read:
    """Open a list, which can be asked for calls of the other tenant."""

    async def read(me: Member, other: Member) -> object:
        named = [f"{invocation.id}/fc-1" for invocation in other.invocations.values()]
        return await me.open(path.format(calls=urlencode({"call": named}, doseq=True), name=other.name))

    return read


def tool(kind: str) -> Read:
    """Read the result of the tool `look` of one's own agent."""

    async def read(me: Member, _: Member) -> object:
        return me.found[kind]

    return read


async def compare(me: Member, other: Member) -> object:
    """Compare one's own invocation with one of the other tenant."""
    path = name_in("/invocations/{id}/compare", me.invocations["fork"])
    return await me.open(f"{path}?{urlencode({'with': other.invocations['start'].id})}")


async def read_session_over_http(me: Member, _: Member) -> object:
    """Read a session with the name that the other tenant's session has, too."""
    return await me.open(f"/api/sessions/{me.name}/events?{urlencode({'app': me.name, 'user_id': me.name})}")


async def read_session(me: Member, _: Member) -> object:
    """Read the session and query its workflow."""
    session = me.client.session(agent="clerk", session_id=me.name, **me.names)
    return await session.events(), await session.state(), [await session.handle.query(q) for q in ("events", "state")]


async def list_sessions(me: Member, _: Member) -> object:
    """List the sessions of the tenant. Without a tenant, the client lists those of all tenants."""
    return [entry async for entry in me.client.sessions.list(**me.names) if me.tenant or not entry.tenant]


async def list_calls(me: Member, _: Member) -> object:
    """List the pending calls of the tenant. Without a tenant, the client lists those of all tenants."""
    pending_calls = me.client.approvals.each(user_id=me.name, tenant=me.tenant)
    return [call async for call in pending_calls if me.tenant or not call.tenant]


async def read_scopes(me: Member, _: Member) -> object:
    """Read the state of the user and the app."""
    user = await me.client.user_state(**me.names)
    return user, await me.client.app_state(app=me.name, tenant=me.tenant)


async def start_again(me: Member, other: Member) -> object:
    """Start an invocation with the ID of an invocation of the other tenant, and read it."""
    try:
        started = await me.client.start("clerk", "keep nothing", id=other.invocations["start"].id, **me.names)
    except WaystationError:
        return "refused"
    return (await started.log()).state.events


async def answer(me: Member, other: Member) -> object:
    """Answer a call of the other tenant with one's own token. The call remains pending."""
    try:
        return await other.invocations["start"].answer("progress", "fc-1", response={"at": 1}, token=me.token), other
    except WaystationError:
        return "refused"


async def change(me: Member, other: Member) -> dict[tuple[str, str], str]:
    """Send each request that changes something of the other tenant. Return the outcomes."""
    http, started = me.browser.http, other.invocations
    csrf = (await me.browser.fields("/approvals"))["csrf"]

    async def send(method: str, path: str) -> str:
        return await ask(http, method, name_in(path, started[find_way(path, "session")]), csrf)

    return {(method, path): await send(method, path) for method, path in CHANGES}


ROUTES = [row for row in EXPECTED if "{id}" in row[1] and "/api/sessions" not in row[1]]
WITHOUT_DATA = ("/approvals/{id}/events", "/api/v1/sessions/{id}/artifacts")
"""A stream of digests and a list of names. They do not show whose data they are about."""
PAGES = [path for method, path in ROUTES if method == "GET" and not path.endswith("/edit") and path not in WITHOUT_DATA]
CHANGES = [(method, path) for method, path in ROUTES if path not in PAGES or method == "POST"]
KINDS: Mapping[str, Read] = {
    **{path: page(path, "session") for path in PAGES},
    **{f"{way}: events": page("/invocations/{id}/events.json", way) for way in ("start", "schedule", "fork")},
    **{path.partition("?")[0]: listing(path) for path in LISTS},
    **{kind: tool(kind) for kind in ("state", "artifacts", "memories", "key", "events")},
    "compare": compare,
    "session over HTTP": read_session_over_http,
    "session": read_session,
    "sessions": list_sessions,
    "scopes": read_scopes,
    "pending calls": list_calls,
    "start again": start_again,
    "answer": answer,
}


def clerk() -> Agent:
    """Return an agent that stores a secret, or looks for secrets and then asks a person about its own one."""

    def act(request: LlmRequest) -> LlmResponse:
        text, results = latest_turn(request)
        if results:
            return says("Done.")
        verb, secret = text.split()
        tools = {"keep": [("keep", {"secret": secret})], "ask": [("inquire", {"about": secret}), ("look", {})]}
        return calls(*tools[verb])

    def inquire(about: str) -> None:
        """Ask a person."""

    asking = LongRunningFunctionTool(inquire, approval=ApprovalPolicy(approvers=("role:finance",)))
    return Agent(name="clerk", model=FunctionModel(act), tools=[keep, look, asking])


async def begin(client: AgentClient, tenant: str | None, name: str) -> dict[str, Invocation]:
    """Start an invocation in each possible way. Return those that wait for an answer."""
    names: Any = {"app": name, "user_id": name, "tenant": tenant}
    session, asks = client.session(agent="clerk", session_id=name, **names), f"ask of-{tenant}-001"
    await session.say(f"keep of-{tenant}-001")
    schedule = await client.schedule("clerk", asks, WEEKLY, id=f"{name}-{tenant}-weekly", **names)
    await schedule.trigger()
    scheduled = await wait_until(lambda: find_action(schedule), "the scheduled invocation")
    started = await client.start("clerk", asks, **names)
    sent = await (await session.send(asks)).invocation()
    invocations = {"start": started, "schedule": client.invocation(scheduled), "session": sent}
    for invocation in invocations.values():
        await wait_until(invocation.pending, f"that {invocation.id} waits")
    invocations["fork"] = await client.forks.start(started.id, 1)
    return invocations


async def find_action(schedule: ScheduleHandle) -> str:
    """Return the ID of the workflow that a schedule has started, or an empty string."""
    for result in (await schedule.describe()).info.recent_actions:
        if isinstance(result.action, ScheduleActionExecutionStartWorkflow):
            return result.action.workflow_id
    return ""


async def looked(invocation: Invocation) -> JsonObject:
    """Return the results of the tool `look`."""

    async def find() -> JsonObject:
        events = (await invocation.log()).state.events
        parts = [part for event in events for part in event.function_responses() if part["name"] == "look"]
        return dict(parts[0]["response"]) if parts else {}

    return await wait_until(find, "the response of the tool")


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose gateway uses the provider for logins."""
    return tenants_installed(tmp_path, openid)


async def test_each_kind_of_data_is_read_only_by_its_own_tenant(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Each person has every role. A person whose login names no tenant reads only data without a tenant."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    async with (
        serve(clerk(), identity=there.worker, verify=False, max_cached_workflows=100) as env,
        site(env.client, gatekeeper=gatekeeper(there), artifacts=env.services.artifacts) as web,
        AsyncExitStack() as logins,
    ):
        client, tenants = client_of(env, there), [f"acme-{name}", f"globex-{name}", None]
        invocations_of = {tenant: await begin(client, tenant, name) for tenant in tenants}
        members = list[Member]()
        for tenant, invocations in invocations_of.items():
            browser = await logins.enter_async_context(member(web.url, openid, tenant, "finance", *EVERYTHING))
            token, secrets = openid.token("dana", roles=["finance"], org=tenant), await looked(invocations["session"])
            members.append(Member(tenant, client, name, token, browser, invocations, secrets))
        await listed(client, sum(map(len, invocations_of.values())), user_id=name)
        own, foreign = [*zip(members, members, strict=True)], [*zip(members, members[1:] + members[:1], strict=True)]
        for kind, read in KINDS.items():
            for me, other in own + foreign:
                assert other.is_shown_in(await read(me, other)) is (me is other), (kind, me.tenant, other.tenant)
        for me, other in foreign:
            assert await change(me, other) == dict.fromkeys(CHANGES, "N")
        for tenant in tenants:
            await client.temporal.get_schedule_handle(f"{name}-{tenant}-weekly").delete()
        for invocation in (started for of in invocations_of.values() for started in of.values()):
            await invocation.handle.terminate()
