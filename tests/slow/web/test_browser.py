"""The pages in a real browser: layout, accessibility and scripts."""

import asyncio
from typing import Any

from playwright.async_api import Browser, Route

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.browsers import PHONE, opened
from tests.server.web.desk import begun, payer
from tests.server.web.sites import page_of, path_of, site
from tests.server.web.test_guarding import XSS
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool

REPORT_BUTTON = """
const button = document.querySelector("button[value=approve]");
const report = () => console.log(button.textContent, document.getElementById("sending").textContent);
new MutationObserver(report).observe(button, { childList: true });
"""


async def test_a_call_is_answered_with_the_keyboard_alone(serve: Serve, chromium: Browser) -> None:
    """The focus is visible on the way from the list to the answer, and the first stop skips the navigation."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web) as (page, complaints):
            await page.goto(path_of(id))
            stops: list[str] = []
            for _ in range(40):
                await page.keyboard.press("Tab")
                focus = page.locator(":focus")
                stops.append((await focus.inner_text()).strip() or await focus.get_attribute("name") or "")
                outline = await focus.evaluate("each => getComputedStyle(each).outlineStyle")
                assert outline != "none", stops
                if stops[-1] == "comment":
                    await page.keyboard.type("continue")
                if stops[-1] == "Approve":
                    break
            assert stops[0] == "Skip to content"
            assert stops[-2:] == ["comment", "Approve"]
            await page.keyboard.press("Enter")
            await page.get_by_text("This call was approved by dana").wait_for()
            await page.get_by_text("continue").wait_for()
            assert complaints == []
        await invocation.result()
        assert till.paid == [5]


async def test_an_impatient_double_click_pays_once(serve: Serve, chromium: Browser) -> None:
    """With or without scripts, a double click ends on the page with the result."""
    for scripts in (True, False):
        till = Till()
        async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
            invocation, id = await begun(env.client, "payer")
            async with opened(chromium, web, java_script_enabled=scripts) as (page, _):
                await page.goto(path_of(id))
                await page.dblclick("button[value=approve]")
                await page.get_by_text("This call was approved by dana").wait_for()
            await invocation.result()
            assert till.paid == [5]


async def test_a_pending_answer_is_indicated(serve: Serve, chromium: Browser) -> None:
    """The button shows the pending answer before a response arrives, and screen readers announce it."""
    till, go_on = Till(), asyncio.Event()

    async def hold(route: Route) -> None:
        await go_on.wait()
        await route.continue_()

    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web, PHONE) as (page, _):
            await page.goto(path_of(id))
            await page.route(f"**{path_of(id)}", hold)
            await page.evaluate(REPORT_BUTTON)  # Playwright itself waits until the next page is there
            async with page.expect_console_message() as message:
                await page.get_by_role("button", name="Approve", exact=True).click(no_wait_after=True)
            assert ((await message.value).text, till.paid) == ("Sending… Sending…", [])
            go_on.set()
            await page.get_by_text("This call was approved by dana").wait_for()
        await invocation.result()
        assert till.paid == [5]


async def test_hostile_text_runs_nothing_in_a_browser(serve: Serve, chromium: Browser) -> None:
    """Hostile text opens no dialog, sends no request, runs no script and violates no policy."""

    def pay(note: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"paid": note}

    args = {"note": " ".join(XSS), "more": {each: [each] for each in XSS}}
    model = ScriptedModel(calls(("pay", args), text=" ".join(XSS)), says("Done."))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env, site(env.client, person=XSS[1]) as web:
        invocation, id = await begun(env.client, "payer", user_id=XSS[0])
        async with opened(chromium, web) as (page, complaints):
            requests: list[str] = []
            page.on("request", lambda request: requests.append(request.url))
            for path in ("/approvals", path_of(id), f"{path_of(id)}/edit", f"{page_of(invocation)}/timeline"):
                await page.goto(path)
            await page.goto(path_of(id))
            await page.fill("#comment", " ".join(XSS))
            await page.click("button[value=reject]")
            await page.get_by_text("This call was rejected").wait_for()
            assert [url for url in requests if not url.startswith(f"{web.url}/")] == []
            assert complaints == []
        await invocation.result()
