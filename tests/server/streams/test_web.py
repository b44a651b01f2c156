"""`waystation web` streams to programs, shows pages to people, and shows nothing to strangers."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2 as httpx
import pytest
from temporalio.service import RPCError, RPCStatusCode

from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.server.web.sites import TOKEN, page_of, site
from tests.steps import start_and_finish
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.errors import StoreFailed
from waystation.testing import ScriptedModel, says
from waystation.web.access import Access
from waystation.web.exposure import NotSafeToServe, check_host
from waystation.web.guard import HEADERS
from waystation.web.limits import Limits

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


async def received(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a stream, each as its fields; comments are skipped."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            if "data" in fields:
                yield fields
            fields = {}


async def stream_of(program: httpx.AsyncClient, path: str, **headers: str) -> list[dict[str, str]]:
    """Return all events of a stream."""
    async with program.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        return [fields async for fields in received(response)]


async def test_a_stream_has_each_event_with_its_index_and_ends_with_the_status(serve: Serve) -> None:
    """A stream resumes after any event that a browser names, even after the end."""
    async with serve(Agent(name="speaker", model=ScriptedModel("three"))) as env, site(env.client) as web:
        invocation = await env.client.start("speaker", "one and two?")
        path = f"{page_of(invocation)}/events"
        async with web.program() as program:
            whole = await stream_of(program, path)
            recorded = [event.to_json() async for event in invocation.events()]
            assert [fields.get("id") for fields in whole] == ["0", "1", None]
            assert [json.loads(fields["data"]) for fields in whole] == [*recorded, {"status": "completed"}]
            assert whole[-1]["event"] == "end"
            for index in range(2):
                assert await stream_of(program, path, **{"Last-Event-ID": str(index)}) == whole[index + 1 :]
                assert await stream_of(program, f"{path}?start={index + 1}") == whole[index + 1 :]
            listed = (await program.get(f"{path}.json", params={"start": "1"})).json()
            assert listed["events"] == recorded[1:]
            assert (listed["next"], listed["more"], listed["status"]) == (2, False, "completed")


async def test_partial_text_comes_when_it_is_asked_for(serve: Serve) -> None:
    """Partial text comes as events named `partial` without an ID, so that no stream resumes from them."""
    model = Held("I say this.")
    async with serve(Agent(name="speaker", model=model)) as env, site(env.client) as web:
        invocation = await env.client.start("speaker", "go", streaming=True)
        async with (
            web.program() as program,
            program.stream("GET", f"{page_of(invocation)}/events?partial=1") as response,
        ):
            text, ids = "", []
            async for fields in received(response):
                if fields.get("event") == "partial":
                    assert "id" not in fields
                    content = json.loads(fields["data"]).get("content") or {"parts": []}
                    text += "".join(part["text"] for part in content["parts"])
                    model.go_on.set()
                elif "id" in fields:
                    ids.append(fields["id"])
        assert text != ""
        assert "I say this.".startswith(text)
        assert ids == ["0", "1"]


async def test_fifty_readers_see_the_same_and_leave_nothing_behind(serve: Serve) -> None:
    """Fifty readers get the same events, although half of them leave early, and leave nothing behind."""
    model = Held("I say this.")
    async with serve(Agent(name="speaker", model=model)) as env, site(env.client) as web:
        invocation = await env.client.start("speaker", "go", streaming=True)
        reading = asyncio.Semaphore(0)

        async def read(stays: bool) -> list[str]:
            async with (
                web.program() as program,
                program.stream("GET", f"{page_of(invocation)}/events?partial=1", timeout=60) as response,
            ):
                ids = []
                async for fields in received(response):
                    if "id" in fields:
                        ids.append(fields["id"])
                        reading.release()
                        if not stays:
                            return ids
                return ids

        readers = [asyncio.create_task(read(number % 2 == 0)) for number in range(50)]
        for _ in readers:
            await reading.acquire()
        model.go_on.set()
        streams = await asyncio.gather(*readers)
        assert streams == [["0", "1"], ["0"]] * 25
        async with asyncio.timeout(30):
            while web.invocations.open_streams:
                await asyncio.sleep(0.01)


async def test_too_many_streams_are_refused_and_not_queued(serve: Serve) -> None:
    """The refusal has the time after which to try again."""
    model = Held("late")
    agent = Agent(name="speaker", model=model)
    async with serve(agent) as env, site(env.client, limits=Limits(streams=0)) as web:
        invocation = await env.client.start("speaker", "go")
        async with web.program() as program:
            refused = await program.get(f"{page_of(invocation)}/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        model.go_on.set()
        await invocation.result()


MISSING: list[tuple[str, dict[str, str], int]] = [
    ("/invocations/nobody/events", {}, 404),
    ("/invocations/nobody/events.json", {}, 404),
    ("/invocations/nobody", {}, 404),
    ("/invocations/nobody/child/events", {}, 404),
    ("/invocations/%2e%2e%2fx/events", {}, 404),
    ("/invocations/%ff%00/events", {}, 404),
    ("/invocations/nobody/events", {"Last-Event-ID": "x"}, 400),
    ("/invocations/nobody/events?start=-1", {}, 400),
    ("/invocations/nobody/events?start=99999999999", {}, 400),
    ("/invocations/nobody/rows?start=x", {}, 400),
    (f"/invocations/nobody/rows?start={'9' * 5_000}", {}, 400),
    ("/static/..%2f..%2fapp.py", {}, 404),
    ("/static/../app.py", {}, 404),
]


async def test_a_missing_invocation_is_refused_in_json(serve: Serve) -> None:
    """Each refusal names the missing resource."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env, site(env.client) as web:
        host, port = web.url.removeprefix("http://").split(":")
        for path, headers, status in MISSING:
            # A client would normalize the path.
            reader, writer = await asyncio.open_connection(host, int(port))
            lines = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {TOKEN}", "Connection: close"]
            writer.write("\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert (path, int(head.split()[1])) == (path, status)
            if not path.startswith("/static"):
                assert json.loads(body)["error"]["message"]


async def test_an_id_with_slashes_is_one_segment_of_the_path(serve: Serve) -> None:
    """Called agents have such IDs; the page links to itself in the same way."""
    async with serve(Agent(name="speaker", model=ScriptedModel("hi"))) as env, site(env.client) as web:
        id = f"{env.client.task_queue}/fc-1/events"
        await (await env.client.start("speaker", "go", id=id)).result()
        escaped = id.replace("/", "%2F")
        async with web.program() as program:
            assert (await program.get(f"/invocations/{escaped}/events.json")).json()["invocation_id"] == id
            assert f'data-base="/invocations/{escaped}"' in (await program.get(f"/invocations/{escaped}")).text
            assert (await program.get("/", params={"id": id})).headers["location"] == f"/invocations/{escaped}"


async def test_text_of_models_and_users_stays_text_on_a_page(serve: Serve) -> None:
    """Neither markup nor control characters pass; nothing on a page is inline."""
    async with serve(Agent(name="speaker", model=ScriptedModel(says(HOSTILE)))) as env, site(env.client) as web:
        invocation = await start_and_finish(env.client.start("speaker", HOSTILE))
        async with web.program(Accept="text/html") as program:
            for path in (page_of(invocation), f"{page_of(invocation)}/rows"):
                page = (await program.get(path)).text
                assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
                assert "<script>" not in page
                assert "\x1b" not in page
                assert " style=" not in page
            problem = await program.get("/invocations/%3Cscript%3E")
            assert (problem.status_code, "<script>" in problem.text) == (404, False)


async def test_strangers_see_nothing(serve: Serve) -> None:
    """Strangers get neither pages nor streams. A page under a foreign host name is refused with and without a token."""
    async with serve(Agent(name="speaker", model=ScriptedModel("secret"))) as env, site(env.client) as web:
        invocation = await env.client.start("speaker", "go")
        paths = ["/", *(f"{page_of(invocation)}{rest}" for rest in ("", "/rows", "/events", "/events.json"))]
        async with httpx.AsyncClient(base_url=web.url) as stranger:
            for path in paths:
                assert (await stranger.get(path)).status_code == 401
                for header in ("Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff"):
                    refused = await stranger.get(path, headers=[(b"Authorization", header.encode("latin-1"))])
                    assert refused.status_code == 401
                    assert invocation.id not in refused.text
                assert (await stranger.get(path, headers={"Cookie": "waystation="})).status_code == 401
        async with web.program(Host="evil.example") as rebound:
            assert (await rebound.get("/")).status_code == 400
        await invocation.result()


async def test_a_browser_without_a_login_gets_a_page(serve: Serve) -> None:
    """Like every page, it has a language, a title and a heading; a used link leads to it, too."""
    async with (
        serve(Agent(name="speaker", model=ScriptedModel())) as env,
        site(env.client) as web,
        httpx.AsyncClient(base_url=web.url, headers={"Accept": "text/html"}) as browser,
    ):
        for path, status, heading in (("/", 401, "Unauthorized"), ("/login?token=old", 403, "Forbidden")):
            refused = await browser.get(path)
            assert (refused.status_code, refused.headers["content-type"]) == (status, "text/html; charset=utf-8")
            for part in ('<html lang="en">', "<title>Waystation</title>", f"<h1>{heading}</h1>"):
                assert part in refused.text
        assert (await browser.get("/")).headers["www-authenticate"] == "Bearer"


async def test_a_login_link_works_once_for_one_browser(serve: Serve) -> None:
    """Scripts and other sites cannot read its cookie; the server then prints the next link."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env, site(env.client) as web:
        (link,) = web.links
        async with httpx.AsyncClient(base_url=web.url) as browser, httpx.AsyncClient(base_url=web.url) as thief:
            assert (await browser.head(link)).status_code == 405
            entered = await browser.get(link)
            assert (entered.status_code, entered.headers["location"]) == (303, "/")
            cookie = entered.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=lax" in cookie
            assert (await browser.get("/invocations")).status_code == 200
            assert (await thief.get(link)).status_code == 403
            assert (await thief.get("/invocations")).status_code == 401
            assert (await thief.get("/login")).status_code == 403
            assert (await thief.get(web.links[-1])).status_code == 303
            assert (await browser.get("/invocations")).status_code == 200


async def test_every_response_restricts_the_browser(serve: Serve) -> None:
    """Refusals, files, streams and pages restrict the browser, and no other origin is allowed."""
    async with serve(Agent(name="speaker", model=ScriptedModel("hi"))) as env, site(env.client) as web:
        invocation = await start_and_finish(env.client.start("speaker", "go"))
        paths = (
            "/",
            "/static/live.js",
            "/nowhere",
            "/login",
            *(f"{page_of(invocation)}{r}" for r in ("", "/events")),
        )
        async with web.program(Origin="https://evil.example") as program, httpx.AsyncClient() as stranger:
            for path in paths:
                for answer in (await program.get(path), await stranger.get(web.url + path)):
                    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
                    assert "access-control-allow-origin" not in answer.headers
            assert (await program.post("/")).status_code == 403
    assert "script-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_other_addresses_need_a_provider_and_a_name() -> None:
    """The refusal names the missing option."""
    check_host("127.0.0.1", names=())
    check_host("0.0.0.0", names=["inbox.example"], provider=True)
    for provider, names in ((False, ["inbox.example"]), (True, [])):
        with pytest.raises(NotSafeToServe, match=r"Listening at '0\.0\.0\.0' lets other machines in"):
            check_host("0.0.0.0", names=names, provider=provider)
    with pytest.raises(NotSafeToServe, match="has 5 characters"):
        Access(token="short", announce=lambda _: None)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RPCError("gone", RPCStatusCode.UNAVAILABLE, b""), "The Temporal server does not answer (UNAVAILABLE)"),
        (StoreFailed("s3://bucket", "gone"), "s3://bucket"),
    ],
)
async def test_an_unavailable_server_or_store_is_reported(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    """The refusal allows another attempt, on pages and for programs."""

    async def away(_: object) -> None:
        raise error

    async with serve(Agent(name="speaker", model=ScriptedModel("hi"))) as env, site(env.client) as web:
        invocation = await start_and_finish(env.client.start("speaker", "go"))
        with monkeypatch.context() as patched:
            patched.setattr(Invocation, "log", away)
            for accept in ("text/html", "application/json"):
                async with web.program(Accept=accept) as program:
                    for rest in ("", "/rows", "/events.json"):
                        answer = await program.get(f"{page_of(invocation)}{rest}")
                        assert (answer.status_code, problem in answer.text) == (503, True)
