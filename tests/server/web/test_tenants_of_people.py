"""With a claim for tenants, people see only the tenant that their login names."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, payer
from tests.server.web.desk import begun
from tests.server.web.sites import Browser, path_of, site
from tests.server.web.test_roles import ERIN, EXPECTED, ask, person
from tests.server.web.test_sign_in import gatekeeper, provider_installed
from tests.server.workflows.outside import until
from tests.unit.identity.conftest import Installation
from waystation.core import NotAllowed
from waystation.web.permissions import ROLES

EVERYTHING = tuple(f"{role}s" for role in sorted(ROLES))
"""The provider's roles that grant every role of the web application."""
TENANTS = "acme", "globex", None


@pytest.fixture
def openid() -> Iterator[FakeOpenId]:
    """An identity provider."""
    with FakeOpenId() as provider:
        yield provider


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """An installation whose provider names the tenant of a person in the claim `org`."""
    grant = "".join(f'{role} = ["role:{role}s"]\n' for role in sorted(ROLES))
    return provider_installed(tmp_path, openid, f'tenant_claim = "org"\n[oidc.grant]\n{grant}', tenant_claim="org")


@contextlib.asynccontextmanager
async def member(url: str, openid: FakeOpenId, tenant: str | None, *roles: str) -> AsyncIterator[Browser]:
    """Log a person of a tenant in."""
    openid.claims = {"org": tenant}
    async with person(url, openid, *roles) as me:
        yield me


async def test_people_see_only_their_own_tenant(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Even with every role, on every page; without a tenant in their login, they see what has none."""
    async with (
        serve(payer(), identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
    ):
        begun_in = {t: await begun(env.client, "payer", user_id=ERIN, tenant=t) for t in TENANTS}

        async def listed() -> bool:
            calls = [call.approval_id async for call in env.client.approvals.each(user_id=ERIN)]
            return {call for _, call in begun_in.values()} <= set(calls)

        await until(listed, "the calls")
        for tenant in TENANTS:
            async with member(web.url, openid, tenant, "finance", *EVERYTHING) as me:
                csrf = (await me.fields("/approvals"))["csrf"]
                selected = urlencode({"call": [call for _, call in begun_in.values()]}, doseq=True)
                for other, (invocation, call) in begun_in.items():
                    is_own = other == tenant
                    for page in ("/", "/approvals", "/approvals/rows", f"/approvals/several?{selected}"):
                        assert (invocation.id in (await me.page(page)).text) is is_own, (tenant, other, page)
                    for method, path in EXPECTED:
                        # The name of a session belongs to the person's own tenant.
                        if "{id}" not in path or "sessions" in path or is_own:
                            continue
                        exact = path.replace("{id}", quote(call if "approvals" in path else invocation.id, safe=""))
                        assert await ask(me.http, method, exact, csrf) == "N", (tenant, other, method, path)
                assert (await me.page(path_of(begun_in[tenant][1]))).status_code == 200
        for invocation, _ in begun_in.values():
            await invocation.handle.terminate()


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

        async def shown() -> bool:
            return invocation.id in (await own.page("/")).text

        await until(shown, "the invocation")
        assert invocation.id not in (await other.page("/")).text
        assert [(await me.page(path_of(call))).status_code for me in (own, other)] == [200, 404]
        await invocation.handle.terminate()


async def test_a_token_of_another_tenant_decides_nothing(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Workers check the tenant of a token that a person sends without the web server, although the role would do."""
    async with serve(payer(), identity=there.worker) as env:
        invocation, _ = await begun(env.client, "payer", tenant="acme")
        answered = client_of(env, there).invocation(invocation.id)
        for claims in ({"org": "globex"}, {}, {"org": ["acme"]}):
            with pytest.raises(NotAllowed, match=r"tenant|org"):
                await answered.approve(token=openid.token("dana", roles=["finance"], **claims))
        await answered.approve(token=openid.token("dana", roles=["finance"], org="acme"))
        assert (await invocation.result()).text == "They said {'result': 'paid'}."
