"""Permissions of each role with an identity provider, over HTTP."""

import contextlib
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

import httpx2 as httpx
import pytest
from starlette.routing import Mount, Route
from temporalio.client import Client
from temporalio.service import RPCError

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.logins import DANA, ERIN, browser, gatekeeper, logged_in, person, provider_installed
from tests.server.web.sites import path_of, site
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.approvers import ROLES
from waystation.approvers.identity.identity_file import GrantSection
from waystation.client import make_times
from waystation.client.agent_client import AgentClient
from waystation.core.approval import ApprovalPolicy
from waystation.web.access import Access
from waystation.web.route_table import REQUIREMENTS, RouteRow, build_routes
from waystation.web.server import create_app
from waystation.web.web_settings import WebSettings

FORM = "application/x-www-form-urlencoded"
FINANCE = ApprovalPolicy(approvers=("role:finance",))
PEOPLE = ("stranger", "nobody", "viewer", "approver", "author", "operator", "requester", "named", "chief", "admin")
"""People without a login, without a role, with one role; the requester; the approver that the policy names; a viewer
who is also an author; a viewer who is also an operator."""
ROLES_OF = {"stranger": (), "nobody": (), "requester": (), "named": ("finance",)} | {
    "chief": ("viewers", "authors"),
    "admin": ("viewers", "operators"),
}
OUTCOMES = {401: "L", 403: "F", 404: "N"}
"""Log in first, forbidden, not found. A failure of the server is E. Everything else counts as allowed: A."""
EXPECTED = {
    ("GET", "/"): "LAAAAAAAAA",
    ("GET", "/invocations"): "LAAAAAAAAA",
    ("GET", "/invocations/{id}"): "LNANNNANAA",
    ("GET", "/invocations/{id}/rows"): "LNANNNANAA",
    ("GET", "/invocations/{id}/overview"): "LNANNNANAA",
    ("GET", "/invocations/{id}/timeline"): "LNANNNANAA",
    ("GET", "/invocations/{id}/models"): "LNANNNANAA",
    ("GET", "/invocations/{id}/state"): "LNANNNANAA",
    ("GET", "/invocations/{id}/report"): "LNANNNANAA",
    ("GET", "/invocations/{id}/events"): "LNANNNANAA",
    ("GET", "/invocations/{id}/events.json"): "LNANNNANAA",
    ("GET", "/invocations/{id}/fork"): "LNFNNNFNFA",
    ("POST", "/invocations/{id}/fork"): "LNFNNNFNFA",
    ("GET", "/invocations/{id}/compare"): "LNANNNANAA",
    ("GET", "/approvals"): "LAAAAAAAAA",
    ("GET", "/approvals/rows"): "LAAAAAAAAA",
    ("GET", "/approvals/events"): "LAAAAAAAAA",
    ("GET", "/approvals/several"): "LAAAAAAAAA",
    ("POST", "/approvals/several"): "LAAAAAAAAA",
    ("GET", "/approvals/{id}"): "LNAANNAAAA",
    ("POST", "/approvals/{id}"): "LNFANNFAFA",
    ("GET", "/approvals/{id}/edit"): "LNFANNFAFA",
    ("POST", "/approvals/{id}/edit"): "LNFANNFAFA",
    ("GET", "/approvals/{id}/events"): "LNAANNAAAA",
    ("GET", "/approvals/{id}/arguments.json"): "LNAANNAAAA",
    ("POST", "/approvals/{id}/viewed"): "LNAANNAAAA",
    ("GET", "/static"): "AAAAAAAAAA",
    ("GET", "/login"): "AAAAAAAAAA",
    # These are public, but refuse a login that was not started and a link that is not valid.
    ("GET", "/login/callback"): "FFFFFFFFFF",
    ("POST", "/link"): "FFFFFFFFFF",
    ("POST", "/api/invocations"): "LFFFAFFFAF",
    ("POST", "/api/invocations/{id}/cancel"): "LNFNNNFNAF",
    ("GET", "/api/invocations/{id}/forks"): "LNANNNANAA",
    ("POST", "/api/invocations/{id}/forks"): "LNFNNNFNFA",
    ("POST", "/api/invocations/{id}/reset"): "LNFNNNFNFA",
    ("GET", "/api/invocations/{id}/prompt"): "LNFNNNFNFA",
    # Nobody has started this session.
    ("GET", "/api/sessions/{id}/events"): "LNNNNNNNNN",
    ("POST", "/api/sessions/{id}/messages"): "LFFFAFFFAF",
    ("POST", "/api/sessions/{id}/close"): "LFFFAFFFAF",
    ("GET", "/agents"): "LFFFAFFFAF",
    ("GET", "/sessions"): "LAAAAAAAAA",
    ("GET", "/sessions/new"): "LFFFAFFFAF",
    ("POST", "/sessions/new"): "LFFFAFFFAF",
    ("GET", "/sessions/{id}"): "LNANNNANAA",
    ("GET", "/sessions/{id}/turns"): "LNANNNANAA",
    ("GET", "/sessions/{id}/artifact"): "LNANNNANAA",
    # Even an author sends messages only to their own sessions.
    ("POST", "/sessions/{id}"): "LNFNNNFNFF",
    ("POST", "/sessions/{id}/close"): "LNFNNNFNFF",
    # Nothing is held. The invocation ends last, because the other rows need it.
    ("POST", "/invocations/{id}/retry"): "LNFNNNFNFA",
    ("POST", "/invocations/{id}/give-up"): "LNFNNNFNFA",
    ("POST", "/invocations/{id}/stop"): "LNFNNNFNAF",
    ("POST", "/logout"): "LAAAAAAAAA",
}
PAGES = {
    ("GET", "/api/v1"): ("GET", "/invocations"),
    ("GET", "/api/v1/openapi.json"): ("GET", "/invocations"),
    ("GET", "/api/v1/calls"): ("GET", "/approvals"),
    ("GET", "/api/v1/calls/events"): ("GET", "/approvals/events"),
    ("POST", "/api/v1/calls/answers"): ("POST", "/approvals/several"),
    ("GET", "/api/v1/calls/{id}"): ("GET", "/approvals/{id}"),
    ("POST", "/api/v1/calls/{id}/answers"): ("POST", "/approvals/{id}"),
    ("GET", "/api/v1/agents"): ("GET", "/agents"),
    ("GET", "/api/v1/invocations"): ("GET", "/invocations"),
    ("POST", "/api/v1/invocations"): ("POST", "/api/invocations"),
    **{
        ("GET", f"/api/v1/invocations/{{id}}{part}"): ("GET", "/invocations/{id}")
        for part in ("", "/events", "/events/stream", "/audit", "/report")
    },
    **{
        ("POST", f"/api/v1/invocations/{{id}}/{part}"): ("POST", "/invocations/{id}/retry")
        for part in ("retry", "give-up", "forks")
    },
    ("POST", "/api/v1/invocations/{id}/stop"): ("POST", "/invocations/{id}/stop"),
    ("GET", "/api/v1/sessions"): ("GET", "/sessions"),
    ("POST", "/api/v1/sessions"): ("POST", "/sessions/new"),
    **{
        ("GET", f"/api/v1/sessions/{{id}}{part}"): ("GET", "/sessions/{id}")
        for part in ("", "/events", "/events/stream", "/state", "/artifacts", "/artifacts/content")
    },
    **{
        ("POST", f"/api/v1/sessions/{{id}}/{part}"): ("POST", "/sessions/{id}")
        for part in ("messages", "state", "artifacts", "close")
    },
    ("GET", "/api/v1/schedules"): ("GET", "/invocations"),
    ("POST", "/api/v1/schedules"): ("POST", "/api/invocations"),
    ("GET", "/api/v1/schedules/{id}"): ("GET", "/invocations/{id}"),
    **{
        ("POST", f"/api/v1/schedules/{{id}}/{part}"): ("POST", "/invocations/{id}/retry")
        for part in ("pause", "unpause", "delete")
    },
    # Only requesters who are authors, too.
    ("POST", "/api/v1/schedules/{id}/trigger"): ("POST", "/sessions/{id}"),
    # This server has no quota file.
    ("GET", "/api/v1/budgets"): ("GET", "/api/sessions/{id}/events"),
}
"""The routes of the JSON API, each with the route of a page that admits the same people."""
EXPECTED = {row: EXPECTED[page] for row, page in PAGES.items()} | EXPECTED


