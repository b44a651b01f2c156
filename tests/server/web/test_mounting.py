"""The web application below a path of FastAPI, Starlette and Django, with the host's login."""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote, urlsplit

import httpx2 as httpx
import pytest
from playwright.async_api import Browser as Chromium

import waystation.web
from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.browsers import opened
from tests.server.web.desk import begun, payer
from tests.server.web.mounts import HOSTS, PEOPLE, ROOT, mounted
from tests.server.web.sites import Browser, Site, hidden, path_of
from waystation.approvers import Gatekeeper
from waystation.core.approval import Verified
from waystation.testing import People
from waystation.web import HostPerson, WebSettings, create_app
from waystation.web.access import Access
from waystation.web.exposure import NotSafeToServe

LINKS = re.compile(r'\b(?:href|src|action|formaction|data-(?:path|here|base|events))="([^"]*)"')
SENT = re.compile(r"/(viewed|edit|close|stop|retry|give-up|several|events)(\?|$)")
"""Where forms are sent, and streams, which do not end."""


def browser(web: Site, cookie: str = "dana") -> httpx.AsyncClient:
    """Return a browser with the host's cookie."""
    origin, headers = web.url.removesuffix(ROOT), {"Accept": "text/html"}
    return httpx.AsyncClient(base_url=origin, headers=headers, timeout=30, cookies={"host": cookie})


async def crawl(http: httpx.AsyncClient, *first: str) -> Mapping[str, str]:
    """Open pages that links lead to, and return the responses by path. Each link must stay below the mount.

    The first paths come before those of other tests, which use the same server.
    """
    pages: dict[str, str] = {}
    rest = [*first, f"{ROOT}/"]
    while rest:
        path = rest.pop(0)
        if path.partition("?")[0] in {page.partition("?")[0] for page in pages} or len(pages) > 60:
            continue
        answer = await http.get(path)
        assert answer.status_code < 400, (path, answer.status_code, answer.text)
        assert answer.headers.get("location", f"{ROOT}/").startswith(f"{ROOT}/"), path
        pages[path] = answer.text
        rest += [answer.headers["location"]] if "location" in answer.headers else []
        for link in map(html.unescape, LINKS.findall(answer.text)):
            assert link.startswith(f"{ROOT}/") or not link.startswith(("/", "http")), f"{path} links to {link}"
            rest += [link.partition("#")[0]] if link.startswith("/") and not SENT.search(link) else []
    return pages


@pytest.mark.parametrize("host", HOSTS)
async def test_all_links_stay_below_the_mount(serve: Serve, host: str) -> None:
    """A crawl finds the pages of a call, a chat and an invocation, and the static files; no link leaves the mount."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, mounted(env.client, host) as web:
        invocation, approval_id = await begun(env.client, "payer")
        session = env.client.session(agent="payer", session_id=f"on-{host}", user_id="dana")
        await session.send("Hello")
        call_page, chat_page = f"{ROOT}{path_of(approval_id)}", f"{ROOT}/sessions/{quote(session.id, safe='')}"
        async with browser(web) as http:
            pages = await crawl(http, call_page, chat_page, f"{ROOT}/invocations/{quote(invocation.id, safe='')}")
            document = (await http.get(f"{ROOT}/api/v1/openapi.json")).json()
            call = await http.get(call_page)
    assert {call_page, chat_page, f"{ROOT}/static/style.css", f"{ROOT}/static/call.js"} <= set(pages)
    assert any(path.endswith("/timeline") for path in pages)
    assert document["servers"] == [{"url": ROOT}]
    assert "Approve" in call.text


def test_no_template_style_or_script_has_a_link_outside_the_mount() -> None:
    """Links in templates begin with `root()`, and scripts and styles take paths from the page or relative ones."""
    package = Path(waystation.web.__file__).parent
    files = [
        *package.glob("templates/*.html"),
        *package.glob("static/*"),
        *package.parent.glob("presentation/static/*"),
    ]
    absolute = re.compile(r'="/|url\(/|(fetch|EventSource|assign|replace)\([`"\']/|\? [`"]/[a-z]')
    found = [
        f"{file.name}: {line}" for file in files for line in file.read_text().splitlines() if absolute.search(line)
    ]
    assert not found


async def test_a_person_chats_and_answers_below_the_mount(serve: Serve, chromium: Chromium) -> None:
    """A real browser starts a chat, sees the stream, answers in the inbox, which refreshes, and sees the reply."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, mounted(env.client) as web:
        cookie = {"name": "host", "value": "dana", "domain": "127.0.0.1", "path": "/", "expires": -1}
        state = {"cookies": [cookie | {"httpOnly": True, "secure": False, "sameSite": "Lax"}], "origins": []}
        web.links[-1] = f"{web.url}/agents"
        async with opened(chromium, web, storage_state=state) as (page, complaints):
            await page.get_by_role("link", name="Start payer").click()
            await page.fill("#message", "Please pay.")
            await page.get_by_role("button", name="Start a chat").click()
            await page.get_by_role("link", name="More answers").wait_for()
            chat = page.url
            await page.goto(f"{web.url}/approvals")
            session = urlsplit(chat).path.rpartition("/")[2]
            await page.locator(f'a.call-link[href*="{session}"]').click()
            await page.get_by_role("button", name="Approve", exact=True).click()
            await page.get_by_text("approved").first.wait_for()
            answered = page.url
            await page.goto(chat)
            await page.locator(".bubble.agent").get_by_text("Done.").wait_for()
    assert (urlsplit(chat).path.startswith(f"{ROOT}/sessions/"), till.paid) == (True, [5])
    assert urlsplit(answered).path.startswith(f"{ROOT}/approvals/")
    assert not complaints


