"""With a claim for tenants, people see only the tenant that their login names."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, payer
from tests.server.web.desk import begun
from tests.server.web.logins import gatekeeper, person, provider_installed
from tests.server.web.sites import Browser, path_of, site
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.approvers import ROLES
from waystation.core.errors import NotAllowed

EVERYTHING = tuple(f"{role}s" for role in sorted(ROLES))
"""The provider's roles that grant every role of the web application."""


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose gateway uses the provider for logins."""
    return tenants_installed(tmp_path, openid)


def tenants_installed(folder: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose logins and tokens name the tenant of a person."""
    grant = "".join(f'{role} = ["role:{role}s"]\n' for role in sorted(ROLES))
    return provider_installed(folder, openid, f'tenant_claim = "org"\n[oidc.grant]\n{grant}', tenant_claim="org")


@contextlib.asynccontextmanager
async def member(url: str, openid: FakeOpenId, tenant: str | None, *roles: str) -> AsyncIterator[Browser]:
    """Log in a person of a tenant."""
    openid.claims = {"org": tenant}
    async with person(url, openid, *roles) as me:
        yield me


async def test_a_requester_of_another_tenant_does_not_see_the_invocation(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The same user ID in another tenant is another user."""
    async with (
        serve(payer(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        member(web.url, openid, "acme") as own,
        member(web.url, openid, "globex") as other,
    ):
        invocation, call = await begun(env.client, "payer", user_id=openid.subject, tenant="acme")

        async def visible() -> bool:
            return invocation.id in (await own.page("/invocations")).text

        await wait_until(visible, "the invocation")
        assert invocation.id not in (await other.page("/invocations")).text
        assert [(await me.page(path_of(call))).status_code for me in (own, other)] == [200, 404]
        await invocation.handle.terminate()


async def test_a_token_of_another_tenant_decides_nothing(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Workers check the tenant of a token that is sent without the web server, although the role would do."""
    async with serve(payer(), identity=there.worker) as env:
        invocation, _ = await begun(env.client, "payer", tenant="acme")
        answered = client_of(env, there).invocation(invocation.id)
        for claims in ({"org": "globex"}, {}, {"org": ["acme"]}):
            with pytest.raises(NotAllowed, match=r"tenant|org"):
                await answered.approve(token=openid.token("dana", roles=["finance"], **claims))
        await answered.approve(token=openid.token("dana", roles=["finance"], org="acme"))
        assert (await invocation.result()).text == "They said {'result': 'paid'}."
