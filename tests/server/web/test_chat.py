"""Agents and chats in a browser: the content of pages, and the user in whose name they send."""

import html
import re
import uuid
from typing import Any
from urllib.parse import quote, unquote

from google.genai import types
from playwright.async_api import Browser as Chromium

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.server.web.browsers import opened
from tests.server.web.desk import payer
from tests.server.web.logins import DANA, gatekeeper, person
from tests.server.web.sites import Browser, hidden, site
from tests.server.web.test_guarding import XSS
from tests.server.web.test_unreachable import cut
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.client import Session
from waystation.core import ids
from waystation.core.budget import Usage
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def greeter(*replies: str) -> Agent:
    """Return an agent that only talks."""
    return Agent(name="greeter", description="Greets.", model=ScriptedModel(*map(says, replies)))


def path_of(session: Session) -> str:
    """Return the path of a session's page."""
    return f"/sessions/{quote(session.id, safe='')}"


async def start(me: Browser, agent: str, message: str, **fields: str) -> str:
    """Send the form that starts an agent, and return the path of the page that it leads to."""
    form = hidden((await me.page(f"/sessions/new?agent={agent}")).text)
    response = await me.send("/sessions/new", {**form, "message": message, "start": "chat", **fields})
    assert response.status_code == 200, response.text
    return response.url.raw_path.decode()


async def opened_session(env: AgentEnvironment, agent: str, **names: Any) -> Session:
    """Return a session with one completed turn."""
    names = {"session_id": f"s-{uuid.uuid4().hex[:8]}", "user_id": "dana", **names}
    session = env.client.session(agent=agent, **names)
    await session.say("Hello")
    return session


async def test_a_person_chats_with_an_agent_and_approves_in_the_chat(serve: Serve, chromium: Chromium) -> None:
    """A real browser works from the list of agents to the reply after the approval."""
    till = Till()

    def pay(amount: float) -> dict[str, Any]:
        till.paid.append(int(amount))
        return {"paid": amount}

    model = Held(says("Good morning."), calls(("pay", {"amount": 5}), text="I pay now."), says("Done."))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env, site(env.client) as web, opened(chromium, web) as (page, complaints):
        await page.goto("/agents")
        await page.get_by_role("link", name="Start payer").click()
        await page.locator("#message:focus").wait_for()  # the browser must set the focus before this test does
        await page.fill("#message", "Hello")
        await page.get_by_role("button", name="Start a chat").click()
        await page.locator(".partial").get_by_text("Good morning.").wait_for()  # while the model still writes
        model.go_on.set()
        await page.locator(".bubble.agent").get_by_text("Good morning.").wait_for()
        await page.fill("#message", "Please pay.")
        await page.keyboard.press("Enter")
        await page.get_by_label("Comment").fill("fine")
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_text("Done.").wait_for()
        assert till.paid == [5]
        assert "approved by dana (unverified): “fine”" in await page.locator("#turn-2").inner_text()
        assert complaints == []