async def ask(http: httpx.AsyncClient, method: str, path: str, csrf: str) -> str:
    """Send a request, and return the letter of its outcome."""
    content = urlencode({"csrf": csrf, "action": "approve"}) if method == "POST" else None
    headers = {"Accept": "*/*", "Content-Type": FORM}
    if path.startswith("/api/"):  # a field that no route has, so that nothing happens
        content = content and '{"unknown": 1}'
        headers |= {"Content-Type": "application/json", "X-CSRF-Token": csrf, "Sec-Fetch-Site": "same-origin"}
    async with http.stream(method, path, content=content, headers=headers) as response:
        return OUTCOMES.get(response.status_code, "A" if response.status_code < 500 else "E")


@pytest.mark.parametrize("who", PEOPLE)
async def test_each_route_admits_exactly_the_roles_of_the_table(
    serve: Serve, there: Installation, openid: FakeOpenId, who: str
) -> None:
    """Every kind of person requests every route of the table."""
    options = {"approval": FINANCE} if who == "named" else {}
    roles = ROLES_OF.get(who, (f"{who}s",))
    async with (
        serve(payer(Till(), {"amount": 5}, **options), identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, *roles) if who != "stranger" else contextlib.nullcontext() as me,
        browser(web.url) as stranger,
    ):
        user = DANA if who == "requester" else ERIN
        invocation, call = await begun(env.client, "payer", user_id=user)
        session = await env.client.session(agent="payer", session_id=f"s-{invocation.id}", user_id=user).create()
        times = make_times(None, 604_800.0)
        schedule = await env.client.schedule("payer", "Pay.", times, id=f"s-{invocation.id}", user_id=user)
        http = me.http if me else stranger
        csrf = (await me.fields("/approvals"))["csrf"] if me else ""
        outcomes = {}
        for method, path in EXPECTED:
            kind = path.removeprefix("/api/v1").partition("/{")[0]
            ids = {"/approvals": call, "/calls": call, "/sessions": session.id, "/schedules": schedule.id}
            id = ids.get(kind, invocation.id)
            exact = path.replace("{id}", quote(id, safe="")) + ("/style.css" if path == "/static" else "")
            outcomes[method, path] = await ask(http, method, exact, csrf)
        assert outcomes == {row: letters[PEOPLE.index(who)] for row, letters in EXPECTED.items()}
        own = {(row.method, row.path) for row in web.table if row.role != "machine"}  # their URLs prove who calls
        assert own == set(EXPECTED)
        await schedule.delete()
        for handle in (invocation.handle, session.handle):
            with contextlib.suppress(RPCError):  # people who may stop it have done so
                await handle.terminate()


