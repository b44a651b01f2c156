"""All pages in a real browser: sizes, accessibility, and behavior without scripts or without a server."""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from axe_playwright_python.async_playwright import Axe
from google.genai import types
from playwright.async_api import Browser, Page

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.browsers import DESK, PHONE, opened
from tests.server.web.desk import asker, begun, payer
from tests.server.web.sites import page_of, path_of, site
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.approvers import Gatekeeper
from waystation.approvers.identity import write_examples
from waystation.core.approval import ApprovalPolicy
from waystation.core.log import call_url
from waystation.testing import ScriptedModel, calls, says
from waystation.tools import ToolContext
from waystation.tools.function_tool import FunctionTool


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
async def test_every_page_fits_the_screen_and_axe_finds_nothing(
    serve: Serve, chromium: Browser, width: int, scheme: Any
) -> None:
    """Light and dark pages have no sideways scrolling, no accessibility violation and no blocked content."""
    long = {"amount": 5, "to": "x" * 300, "note": "a\u202eb " + "word " * 2_000}
    agents = payer(Till(), long), asker("Which day?"), noter()
    async with serve(*agents, verify=False) as env, site(env.client) as web:
        paying, payment = await begun(env.client, "payer")
        asking, question = await begun(env.client, "asker")
        session = env.client.session(agent="noter", session_id=f"notes-{width}-{scheme}", user_id="dana")
        noted = await session.send("Remember blue. " + "y" * 300)
        await noted.result()
        fork = await env.client.forks.start(noted.id, 2)
        await fork.result()
        chat = f"/sessions/{quote(session.id, safe='')}"
        noting = f"/invocations/{quote(noted.id, safe='')}"
        paths = [
            "/invocations",
            "/invocations?q=nobody-of-that-name&sort=cost&person=dana&error=x",
            "/approvals",
            "/approvals?agent=nobody-of-that-name",
            path_of(payment),
            path_of(question),
            f"{path_of(payment)}/edit",
            f"/approvals/several?{urlencode({'call': [payment, question]}, doseq=True)}",
            f"/invocations/{paying.id}",
            f"/invocations/{paying.id}/timeline",
            *(f"{noting}{view}" for view in ("", "/timeline", "/models", "/state", "/fork", "/compare")),
            f"{noting}/compare?{urlencode({'with': fork.id})}",
            "/agents",
            "/sessions",
            "/sessions?q=nobody-of-that-name",
            "/sessions/new",
            "/sessions/new?agent=noter",
            chat,
        ]
        async with opened(chromium, web, width, color_scheme=scheme) as (page, complaints):
            for path in paths:
                await check_page(page, path, width)
            assert complaints == []
            await check_page(page, "/invocations/none", width)  # the problem page, about which the browser complains
            await page.context.clear_cookies()
            await check_page(page, "/login", width)
        await paying.reject()
        await asking.respond({"result": "Friday"})


def noter() -> Agent:
    """Return an agent that changes the state and saves an artifact."""

    async def note(tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state["color"] = {"name": "blue" * 50}
        await tool_context.save_artifact("colors.txt", types.Part(text="blue"))
        return {"noted": True}

    replies = [calls(("note", {}), text="I note it."), says("**Noted** it.")] * 2
    return Agent(name="noter", description="Notes.", model=ScriptedModel(*replies), tools=[FunctionTool(note)])


async def check_page(page: Page, path: str, width: int) -> None:
    """Check a page as it opens and with everything unfolded."""
    await page.goto(path)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
    for details in await page.locator("details").all():
        await details.evaluate("each => each.open = true")
    results = await Axe().run(page)
    found = [(each["id"], each["nodes"][0]["html"]) for each in results.response["violations"]]
    assert (path, found) == (path, [])
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_a_list_of_an_ended_login_shows_a_note(serve: Serve, chromium: Browser) -> None:
    """The list shows a note after the end of a login, because it would otherwise seem that nothing new is pending."""
    async with serve(payer(Till())) as env, site(env.client) as web, opened(chromium, web) as (page, _):
        await page.goto("/approvals")
        await page.context.clear_cookies()
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await page.get_by_text("Log in first").wait_for()


async def test_pages_show_a_note_while_the_server_is_unavailable(serve: Serve, chromium: Browser) -> None:
    """The note disappears when the server responds again."""
    paying = payer(Till(), {"amount": 5})
    async with serve(paying) as env, site(env.client) as web, opened(chromium, web) as (page, _):
        invocation, _ = await begun(env.client, "payer")
        pages = (
            # The list and its stream: a message of the stream removes the note.
            ("/approvals", "**/approvals/*", "refresh()"),
            (page_of(invocation), "**/events?*", "stream.restart()"),
        )
        for path, asked, again in pages:
            await page.route(asked, lambda route: route.abort())
            await page.goto(path)
            await page.evaluate(again)
            note = page.get_by_role("status").get_by_text("The server does not answer")
            await note.wait_for()
            await page.unroute(asked)
            await page.evaluate(again)
            await note.wait_for(state="detached")
        await invocation.reject()


async def test_pages_work_without_scripts(serve: Serve, chromium: Browser) -> None:
    """Links and forms suffice from the list to an edited call."""
    till = Till()
    async with serve(payer(till, {"amount": 500, "to": "acme"})) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web, PHONE, java_script_enabled=False) as (page, _):

            async def listed() -> bool:
                await page.goto("/approvals")
                return await page.locator(f'a[href="{path_of(id)}"]').count() == 1

            await wait_until(listed, "the call in the list")
            await page.click(f'a[href="{path_of(id)}"]')
            await page.fill("#comment", "less will do")
            await page.click("text=Edit, then approve")
            await page.fill("[name='value.amount']", "60")
            await page.click("text=Show changes")
            await page.click("text=Change more")
            await page.fill("[name='value.amount']", "50")
            await page.click("text=Show changes")
            assert await page.locator("del").inner_text() == "500"
            assert await page.locator("ins").inner_text() == "50"
            await page.click("text=Approve with these arguments")
            await page.get_by_text("This call was approved with other arguments by dana").wait_for()
            await page.get_by_text("less will do").wait_for()  # as it was typed, two pages before
        await invocation.result()
        assert till.paid == [50]


