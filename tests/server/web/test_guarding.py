"""Access control, limits on forms, and headers."""

import asyncio
import contextlib
import re
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import asker, begun, payer
from tests.server.web.sites import Browser, page_of, path_of, site
from tests.steps import reject_and_finish
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.web.http_responses import RequestRefused
from waystation.web.limits import Limits, RequestRate
from waystation.web.logins import MAX_FORMS, Login, make_login_cache

FORM = "application/x-www-form-urlencoded"
XSS = (
    "<script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</code></pre></title></style><script>alert(1)</script>",
    "<!--<script>-->",
    "javascript:alert(1)",
    "{{ 1234 * 4321 }}{% include 'page.html' %}",
    "<a href=javascript:alert(1)>x</a>",
    '" autofocus onfocus=alert(1) x="',
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<base href=//evil.example>",
    "<form action=//evil.example><button>",
    "\u202e<script\x00>\u200balert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
)


def markup_of(page: str) -> list[str]:
    """Return the tags of a page as a browser parses them."""
    return re.findall(r"<[a-zA-Z!/][^>]*>", page)


async def visit_all_pages(me: Browser, id: str) -> None:
    """Open every page, as people, link previews and scanners do."""
    path = path_of(id)
    pages = ("/invocations", "/approvals", "/approvals/rows", f"/approvals/several?{urlencode({'call': id})}", path)
    for page in (*pages, f"{path}/edit", f"{path}/arguments.json", f"{path}?action=approve&digest=x&nonce=y"):
        assert (await me.http.get(page)).status_code == 200, page
        assert (await me.http.head(page)).status_code == 200, page


async def test_opening_a_page_changes_nothing(serve: Serve) -> None:
    """GET and HEAD requests of every page add nothing to the history."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        before = len((await invocation.history()).events)
        await visit_all_pages(me, id)
        assert len((await invocation.history()).events) == before
        await invocation.reject()


async def test_a_cross_origin_text_post_is_refused(serve: Serve) -> None:
    """A cross-origin text post, which would approve a call at an unprotected HTTP API, does nothing here."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = urlencode({**await me.fields(path_of(id)), "action": "approve"})
        async with httpx.AsyncClient(base_url=web.url) as stranger:
            for http in (me.http, stranger):
                for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
                    headers = {"Content-Type": kind, "Origin": "https://evil.example"}
                    assert (await http.post(path_of(id), content=fields, headers=headers)).status_code == 403
                    assert (
                        await http.post(path_of(id), content=fields, headers={"Content-Type": kind})
                    ).status_code == 415
        assert len(await invocation.pending()) == 1
        await reject_and_finish(invocation)
        assert till.paid == []


FORGED: list[tuple[dict[str, str], dict[str, str], int]] = [
    ({"Origin": "https://evil.example"}, {}, 403),
    ({"Origin": "null"}, {}, 403),
    ({"Origin": "http://["}, {}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, {}, 403),
    ({"Sec-Fetch-Site": "same-site"}, {}, 403),
    ({"Sec-Fetch-Site": "none"}, {}, 403),
    ({}, {"csrf": ""}, 403),
    ({}, {"csrf": "x" * 43}, 403),
    ({}, {"csrf": "é"}, 403),
    ({}, {"nonce": "x" * 24}, 409),
    ({}, {"nonce": ""}, 409),
]
"""Headers and changes to a good form, and the status with which it is refused."""