async def test_each_route_of_the_application_stands_in_the_table() -> None:
    """A route without a requirement cannot be added: the application has only routes of the table."""
    client = AgentClient(await Client.connect("localhost:1", lazy=True))
    app = create_app(client, WebSettings(), Access(announce=lambda _: None))
    table: list[RouteRow] = app.state.table
    routes = [
        (route.path, getattr(route, "methods", {"GET"})) for route in app.routes if isinstance(route, Route | Mount)
    ]
    assert len(routes) == len(app.routes) == len(table)
    for row, (path, methods) in zip(table, routes, strict=True):
        assert row.path == path
        assert row.method in (methods or ())
        assert row.role in REQUIREMENTS
    with pytest.raises(TypeError, match="role"):
        RouteRow("GET", "/new", table[0].handler)  # type: ignore[call-arg]  # that is the mistake
    with pytest.raises(ValueError, match="GET /new requires ''"):
        build_routes([RouteRow("GET", "/new", table[0].handler, cast(Any, ""))])


def test_the_identity_file_can_grant_each_role() -> None:
    """The identity file uses the names of the roles."""
    assert set(GrantSection.model_fields) == ROLES


async def test_the_inbox_lists_what_a_person_may_answer_or_requested(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Viewers see all calls."""
    agents = payer(Till(), {"amount": 5}), payer(Till(), {"amount": 5}, approval=FINANCE)
    agents[1].name = "policed"
    async with (
        serve(*agents, identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
    ):
        plain, first = await begun(env.client, "payer", user_id=ERIN)
        policed, second = await begun(env.client, "policed", user_id=ERIN)

        async def listed() -> bool:
            calls = [call.approval_id async for call in env.client.approvals.each()]
            return {first, second} <= set(calls)

        await wait_until(listed, "both calls")
        for roles, subject, expected in (
            ((), DANA, []),
            (("authors",), DANA, []),
            (("approvers",), DANA, [first]),
            (("finance",), DANA, [second]),
            (("viewers",), DANA, [first, second]),
            ((), ERIN, [first, second]),
        ):
            async with person(web.url, openid, *roles, subject=subject) as me:
                page = (await me.page("/approvals")).text
                assert [id for id in (first, second) if f'value="{id}"' in page] == expected, (roles, subject)
                several = (await me.page(f"/approvals/several?{urlencode({'call': [first, second]}, doseq=True)}")).text
                assert [id for id in (first, second) if f'value="{id}|' in several] == expected, (roles, subject)
        await plain.handle.terminate()
        await policed.handle.terminate()


async def test_the_list_has_only_the_invocations_of_a_person(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Viewers see the others, too."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, subject=ERIN) as erin,
        person(web.url, openid, "viewers") as viewer,
        person(web.url, openid) as dana,
    ):
        invocation, _ = await begun(env.client, "payer", user_id=ERIN)

        async def listed_ids() -> bool:
            return invocation.id in (await erin.page("/invocations")).text

        await wait_until(listed_ids, "the invocation")
        assert invocation.id in (await viewer.page("/invocations")).text
        assert invocation.id not in (await dana.page("/invocations")).text
        await invocation.handle.terminate()


async def test_the_default_user_id_belongs_to_nobody(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """An account named `user` would otherwise own every invocation that was started without a user ID."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, subject="user") as me,
    ):
        invocation, id = await begun(env.client, "payer")
        assert (await me.page(path_of(id))).status_code == 404
        await invocation.handle.terminate()