async def test_a_form_needs_the_token_of_the_person_and_the_own_origin(serve: Serve) -> None:
    """The host's cookie alone sends nothing: not from another site, without the token, or with another person's."""
    till = Till()
    async with serve(payer(till, {"amount": 5}), verify=False) as env, mounted(env.client) as web:
        _, approval_id = await begun(env.client, "payer")
        path = f"{ROOT}{path_of(approval_id)}"
        async with browser(web) as http, browser(web, "name-only") as other:
            form = hidden((await http.get(path)).text) | {"action": "approve"}
            foreign = hidden((await other.get(path)).text)
            me = Browser(http)
            elsewhere = {"Origin": "https://evil.example"}
            refused = [
                (await me.send(path, form, headers=elsewhere)).status_code,
                (await me.send(path, form | {"csrf": ""})).status_code,
                (await me.send(path, form | {"csrf": foreign["csrf"]})).status_code,
                (await http.post(f"{ROOT}/api/v1/invocations", json={"agent": "payer", "message": "x"})).status_code,
            ]
            assert (refused, till.paid) == ([403, 403, 403, 403], [])
            assert "approved" in (await me.send(path, form)).text.lower()


async def test_who_has_left_the_host_is_a_stranger(serve: Serve) -> None:
    """Strangers are sent to the host's login, with the page to return to. There is no other way to log in or out."""
    options = {"login_url": "/login?from=desk", "logout_url": "/logout"}
    async with (
        serve(payer(Till()), verify=False) as env,
        mounted(env.client, **options) as web,
        browser(web) as http,
    ):
        page = (await http.get(f"{ROOT}/approvals")).text
        http.cookies.clear()
        left = await http.get(f"{ROOT}/approvals?q=x")
        api = await http.get(f"{ROOT}/api/v1/calls", headers={"Accept": "application/json"})
    assert '<a class="button quiet" href="/logout">Log out</a>' in page
    assert left.headers["location"] == f"/login?from=desk&next={quote(f'{ROOT}/approvals?q=x', safe='')}"
    assert (api.status_code, api.headers["www-authenticate"]) == (401, "Bearer")
    assert not any(row.path in ("/login", "/logout") for row in web.table)


async def test_people_of_the_host_see_only_their_own_invocations(serve: Serve) -> None:
    """Without roles, a person that the host has verified sees an invocation of this person, and none of others."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, mounted(env.client) as web:
        invocation, _ = await begun(env.client, "payer", user_id="ivan")
        async with browser(web, "ivan") as ivan, browser(web, "erin") as erin:
            path = f"{ROOT}/invocations/{quote(invocation.id, safe='')}"
            assert [(await http.get(path)).status_code for http in (ivan, erin)] == [200, 404]


def make_access(person: HostPerson, gatekeeper: Gatekeeper) -> Access:
    """Return the logins of an application whose host has logged in a person."""
    return Access(announce=lambda _: None, gatekeeper=gatekeeper, find_person=lambda _: person)


SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}


async def test_the_gateway_signs_only_for_people_whom_the_host_has_verified() -> None:
    """A name that the host did not prove is recorded as a name, also if there is a gateway key."""
    gatekeeper = People()("dana").gatekeeper
    verified = await make_access(PEOPLE["dana"], gatekeeper).find_login(SCOPE)
    named = await make_access(HostPerson("dana"), gatekeeper).find_login(SCOPE)
    assert verified is not None
    assert named is not None
    assert gatekeeper.identify(verified) == Verified(subject="dana")
    assert gatekeeper.identify(named) is None


async def test_requests_of_a_person_share_forms_but_ask_the_host_each_time() -> None:
    """Each request has the roles that the host gives then, and a stream of it ends soon, so that the host is asked."""
    roles = [frozenset({"viewer"}), frozenset[str]()]
    access = Access(
        announce=lambda _: None,
        find_person=lambda _: HostPerson("Dana", Verified(subject="dana"), roles=roles.pop(0)),
    )
    first, second = await access.find_login(SCOPE), await access.find_login(SCOPE)
    assert first is not None
    assert second is not None
    assert [first.roles, second.roles] == [frozenset({"viewer"}), frozenset()]
    assert first.csrf == second.csrf
    assert second.find_form(first.offer_form("call"), "call") is not None
    assert second.until < float("inf")


def test_an_application_in_which_nobody_could_log_in_is_refused() -> None:
    """Without the host's login or a provider, the settings are refused, and name both."""
    with pytest.raises(NotSafeToServe, match="find_person"):
        create_app(Mock(), WebSettings())