async def test_a_forged_form_is_refused(serve: Serve) -> None:
    """A form from another site or without the token of the login is refused."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        for headers, changes, status in FORGED:
            form = {**await me.fields(path_of(id)), "action": "approve", **changes}
            assert (await me.send(path_of(id), form, headers=headers)).status_code == status, (headers, changes)
            assert len(await invocation.pending()) == 1
        await invocation.reject()


async def test_a_form_is_valid_for_one_login_and_one_call(serve: Serve) -> None:
    """The form of another person or call, or of a program's token, does not answer a call."""
    agent = payer(Till(), {"amount": 5}, {"amount": 6})
    async with (
        serve(agent) as env,
        site(env.client) as web,
        web.browser() as me,
        web.browser() as they,
        web.program() as program,
    ):
        invocation, id = await begun(env.client, "payer")
        other = id.replace("fc-1", "fc-2")
        mine, theirs = await me.fields(path_of(id)), await they.fields(path_of(id))
        assert (await me.send(path_of(id), {**theirs, "action": "approve"})).status_code == 403
        assert (await me.send(path_of(id), {**theirs, "csrf": mine["csrf"], "action": "approve"})).status_code == 409
        assert (await me.send(path_of(other), {**mine, "action": "approve"})).status_code == 409
        sent = await program.post(
            path_of(id), content=urlencode({**mine, "action": "approve"}), headers={"Content-Type": FORM}
        )
        assert sent.status_code == 403
        assert len(await invocation.pending()) == 2
        await invocation.reject("fc-1")
        await invocation.reject("fc-2")


async def test_strangers_see_no_page_and_send_no_form(serve: Serve) -> None:
    """Without a login only the login pages are available."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = urlencode({**await me.fields(path_of(id)), "action": "approve"})
        async with httpx.AsyncClient(base_url=web.url) as stranger:
            for path in (
                "/approvals",
                "/approvals/rows",
                "/approvals/several?call=x",
                path_of(id),
                f"{path_of(id)}/edit",
            ):
                refused = await stranger.get(path)
                assert refused.status_code == 401
                assert invocation.id not in refused.text
            for path in (path_of(id), f"{path_of(id)}/edit", "/approvals/several", "/logout"):
                sent = await stranger.post(path, content=fields, headers={"Content-Type": FORM})
                assert sent.status_code == 401
        assert len(await invocation.pending()) == 1
        await invocation.reject()


async def test_a_person_who_logs_out_is_logged_out(serve: Serve) -> None:
    """Logging out takes a form, so that no image can do it, and leaves other browsers logged in."""
    async with serve(payer(Till())) as env, site(env.client) as web, web.browser() as me, web.browser() as they:
        cookies = dict(me.http.cookies)
        fields = await me.fields("/approvals")
        assert (await me.http.get("/logout")).status_code == 405
        assert (await me.send("/logout", {})).status_code == 403
        assert "Logged out" in (await me.send("/logout", fields)).text
        async with httpx.AsyncClient(base_url=web.url, cookies=cookies) as second_browser:
            assert (await second_browser.get("/approvals")).status_code == 401
        assert (await they.page("/approvals")).status_code == 200


async def test_event_streams_end_when_the_person_logs_out(serve: Serve) -> None:
    """The streams of the inbox, of a call and of an invocation are open pages, and show nothing after a logout."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        fields = await me.fields("/approvals")
        async with contextlib.AsyncExitStack() as streams, asyncio.timeout(30):
            paths = ["/approvals/events", f"{path_of(id)}/events", f"{page_of(invocation)}/events"]
            opened = [await streams.enter_async_context(me.http.stream("GET", path)) for path in paths]
            assert [response.status_code for response in opened] == [200, 200, 200]
            await me.send("/logout", fields)
            read = [[line async for line in response.aiter_lines()] for response in opened]
        assert not any("event: end" in lines for lines in read)
        await invocation.reject()


async def test_a_login_ends_when_it_expires_or_is_displaced() -> None:
    """A login is over when it expires or is displaced, and streams that wait for its end continue."""
    await asyncio.wait_for(Login("dana", until=time.time() + 0.01).wait_until_over(), 30)
    logins, displaced = make_login_cache(1), Login("dana")
    logins["a"] = displaced
    logins["b"] = Login("erin")
    await asyncio.wait_for(displaced.wait_until_over(), 30)
    assert not logins["b"].over.is_set()


async def test_an_unknown_host_name_is_refused_with_the_remedy(serve: Serve) -> None:
    """The response names the setting to change, and nothing else."""
    async with serve(payer(Till())) as env, site(env.client, names=["inbox.example"]) as web, web.browser() as me:
        refused = await me.http.get("/approvals", headers={"Host": "evil.example"})
        assert refused.status_code == 400
        assert "not known as 'evil.example'" in refused.text
        assert "--allow-host NAME" in refused.text
        assert refused.headers["content-type"].startswith("text/plain")
        assert refused.headers["cache-control"] == "no-store"
        assert (await me.http.get("/approvals", headers={"Host": "inbox.example:8443"})).status_code == 200


