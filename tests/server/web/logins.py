"""Log in to the web application at an identity provider."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import httpx2 as httpx

from tests.fakes.openid import FakeOpenId
from tests.paths import write_secret
from tests.server.web.sites import Browser
from tests.unit.identity.conftest import Installation, installed
from waystation.approvers import ROLES, Gatekeeper

GRANT = "".join(f'{role} = ["role:{role}s", "group:{role}s"]\n' for role in sorted(ROLES))
"""The roles of the provider that grant each role of the web application."""
ERIN, DANA = "erin@example.com", "dana@example.com"


def provider_installed(folder: Path, openid: FakeOpenId, more: str = "", **issuer: str) -> Installation:
    """Set up an installation whose gateway uses the provider for logins; `more` follows its section.

    `issuer` has settings of the same provider for the workers.
    """
    installation = installed(folder / "identity", openid, issuer)
    write_secret(installation.folder / "oidc-secret", openid.client_secret)
    section = {"issuer": openid.url, "client_id": openid.client_id, "client_secret_file": "oidc-secret"}
    with (installation.folder / "gateway.toml").open("a") as file:
        file.write("\n[oidc]\n" + "".join(f'{name} = "{value}"\n' for name, value in section.items()) + more)
    return installation


def gatekeeper(there: Installation, *, decide: bool = False) -> Gatekeeper:
    """Return the gatekeeper that the web server makes from its configuration."""
    file = there.folder / "gateway.toml"
    if decide:
        file.write_text(file.read_text().replace("decide = false", "decide = true"))
    return Gatekeeper.from_file(file, "default", interface="web")


async def logged_in(http: httpx.AsyncClient, openid: FakeOpenId, next: str = "/approvals") -> httpx.Response:
    """Log in a person at the provider, as a browser does."""
    sent = await http.get(f"/login?{urlencode({'next': next})}")
    assert sent.status_code == 303
    ended = openid.log_in(sent.headers["location"])
    return await http.get(ended)


def browser(url: str) -> httpx.AsyncClient:
    """Return a browser that is not logged in."""
    return httpx.AsyncClient(base_url=url, headers={"Accept": "text/html"}, timeout=30)


@contextlib.asynccontextmanager
async def person(url: str, openid: FakeOpenId, *roles: str, subject: str = DANA) -> AsyncIterator[Browser]:
    """Log in a person with these roles of the provider."""
    openid.subject, openid.roles = subject, roles
    async with browser(url) as http:
        assert (await logged_in(http, openid)).status_code == 303
        yield Browser(http)