async def test_the_list_refreshes_itself_except_during_a_selection(serve: Serve, chromium: Browser) -> None:
    """A new pending call appears, but nothing moves while a call is ticked."""
    async with serve(asker("1"), payer(Till(), {"amount": 5})) as env, site(env.client) as web:
        first, id = await begun(env.client, "asker")

        async def visible() -> bool:
            return any([call.approval_id == id async for call in env.client.approvals.each(agent="asker")])

        await wait_until(visible, "the first call in the list")
        async with opened(chromium, web) as (page, complaints):
            await page.goto("/approvals")
            second, other = await begun(env.client, "payer")

            async def shown() -> bool:
                await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
                return await page.locator(f'a[href="{path_of(other)}"]').count() == 1

            await wait_until(shown, "the second call on the page")
            await page.check(f'input[value="{id}"]')
            await second.reject()

            async def gone() -> bool:
                return not any([call.approval_id == other async for call in env.client.approvals.each(agent="payer")])

            await wait_until(gone, "the second call out of the list")
            await page.evaluate("refresh()")
            assert await page.locator(f'a[href="{path_of(other)}"]').count() == 1
            await page.uncheck(f'input[value="{id}"]')
            await page.evaluate("document.activeElement.blur(); refresh()")
            await page.locator(f'a[href="{path_of(other)}"]').wait_for(state="detached")
            assert complaints == []
        await first.respond({"result": "1"})


async def test_a_link_in_a_message_opens_its_call_from_the_fragment(
    serve: Serve, chromium: Browser, tmp_path: Path
) -> None:
    """No requested URL contains the token, the address bar loses it, and the page has no form."""
    write_examples(tmp_path / "identity")
    keeper = Gatekeeper.from_file(tmp_path / "identity" / "gateway.toml", "default", interface="web")
    assert keeper.links is not None
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client, gatekeeper=keeper) as web:
        invocation, id = await begun(env.client, "payer")
        token = keeper.links.sign(id)
        context = await chromium.new_context(base_url=web.url)
        try:
            page = await context.new_page()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.goto(call_url(web.url, id, token))
            await page.get_by_text("payer requests approval of pay").wait_for()
            assert await page.locator("form").count() == 0
            assert [url for url in asked if token in url.partition("#")[0]] == []
            assert token not in page.url
            await page.goto("about:blank")
            await page.goto(call_url(web.url, id, token))  # a browser that is logged in does not need it
            await page.wait_for_url(lambda url: url.endswith(path_of(id)))
            await page.get_by_text("payer requests approval of pay").wait_for()
        finally:
            await context.close()
        await invocation.reject()


async def test_a_view_is_recorded_once_if_a_policy_needs_it(serve: Serve, chromium: Browser) -> None:
    """The page in a browser records the view; a request for its address does not."""
    agent = payer(Till(), {"amount": 5}, approval=ApprovalPolicy())
    async with serve(agent) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web) as (page, complaints):
            for _ in range(2):
                async with page.expect_response(f"**{path_of(id)}/viewed"):
                    await page.goto(path_of(id))
            await page.reload()
            await page.get_by_text("viewed by dana (unverified)").wait_for()
            assert complaints == []
        await invocation.reject()
