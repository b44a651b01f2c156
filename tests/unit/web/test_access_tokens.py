"""Requests with access tokens: who is behind them, what programs learn when one is refused, and other sites' pages."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx2 as httpx
import pytest
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.fakes.openid import FakeOpenId
from tests.unit.identity.conftest import Installation, installed
from tests.unit.identity.test_bearer import RESOURCE, write
from waystation.approvers import Gatekeeper
from waystation.approvers.permissions import sees_tenant
from waystation.core.approval import ApprovalPolicy
from waystation.web import logins
from waystation.web.access import Access
from waystation.web.invocation_pages import InvocationPages
from waystation.web.limits import Limits
from waystation.web.route_table import RouteRow, make_login_rows
from waystation.web.server import build_app, make_cors
from waystation.web.shared_reads import SharedReads

TOKEN = "a-token-of-a-test-that-is-long-enough"
METADATA = "/.well-known/oauth-protected-resource"
FRONT_END = "https://app.example.com"
GRANT = '[oidc.grant]\nviewer = ["role:finance"]\n[envelope]\npublic_key = "envelope-public.json"\n'


async def show(request: Request) -> Response:
    """Return who is behind a request."""
    login = request.state.login
    acme = sees_tenant(login, "acme")
    return JSONResponse({"subject": login.subject, "verified": login.verified is not None, "acme": acme})


async def stream(request: Request) -> Response:
    """Send events until the login is over."""

    async def content() -> AsyncIterator[ServerSentEvent]:
        while True:
            yield ServerSentEvent("tick")
            await request.state.login.wait_until_over()

    response: Response = request.app.state.pages.respond(request.state.login, content())
    return response


@pytest.fixture
def openid(own_openid: FakeOpenId) -> FakeOpenId:
    """Return a provider whose tokens are for this server."""
    own_openid.audience = RESOURCE
    return own_openid


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    return installed(tmp_path / "identity", openid)


def client(keeper: Gatekeeper | None, *, links: list[str] | None = None) -> httpx.AsyncClient:
    """Return a client of a small server, which allows the pages of one other site."""
    announced = [] if links is None else links
    access = Access(announce=announced.append, token=TOKEN, gatekeeper=keeper)
    rows = [
        RouteRow("GET", "/api/me", show, "login"),
        RouteRow("POST", "/api/me", show, "login"),
        RouteRow("GET", "/api/stream", stream, "login"),
        *make_login_rows(access),
    ]
    origins = [FRONT_END]
    before, limits = [make_cors(origins)], Limits()
    app = build_app(rows, access, names=(), limits=limits, before=before, origins=origins, with_cookies=False)
    nothing: Any = None
    app.state.pages = InvocationPages(nothing, limits, SharedReads(1))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)


def keeper_of(there: Installation, openid: FakeOpenId, *lines: str) -> Gatekeeper:
    """Return a gatekeeper without a gateway key."""
    file = write(there.folder / "tokens.toml", openid, *lines, tables=GRANT)
    return Gatekeeper.from_file(file, "default", interface="web")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_program_acts_for_the_person_of_its_token(there: Installation, openid: FakeOpenId) -> None:
    """The tenant of the token limits the person as that of a login does."""
    async with client(keeper_of(there, openid, 'tenant_claim = "org"')) as http:
        for tenant in ("acme", "other"):
            me = await http.get("/api/me", headers=bearer(openid.token(org=tenant)))
            assert me.json() == {"subject": "dana@example.com", "verified": True, "acme": tenant == "acme"}


async def test_a_refused_token_names_the_metadata_of_the_server(there: Installation, openid: FakeOpenId) -> None:
    """A program finds the provider from the refusal, as RFC 9728 describes."""
    async with client(keeper_of(there, openid, 'token_scopes = ["answers"]')) as http:
        place = f'resource_metadata="{RESOURCE}{METADATA}"'
        for token, status, error in (
            (None, 401, ""),
            ("a.b.c", 401, 'error="invalid_token", '),
            (openid.token(aud="other"), 401, 'error="invalid_token", '),
            (openid.token(), 403, 'error="insufficient_scope", scope="answers", '),
        ):
            refused = await http.get("/api/me", headers=bearer(token) if token else {})
            assert (refused.status_code, refused.headers["www-authenticate"]) == (status, f"Bearer {error}{place}")
        described = (await http.get(METADATA)).json()
        assert (described["resource"], described["authorization_servers"]) == (RESOURCE, [openid.url])
        assert described["scopes_supported"] == ["answers"]


async def test_an_outage_of_the_provider_is_not_a_refusal(there: Installation, openid: FakeOpenId) -> None:
    """Programs may try again, and do not request a new token."""
    openid.keys_down = True
    async with client(keeper_of(there, openid)) as http:
        response = await http.get("/api/me", headers=bearer(openid.token()))
    assert (response.status_code, "retry-after" in response.headers) == (503, True)


async def test_a_stream_ends_with_its_token(there: Installation, openid: FakeOpenId) -> None:
    """The token has just expired, which the tolerance for clocks still accepts."""
    async with client(keeper_of(there, openid)) as http:
        response = await http.get("/api/stream", headers=bearer(openid.token(exp=int(time.time()))))
        assert response.status_code == 200


async def test_a_login_ends_when_the_person_is_no_longer_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams wait for this. The identity file is asked again from time to time."""
    monkeypatch.setattr(logins, "CLOCK_CHECK_S", 0.01)
    admitted = [True, True, False]
    await asyncio.wait_for(logins.Login("dana", is_admitted=lambda: admitted.pop(0)).wait_until_over(), 30)
    assert admitted == []


async def test_a_wrong_token_is_reported_as_one() -> None:
    """A program that sends no token is not told that its token is wrong."""
    async with client(None) as http:
        wrong, without = await http.get("/api/me", headers=bearer("forged")), await http.get("/api/me")
        assert (wrong.status_code, without.status_code) == (401, 401)
        assert ("token of this request" in wrong.text, "token of this request" in without.text) == (True, False)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_pages_of_an_allowed_site_need_a_token(method: Literal["GET", "POST"]) -> None:
    """The cookies of a person who has logged in to this server do not count for another site."""
    links: list[str] = []
    async with client(None, links=links) as http:
        await http.get(links[-1])
        sent = {"Content-Type": "application/json"}
        assert (await http.request(method, "/api/me", headers=sent)).status_code == 200
        sent["Origin"] = FRONT_END
        assert (await http.request(method, "/api/me", headers=sent)).status_code == 401
        answered = await http.request(method, "/api/me", headers={**sent, **bearer(TOKEN)})
        assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (200, FRONT_END)
        assert "access-control-allow-credentials" not in answered.headers
        evil = {**sent, **bearer(TOKEN), "Origin": "https://evil.example"}
        other = await http.request(method, "/api/me", headers=evil)
        assert "access-control-allow-origin" not in other.headers
        assert (other.status_code == 403) is (method == "POST")


async def test_the_token_of_a_local_server_proves_no_identity() -> None:
    """Several people may know it, so a policy that requires verified identities refuses its answers."""
    keeper = Gatekeeper(interface="web")
    access = Access(announce=lambda _: None, token=TOKEN, person="dana", gatekeeper=keeper)
    program = access._program
    call: Any = type("Call", (), {"policy": ApprovalPolicy(approvers=("dana",), verified=True)})()
    assert keeper.identify(program) is None
    assert "verified identity" in keeper.why_not(program, call, call, "approve")