async def test_an_approver_answers_a_call_without_a_policy_with_a_verified_identity(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The role may come from a group, and a viewer is refused."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5}), identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "approvers") as approver,
        person(web.url, openid, "viewers", subject="vera@example.com") as viewer,
    ):
        invocation, id = await begun(env.client, "payer", user_id=ERIN)
        shown = (await viewer.page(path_of(id))).text
        assert "you do not have the role &#39;approver&#39;" in shown
        assert 'value="approve"' not in shown
        form = {**await viewer.fields(path_of(id)), "action": "approve"}
        assert (await viewer.send(path_of(id), form)).status_code == 403
        chosen = {**await viewer.fields(f"/approvals/several?{urlencode({'call': id})}"), "call": f"{id}|"}
        refused = await viewer.send("/approvals/several", {**chosen, "action": "approve"})
        assert "you do not have the role" in refused.text
        assert till.paid == []
        page = await approver.send(path_of(id), {**await approver.fields(path_of(id)), "action": "approve"})
        assert "This call was approved by dana@example.com (identity verified)" in page.text
        await invocation.result()
        assert till.paid == [5]


async def test_only_an_operator_closes_a_call_without_a_decision(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """An approver cannot waive or cancel, and an operator cannot approve."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5}, approval=ApprovalPolicy()), identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "approvers") as approver,
        person(web.url, openid, "operators", "viewers") as operator,
    ):
        invocation, id = await begun(env.client, "payer", user_id=ERIN)
        for me, action in ((approver, "waive"), (approver, "cancel"), (operator, "approve"), (operator, "reject")):
            refused = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": action})
            assert (action, refused.status_code) == (action, 403)
        closed = await operator.send(path_of(id), {**await operator.fields(path_of(id)), "action": "cancel"})
        assert (closed.status_code, await invocation.pending(), till.paid) == (200, [], [])
        await invocation.result()


async def test_an_account_without_a_required_group_cannot_log_in(
    serve: Serve, tmp_path: Path, openid: FakeOpenId
) -> None:
    """The refusal names what is missing, and the browser is not logged in."""
    there = provider_installed(tmp_path, openid, '[oidc.require]\nroles = ["staff"]\n')
    openid.roles = ("guests",)
    async with (
        serve(payer(Till())) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        refused = await logged_in(http, openid)
        assert refused.status_code == 403
        assert "none of the roles that this server requires" in refused.text
        assert (await http.get("/approvals")).status_code == 303
        openid.roles = ("staff",)
        assert (await logged_in(http, openid)).status_code == 303
