"""Logins at a provider, identities verified by the gateway, and links that open one call."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of
from tests.server.web.desk import asker, begun, payer
from tests.server.web.logins import browser, gatekeeper, logged_in, provider_installed
from tests.server.web.sites import Browser, hidden, page_of, path_of, site
from tests.unit.identity.conftest import Installation
from waystation.approvers import Gatekeeper
from waystation.approvers.identity import Configuration, Links
from waystation.core.approval import ApprovalPolicy
from waystation.core.errors import InvalidConfiguration
from waystation.web.exposure import NotSafeToServe, check_host
from waystation.web.paths import sanitize_next

POLICY = ApprovalPolicy(approvers=("role:finance",), not_requester=True)


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose gateway uses the provider for logins."""
    return provider_installed(tmp_path, openid)


def links(there: Installation) -> Links:
    """Return the signer of links that a worker uses for its messages."""
    return Links.of(Configuration.read(there.folder / "workers.toml"), namespace="default")


async def test_a_person_who_logs_in_answers_with_a_verified_identity(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The gateway signs, the workers verify, the page shows the identity, and no secret is recorded."""
    till = Till()
    agent = payer(till, {"amount": 5}, approval=POLICY)
    async with (
        serve(agent, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(client_of(env, there), "payer", token=there.provider.token("erin@example.com"))
        first = await http.get(path_of(id))
        assert f'href="/login?next={quote(path_of(id), safe="")}"' in first.text
        entered = await logged_in(http, openid, path_of(id))
        assert entered.headers["location"] == path_of(id)
        me = Browser(http)
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "approve"})
        assert "This call was approved by dana@example.com (identity verified)" in page.text
        assert "being verified" not in page.text
        await invocation.result()
        assert till.paid == [5]
        history = str(await invocation.history())
        assert [secret for secret in openid.secrets if secret in history] == []


async def test_a_call_with_an_unverified_requester_can_only_be_rejected(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The page gives the reason why it offers only a rejection."""
    agent = payer(Till(), {"amount": 5}, approval=POLICY)
    async with (
        serve(agent, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(env.client, "payer", user_id="erin@example.com")
        await logged_in(http, openid, path_of(id))
        me = Browser(http)
        page = (await me.page(path_of(id))).text
        assert "erin@example.com, the requester (not verified, so nobody can approve)" in page
        assert 'value="approve"' not in page
        await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "reject"})
        await invocation.result()


@pytest.mark.parametrize(
    ("subject", "roles", "problem", "known"),
    [
        ("erin@example.com", ("finance",), "requested call", "You are logged in as erin@example.com, role:finance."),
        (
            "dana@example.com",
            ("marketing",),
            "may not answer",
            "You are logged in as dana@example.com, role:marketing.",
        ),
        ("dana@example.com", (), "may not answer", "You are logged in as dana@example.com, without any role."),
    ],
)
async def test_an_unauthorized_person_is_offered_nothing(
    serve: Serve,
    there: Installation,
    openid: FakeOpenId,
    subject: str,
    roles: tuple[str, ...],
    problem: str,
    known: str,
) -> None:
    """The page names the identity without authorization, and the workers reject a form that is sent anyway."""
    openid.subject, openid.roles = subject, roles
    with (there.folder / "gateway.toml").open("a") as file:
        file.write('[oidc.grant]\nviewer = ["dana@example.com"]\n')
    agent = payer(Till(), {"amount": 5}, approval=POLICY)
    async with (
        serve(agent, identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(client_of(env, there), "payer", token=there.provider.token("erin@example.com"))
        await logged_in(http, openid)
        me = Browser(http)
        page = (await me.page(path_of(id))).text
        assert problem in page
        assert known in page
        assert 'value="approve"' not in page
        csrf = hidden(page)["csrf"]
        # The form of a browser with an older page, or of a forger.
        nonce = hidden(page).get("nonce", "")
        sent = await me.send(path_of(id), {"csrf": csrf, "nonce": nonce, "action": "approve"})
        assert sent.status_code in (403, 409)
        assert len(await invocation.pending()) == 1
        await invocation.handle.terminate()


async def test_a_login_is_valid_once_in_the_browser_that_began_it(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """A stolen return address, a repeated one, or a refusal of the provider logs nobody in."""
    async with (
        serve(payer(Till())) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as me,
        browser(web.url) as thief,
    ):
        ended = openid.log_in((await me.get("/login")).headers["location"])
        assert (await thief.get(ended)).status_code == 403
        assert (await me.get(ended)).status_code == 303
        assert (await me.get("/approvals")).status_code == 200
        assert (await me.get(ended)).status_code == 403
        assert (await thief.get("/login/callback?error=access_denied&state=x")).status_code == 403
        assert (await thief.get("/approvals")).status_code == 303
        assert (await thief.head("/login")).status_code == 405


async def test_a_logged_out_person_is_sent_to_the_provider(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """A form from a forgotten tab leads to the provider, too, and does nothing else; no printed link is mentioned."""
    async with (
        serve(payer(Till(), {"amount": 5})) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(env.client, "payer")
        await logged_in(http, openid)
        me = Browser(http)
        fields = await me.fields(path_of(id))
        left = await me.send("/logout", {"csrf": fields["csrf"]})
        assert 'href="/login">Log in again' in left.text
        page = await me.send(path_of(id), {**fields, "action": "approve"})
        assert page.status_code == 401
        assert "Nothing was sent: this browser is not logged in, or its login has ended." in page.text
        assert f'href="/login?next={quote(path_of(id), safe="")}"' in page.text
        assert "printed" not in left.text + page.text
        await invocation.reject()


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/approvals/a%2Ffc-1?x=1", "/approvals/a%2Ffc-1?x=1"),
        ("", "/"),
        ("https://evil.example/", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("\\\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("/\n//evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("approvals", "/"),
        ("/\u2215evil", "/"),
        ("///evil.example", "/"),
        ("/\\/evil.example", "/"),
        ("/\r\nLocation: https://evil.example", "/"),
        ("https:evil.example", "/"),
        ("@evil.example", "/"),
        (" //evil.example", "/"),
        ("/@evil.example", "/@evil.example"),
        ("/x?next=//evil.example", "/x?next=//evil.example"),
    ],
)
def test_a_login_redirects_only_to_pages_of_this_server(target: str, path: str) -> None:
    """A login cannot redirect to another site."""
    assert sanitize_next(target) == path


async def test_a_login_that_starts_with_a_foreign_page_ends_on_this_server(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """A parameter of the login page chooses neither the address of the response nor the page that follows."""
    async with serve(asker()) as env, site(env.client, gatekeeper=gatekeeper(there)) as web, browser(web.url) as http:
        attack = {"next": "//evil.example", "redirect_uri": "https://evil.example/", "state": "chosen"}
        sent = await http.get(f"/login?{urlencode(attack)}")
        params = parse_qs(urlsplit(sent.headers["location"]).query)
        assert params["redirect_uri"] == [f"{web.url}/login/callback"]
        assert params["state"] != ["chosen"]
        ended = await http.get(openid.log_in(sent.headers["location"]))
        assert (ended.status_code, ended.headers["location"]) == (303, "/")
        spoofed = await http.get("/login", headers={"Host": "evil.example"})
        assert spoofed.status_code == 400
        link = await http.post(
            "/link",
            content=urlencode({"link": "x", "place": "//evil.example/"}),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert (link.status_code, "evil.example" in link.text) == (403, False)


async def open_link(http: httpx.AsyncClient, token: str, **headers: str) -> httpx.Response:
    """Open a link to a call and post its token, as the script of the page does."""
    sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    return await http.post("/link", content=urlencode({"link": token}), headers=sent, follow_redirects=True)


async def test_a_link_shows_one_call_and_decides_nothing(serve: Serve, there: Installation) -> None:
    """A link opens only its call, without forms, and opening it changes nothing."""
    agent = payer(Till(), {"amount": 5, "to": "acme"}, {"amount": 6})
    async with (
        serve(agent, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(env.client, "payer")
        other = id.replace("fc-1", "fc-2")
        token = links(there).sign(id, "dana@example.com")
        before = len((await invocation.history()).events)
        landed = await http.get(path_of(id))
        assert (landed.status_code, "requests approval of" in landed.text) == (401, False)
        for wrong in (f"{token[:-4]}AAAA", "x", "", "\x00", links(there).sign(id, lifetime=timedelta(seconds=-1))):
            assert (await open_link(http, wrong)).status_code == 403
        assert (await open_link(http, token, Origin="https://evil.example")).status_code == 403
        assert (await http.get(f"/link?link={token}")).status_code == 405
        for _ in range(2):
            page = (await open_link(http, token)).text
            assert "payer requests approval of pay" in page
            assert "This link only shows the call. Log in to answer." in page
            assert "<form" not in page
            assert (await http.head(path_of(id))).status_code == 200
        assert len((await invocation.history()).events) == before
        for path in (path_of(other), f"{path_of(id)}/edit", f"{path_of(id)}/arguments.json"):
            assert (await http.get(path)).status_code == 401
        for path in ("/", "/approvals", f"{page_of(invocation)}/timeline"):
            assert (await http.get(path)).headers["location"].startswith("/login?next=")
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await http.post(path_of(id), content="action=approve", headers=kind)).status_code == 403
        assert (await http.post(path_of(other), content="action=approve", headers=kind)).status_code == 401
        await invocation.reject("fc-1")
        await invocation.reject("fc-2")


async def test_an_expired_link_still_leads_to_its_call_after_a_login(serve: Serve, there: Installation) -> None:
    """After the login, an expired link leads to its call; no form can name another page."""
    async with (
        serve(payer(Till(), {"amount": 5})) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(env.client, "payer")
        landed = hidden((await http.get(path_of(id))).text)
        expired = links(there).sign(id, lifetime=timedelta(seconds=-1))
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        late = await http.post("/link", content=urlencode({**landed, "link": expired}), headers=kind)
        assert late.status_code == 403
        assert "The link has expired" in late.text
        assert f'href="/login?next={quote(path_of(id), safe="")}"' in late.text
        forged = {"place": "https://evil.example/", "link": expired}
        assert "evil" not in (await http.post("/link", content=urlencode(forged), headers=kind)).text
        await invocation.reject()


async def test_a_deciding_link_counts_once_and_needs_a_form(serve: Serve, there: Installation) -> None:
    """The configuration can let the recipient of a link answer; a link without recipient only shows the call."""
    till = Till()
    agent = payer(till, {"amount": 5}, approval=ApprovalPolicy(approvers=("dana@example.com",)))
    async with (
        serve(agent, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there, decide=True)) as web,
        browser(web.url) as http,
        browser(web.url) as elsewhere,
    ):
        invocation, id = await begun(env.client, "payer")
        signer = links(there)
        for who in (None, "erin@example.com"):
            assert 'value="approve"' not in (await open_link(http, signer.sign(id, who))).text
        mine = signer.sign(id, "dana@example.com")
        fields, late = hidden((await open_link(http, mine)).text), hidden((await open_link(elsewhere, mine)).text)
        me, other_browser = Browser(http), Browser(elsewhere)
        crossed = await me.send(
            path_of(id), {**fields, "action": "approve"}, headers={"Origin": "https://evil.example"}
        )
        assert crossed.status_code == 403
        page = await me.send(path_of(id), {**fields, "action": "approve"})
        assert "This call was approved by dana@example.com (identity verified)" in page.text
        for one, form in ((me, fields), (other_browser, late)):
            assert (await one.send(path_of(id), {**form, "action": "reject"})).status_code == 409
        await invocation.result()
        assert till.paid == [5]


async def test_a_link_names_the_person_in_whose_name_it_answers(serve: Serve, there: Installation) -> None:
    """Mails are forwarded, so the page shows the name."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(approvers=("dana@example.com",)))
    async with (
        serve(agent, identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there, decide=True)) as web,
        browser(web.url) as http,
    ):
        invocation, id = await begun(env.client, "payer")
        page = await open_link(http, links(there).sign(id, "dana@example.com"))
        assert "You answer as dana@example.com, the recipient of this link." in page.text
        await invocation.handle.terminate()


async def test_without_a_provider_the_login_page_mentions_the_printed_link(serve: Serve) -> None:
    """A login page reached from a link to a call points to the server's terminal."""
    async with serve(payer(Till())) as env, site(env.client) as web, browser(web.url) as http:
        page = await http.get("/login?next=%2Fapprovals")
        assert page.status_code == 403
        assert "To log in, open the newest link" in page.text


async def test_links_to_two_calls_work_side_by_side(serve: Serve, there: Installation) -> None:
    """Both calls can be answered."""
    till = Till()
    agent = payer(till, {"amount": 5}, {"amount": 6}, approval=ApprovalPolicy(approvers=("dana@example.com",)))
    async with (
        serve(agent, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there, decide=True)) as web,
        browser(web.url) as http,
    ):
        invocation, first = await begun(env.client, "payer")
        pages = [first, first.replace("fc-1", "fc-2")]
        signer, me = links(there), Browser(http)
        forms = [hidden((await open_link(http, signer.sign(id, "dana@example.com"))).text) for id in pages]
        for id, fields in zip(pages, forms, strict=True):
            page = await me.send(path_of(id), {**fields, "action": "approve"})
            assert "This call was approved by dana@example.com (identity verified)" in page.text
        await invocation.result()
        assert sorted(till.paid) == [5, 6]


async def test_a_quorum_needs_different_people(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The page shows who has approved so far, and the same person counts once."""
    till = Till()
    agent = payer(till, {"amount": 5}, approval=ApprovalPolicy(approvers=("role:finance",), quorum=2))
    async with (
        serve(agent, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        browser(web.url) as first,
        browser(web.url) as second,
    ):
        invocation, id = await begun(env.client, "payer", user_id="erin@example.com")
        await logged_in(first, openid)
        openid.subject = "finn@example.com"
        await logged_in(second, openid)
        me, they = Browser(first), Browser(second)
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "approve"})
        assert "Your approval was accepted. More people have to approve." in page.text
        assert "so far dana@example.com" in page.text
        assert 'value="approve"' not in page.text  # a second approval would not count
        assert 'value="reject"' in page.text
        page = await me.send(path_of(id), {**await me.fields(path_of(id)), "action": "approve"})
        assert page.status_code == 409
        assert "has already approved call &#39;fc-1&#39;. It needs 1 more approval from other people." in page.text
        assert till.paid == []
        page = await they.send(path_of(id), {**await they.fields(path_of(id)), "action": "approve"})
        assert "This call was approved by finn@example.com (identity verified)" in page.text
        await invocation.result()
        assert till.paid == [5]


def test_logins_at_a_provider_need_a_verifying_gateway(there: Installation) -> None:
    """With a gateway the server may listen on other addresses without a token for programs."""
    file = there.folder / "gateway.toml"
    check_host("0.0.0.0", names=["inbox.example"], provider=True)
    with pytest.raises(NotSafeToServe):
        check_host("0.0.0.0", names=[], provider=True)
    lines: list[Any] = file.read_text().split("[envelope]")
    file.write_text("[envelope]" + lines[1])
    with pytest.raises(InvalidConfiguration, match="gateway"):
        Gatekeeper.from_file(file, "default", interface="web")