async def test_a_chat_reports_an_unavailable_server(serve: Serve, chromium: Chromium) -> None:
    """The typed text stays, and one sentence says whether the message or the answer may still count."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, opened(chromium, web) as (page, _):
        session = env.client.session(agent="payer", session_id=uuid.uuid4().hex, user_id="dana")
        invocation = await session.send("Please pay.")
        await page.goto(path_of(session))
        with cut("execute_update"):
            await page.get_by_role("button", name="Approve").click()
            await page.locator(".turn .error").get_by_text("The Temporal server did not respond").wait_for()
        await page.fill("#message", "Hello?")
        with cut("describe"):
            await page.keyboard.press("Enter")
            await page.locator("#stale").get_by_text("The Temporal server does not answer").wait_for()
        assert await page.input_value("#message") == "Hello?"
        await invocation.cancel()


async def test_a_chat_works_without_scripts(serve: Serve) -> None:
    """Each form leads back to the conversation."""
    till = Till()
    async with serve(payer(till, {"amount": 5}, {"amount": 6})) as env, site(env.client) as web, web.browser() as me:
        path = await start(me, "payer", "Please pay.")

        async def card() -> str:
            return text if "Pending call" in (text := (await me.page(path)).text) else ""

        form = hidden((await wait_until(card, "the pending call")).partition("Pending call")[2].partition("</form>")[0])
        call = f"{path.replace('/sessions/', '/approvals/')}%2F1%2Ffc-1"
        answered = await me.send(call, {**form, "action": "approve"})
        assert answered.url.raw_path.decode() == path
        await wait_until(lambda: _paid(till), "the payment")


async def _paid(till: Till) -> list[int]:
    return till.paid


async def test_the_same_form_starts_one_chat(serve: Serve) -> None:
    """A second click, or the button "back", leads to the same conversation."""
    async with serve(greeter(*["Hi."] * 3)) as env, site(env.client) as web, web.browser() as me:
        fields = hidden((await me.page("/sessions/new?agent=greeter")).text)
        path = ""
        for way in ("once", "chat"):
            form = {**fields, "message": "Hello", "start": way}
            path, second_path = [(await me.send("/sessions/new", form)).url.raw_path.decode() for _ in range(2)]
            assert path == second_path
        form = {**hidden((await me.page(path)).text), "message": "Again"}
        _, page = [(await me.send(path, form)).text for _ in range(2)]
        assert re.findall(r'id="turn-(\d)"', page) == ["1", "2"]


async def test_an_open_chat_fetches_state_and_tokens_with_the_turns_that_changed(serve: Serve) -> None:
    """If no turn has changed, nothing else is read or sent."""

    def note(tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state["color"] = "blue"
        return {"noted": True}

    replies = calls(("note", {})), says("Noted.", usage=Usage(total_tokens=1_200))
    agent = Agent(name="noter", model=ScriptedModel(*replies), tools=[FunctionTool(note)])
    async with serve(agent, verify=False) as env, site(env.client) as web, web.browser() as me:
        path = path_of(await opened_session(env, "noter"))
        changed = html.unescape((await me.page(f"{path}/turns?known=")).text)
        assert '"color": "blue"' in changed.partition('id="panels"')[2]
        assert '<span id="usage" class="dim">1,200 tokens</span>' in changed
        (key,) = re.findall(r'data-key="([^"]*)"', changed)
        assert "color" not in (await me.page(f"{path}/turns?known={key}")).text
        for event in (1, 2):  # the message and the call
            assert f'/fork?event={event}"' in changed


async def test_a_session_that_refuses_messages_disables_the_input(serve: Serve) -> None:
    """The page still shows the conversation. A message that is sent nevertheless is refused with its text."""
    async with serve(greeter("Hi.")) as env, site(env.client) as web, web.browser() as me:
        path = path_of(await opened_session(env, "greeter"))
        page = (await me.page(path)).text
        assert "disabled" not in page
        assert (await me.send(f"{path}/close", hidden(page))).status_code == 200
        closed = (await me.page(path)).text
        assert closed.count("disabled") == 2
        assert "Hi." in closed
        refused = await me.send(path, {**hidden(page), "message": "Still there?"})
        assert refused.status_code == 409
        assert "Still there?" in refused.text


async def test_hostile_text_stays_text_in_a_conversation(serve: Serve) -> None:
    """Descriptions, messages, arguments, results, state and names of artifacts cannot add elements to a page."""
    hostile = " ".join(XSS)

    async def keep(note: str, tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state[hostile] = hostile
        await tool_context.save_artifact(XSS[0], types.Part.from_text(text=hostile))
        return {hostile: hostile}

    model = ScriptedModel(calls(("keep", {"note": hostile}), text=hostile), says(hostile))
    agent = Agent(name="keeper", description=hostile[:250], model=model, tools=[FunctionTool(keep)])
    async with (
        serve(agent) as env,
        site(env.client, artifacts=env.services.artifacts) as web,
        web.browser() as me,
    ):
        path = await start(me, "keeper", hostile)
        turn = f"{path.rpartition('/')[2]}%2F1"
        await env.client.invocation(unquote(turn)).result()
        paths = "/agents", "/sessions/new?agent=keeper", "/sessions", path, f"{path}/turns"
        pages = [await me.page(each) for each in (*paths, f"/invocations/{turn}/fork", f"/invocations/{turn}/compare")]
        assert [page.status_code for page in pages] == [200] * len(pages)
        for page in pages:
            assert not re.search(
                r"<(script(?! src=\"/static/)|img src=x|svg/|iframe|base|a href=javascript)", page.text
            )
            assert "onerror" not in re.sub(r"&[a-z#0-9]+;[^<]*", "", page.text)


async def test_an_artifact_is_a_download_that_no_browser_opens(serve: Serve) -> None:
    """An artifact is always a download, because its media type and its name come from a tool."""

    async def draw(tool_context: ToolContext) -> str:
        page = types.Part.from_bytes(data=b"<script>1</script>", mime_type="text/html")
        await tool_context.save_artifact('a/"x"\r\n.html', page)
        return "drawn"

    agent = Agent(name="greeter", model=ScriptedModel(calls(("draw", {})), says("Hi.")), tools=[FunctionTool(draw)])
    async with (
        serve(agent) as env,
        site(env.client, artifacts=env.services.artifacts) as web,
        web.browser() as me,
    ):
        page = (await me.page(path_of(await opened_session(env, "greeter")))).text
        (link,) = set(re.findall(r'href="([^"]*/artifact\?[^"]*version=0)"', page))
        response = await me.page(html.unescape(link))
        assert response.content == b"<script>1</script>"
        assert response.headers["content-type"] == "application/octet-stream"
        assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''%22x%22%5Cr%5Cn.html"
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_artifacts_of_a_programs_session_are_shown_and_deleted(serve: Serve) -> None:
    """Its tools save them under the plain name of the app, although the session has a tenant of its own."""

    async def draw(tool_context: ToolContext) -> str:
        await tool_context.save_artifact("plan.txt", types.Part.from_bytes(data=b"north", mime_type="text/plain"))
        return "drawn"

    agent = Agent(name="greeter", model=ScriptedModel(calls(("draw", {})), says("Hi.")), tools=[FunctionTool(draw)])
    names: dict[str, Any] = {"session_id": "s", "user_id": "ann", "tenant": ids.program_tenant("run")}
    async with serve(agent, verify=False) as env:
        artifacts = env.services.artifacts
        session = env.client.session(agent="greeter", **names)
        await session.say("go")
        async with site(env.client, artifacts=artifacts) as web, web.browser() as me:
            assert "plan.txt" in (await me.page(path_of(session))).text
            response = await me.page(f"{path_of(session)}/artifact?name=plan.txt")
            assert response.content == b"north"
        deleted = await env.client.delete_session(**names, artifacts=artifacts)
        assert deleted.artifacts == ["plan.txt"]


async def test_a_forged_form_starts_and_sends_nothing(serve: Serve) -> None:
    """Each form needs the secret of the login, and comes from a page of this server."""
    async with serve(greeter("Hi.")) as env, site(env.client) as web, web.browser() as me:
        session = await opened_session(env, "greeter")
        turn = f"/invocations/{quote(session.id, safe='')}%2F1/fork"
        form = {"agent": "greeter", "message": "Hi", "message_id": "m", "start": "chat"}
        csrf = (await me.fields("/sessions/new"))["csrf"]
        for path in ("/sessions/new", path_of(session), f"{path_of(session)}/close", turn):
            assert (await me.send(path, {**form, "csrf": "x"})).status_code == 403
            sent = await me.send(path, {**form, "csrf": csrf}, headers={"Origin": "https://evil.example"})
            assert sent.status_code == 403
        assert len(await session.logs()) == 1
        assert await env.client.forks.of(f"{session.id}/1") == []


async def test_an_author_chats_in_their_own_name(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """A form cannot name anyone else, and another author can neither see nor continue the chat."""
    async with (
        serve(greeter("Hi.", "Hi."), identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as me,
        person(web.url, openid, "authors", subject="erin@example.com") as other,
    ):
        fields = {"user_id": "erin@example.com", "requester": "erin@example.com"}
        path = await start(me, "greeter", "Hello", **fields)
        once = await start(me, "greeter", "Hello", **fields, start="once")
        for id in (f"{unquote(path.rpartition('/')[2])}/1", once.rpartition("/")[2]):
            started = (await env.client.invocation(id).log()).state.input
            assert started is not None
            assert set(filter(None, started.requesters)) == {DANA}
        form = {**hidden((await other.page("/sessions/new")).text), "message": "Hi"}
        assert [(await other.page(path)).status_code, (await other.send(path, form)).status_code] == [404, 404]
        assert "chat-" not in (await other.page("/sessions")).text


async def test_an_operator_forks_a_turn_and_compares_the_runs(serve: Serve) -> None:
    """The page of the fork lists the events, and the comparison shows where the runs differ."""
    async with serve(greeter("Hi.", "Good morning.")) as env, site(env.client) as web, web.browser() as me:
        session = await opened_session(env, "greeter")
        path = f"/invocations/{quote(session.id, safe='')}%2F1"
        form = hidden(page := (await me.page(f"{path}/fork?event=1")).text)
        assert re.search(r'value="1" checked', page)
        shown = await me.send(f"{path}/fork", {**form, "event": "1", "message": "Good morning"})
        (fork,) = await env.client.forks.of(f"{session.id}/1")
        await env.client.invocation(fork.id).result()
        compared = (await me.page(shown.url.raw_path.decode())).text
        assert "The invocations differ." in compared
        assert all(text in compared for text in ("Hi.", "Good morning."))
        log = await env.client.invocation(fork.id).log()
        assert log.state.input is not None
        assert log.state.input.requester == "dana"