async def test_a_proxy_that_changes_the_host_name_is_refused_with_the_remedy(serve: Serve) -> None:
    """With `--url`, the message does not suggest `--url` again."""
    url = "https://inbox.example:8443"
    async with (
        serve(payer(Till())) as env,
        site(env.client, names=["inbox.example"], url=url) as web,
        web.browser() as me,
    ):
        refused = await me.http.get("/approvals", headers={"Host": "upstream"})
        assert refused.status_code == 400
        assert f"forward the browser's `Host` header, for {url}" in refused.text


async def test_a_form_counts_if_a_proxy_omits_the_port(serve: Serve) -> None:
    """With `--url` the port may be missing, while another port of the host is still another site."""
    async with (
        serve(payer(Till(), {"amount": 5})) as env,
        site(env.client, names=["inbox.example"], url="https://inbox.example:8443") as web,
        web.browser() as me,
    ):
        _, id = await begun(env.client, "payer")
        fields = {**await me.fields(path_of(id)), "action": "reject"}
        for origin, status in (("https://inbox.example:9", 403), ("https://inbox.example:8443", 200)):
            sent = await me.send(path_of(id), fields, headers={"Host": "inbox.example", "Origin": origin})
            assert (origin, sent.status_code) == (origin, status)


async def test_a_refused_request_is_read_to_its_end(serve: Serve) -> None:
    """A refused request is read to its end, because a proxy would treat an aborted one as a broken server."""
    size = 3_000_000
    async with serve(payer(Till())) as env, site(env.client) as web, web.browser() as me:
        place = urlsplit(web.url)
        for path, host in (("/approvals/x", place.netloc), ("/approvals/x", "evil.example"), ("/login", place.netloc)):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {FORM}\r\nContent-Length: {size}\r\n\r\n"
            writer.write(head.encode() + b"a" * (size // 2))
            await writer.drain()
            answer = asyncio.create_task(reader.readline())
            await me.page("/approvals")
            assert not answer.done(), path
            writer.write(b"a" * (size // 2))
            await writer.drain()
            assert (await answer).split()[1][:1] == b"4"
            writer.close()


async def test_no_text_becomes_markup(serve: Serve) -> None:
    """Arguments, hints, questions, comments and names are never markup, and pages have no inline code."""

    hostile = " ".join(XSS)

    def pay(note: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"paid": note}

    args = {"note": hostile, "more": {each: [each] for each in XSS}}
    model = ScriptedModel(calls(("pay", args), text=hostile), says(hostile))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env, site(env.client, person=hostile[:200]) as web, web.browser() as me:
        started = {"user_id": hostile[:200], "session_id": hostile[-200:]}
        invocation, id = await begun(env.client, "payer", **started)
        pages = [await me.page(path) for path in ("/approvals", path_of(id), f"{path_of(id)}/edit")]
        pages.append(await me.page(f"/approvals/several?{urlencode({'call': id})}"))
        csrf = (await me.fields(path_of(id)))["csrf"]
        pages.append(
            await me.send(f"{path_of(id)}/edit", {"csrf": csrf, "json": f'{{"note": "x", "{len(hostile)}": 1}}'})
        )
        form = {**await me.fields(path_of(id)), "action": "reject", "comment": hostile}
        pages.append(await me.send(path_of(id), form))
        pages.append(await me.page(f"/approvals/{hostile.encode().hex()}%2F%3Cscript%3E"))
        for page in pages:
            tags = markup_of(page.text)
            assert [
                tag
                for tag in tags
                if re.search(r"\son\w+\s*=|\sstyle=|javascript:|evil", re.sub(r'"[^"]*"', '""', tag))
            ] == []
            names = {re.split(r"[\s>/]", tag.lstrip("</!"))[0].lower() for tag in tags}
            assert names & {"img", "svg", "iframe", "base"} == set()
            assert [tag for tag in tags if tag.startswith("<script")] == [
                tag for tag in tags if re.fullmatch(r'<script src="/static/\w+\.js" defer>', tag)
            ]
            assert "5332114" not in page.text
            assert not set(page.text) & {"\u202e", "\u200b", "\x00"}
        await invocation.result()


async def test_forms_are_bounded(serve: Serve) -> None:
    """Forms that are too large, have too many fields or the wrong content type are refused."""
    limits = Limits(body_bytes=10_000)
    async with serve(asker("?")) as env, site(env.client, limits=limits) as web, web.browser() as me:
        invocation, id = await begun(env.client, "asker")

        async def chunks() -> Any:
            for _ in range(20):
                yield b"a" * 1_000

        bodies: list[tuple[Any, int]] = [
            (b"a" * 10_001, 413),
            (chunks(), 413),
            ("&".join(f"a{number}=" for number in range(1_500)).encode(), 403),
            (b"&".join([b"="] * 2_001), 400),
            (b"\xff\xfe", 400),
            (b"no pairs", 400),
            (b"", 403),
        ]
        for body, status in bodies:
            sent = await me.http.post(path_of(id), content=body, headers={"Content-Type": FORM})
            assert sent.status_code == status
        assert len(await invocation.pending()) == 1
        await invocation.reject()


async def test_too_many_attempts_have_to_wait(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many logins or forms are refused with the time to wait."""
    # On a busy machine, the buckets would refill faster than attempts arrive.
    monkeypatch.setitem(RequestRate.__init__.__kwdefaults__ or {}, "clock", lambda: 0.0)
    async with serve(payer(Till())) as env, site(env.client) as web, web.browser() as me:
        form = await me.fields("/approvals")
        sent = await asyncio.gather(*(me.send("/approvals/several", {**form, "csrf": "x"}) for _ in range(125)))
        assert {page.status_code for page in sent} == {403, 429}
        assert next(page.headers["retry-after"] for page in sent if page.status_code == 429) == "1"
        assert (await me.page("/approvals")).status_code == 200
        guesses = await asyncio.gather(*(me.http.get("/login?token=guess") for _ in range(40)))
        assert {page.status_code for page in guesses} == {403, 429}


def test_rate_limits_are_bounded_and_refill() -> None:
    """Each client has a bucket that refills, and the least recently used buckets are dropped."""
    now = 0.0
    rate = RequestRate(2, per_s=10, clients=100, clock=lambda: now)

    def wait(client: str) -> int:
        try:
            rate.check(client)
        except RequestRefused as refused:
            return int(refused.headers["Retry-After"])
        return 0

    assert [wait("me"), wait("me"), wait("me"), wait("they")] == [0, 0, 5, 0]
    now = 5.0
    assert [wait("me"), wait("me")] == [0, 5]
    for number in range(200):
        wait(str(number))
    assert len(rate._buckets) == 100


def test_logins_and_forms_are_bounded_and_logins_end() -> None:
    """One login or form too many drops the oldest."""
    now = 0.0
    logins = make_login_cache(2, clock=lambda: now)
    for name, until in (("a", 9.0), ("b", 5.0), ("c", 9.0)):
        logins[name] = Login(name, until=until)
    assert set(logins) == {"b", "c"}
    now = 5.0
    assert logins.get("b") is None
    login = Login("a")
    nonces = [login.offer_form("x") for _ in range(MAX_FORMS + 1)]
    assert [login.find_form(nonce, "x") is None for nonce in nonces] == [True, *[False] * MAX_FORMS]
    assert login.find_form(nonces[-1], "y") is None


async def test_a_page_keeps_nothing_in_the_browser_and_lets_nobody_frame_it(serve: Serve) -> None:
    """Inbox pages are not cached or framed, and scripts cannot read the cookies."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        for path in ("/approvals", path_of(id), f"{path_of(id)}/edit"):
            headers = (await me.page(path)).headers
            assert headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "script-src 'self';" in headers["content-security-policy"]
        await invocation.reject()
