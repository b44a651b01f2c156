"""The inbox in a real browser: visible content, keyboard, times, and changes made elsewhere."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from playwright.async_api import Browser, Page
from pydantic import BaseModel

from tests.agents import Till
from tests.server.conftest import Serve, empty_server
from tests.server.web.browsers import DESK, PHONE, opened
from tests.server.web.desk import begun, payer
from tests.server.web.sites import path_of, site
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.embedded import EmbeddedServer
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool

TITLE = "Pay {amount:,.2f} to {to}"


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EmbeddedServer]:
    """Run a separate server, because other tests leave calls of an agent of this name pending."""
    async with empty_server() as server:
        yield server


async def list_shows(page: Page, path: str, *ids: str) -> None:
    """Open the inbox until it lists exactly these calls."""

    async def look() -> bool:
        await page.goto(path)
        listed = await page.locator('input[name="call"]').evaluate_all("all => all.map(each => each.value)")
        return sorted(listed) == sorted(ids)

    await wait_until(look, f"{ids} in the list")


async def focused(page: Page, button: str) -> None:
    """Wait until a button of the answer has the focus."""
    await page.locator(f"button[value={button}]:focus").wait_for()


@pytest.mark.parametrize(("width", "height"), [(PHONE, 640), (DESK, 860)])
async def test_approve_is_visible_without_scrolling(serve: Serve, chromium: Browser, width: int, height: int) -> None:
    """The arguments are long. Tables keep the names of columns, and the title and a value are visible, too."""
    rows = [{"line": number, "text": "Please pay this soon."} for number in range(50)]
    long: dict[str, Any] = {"amount": 48_250.5, "to": "Rose Roofing", "note": rows}
    async with serve(payer(Till(), long, title=TITLE)) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web, width) as (page, complaints):
            await page.set_viewport_size({"width": width, "height": height})
            await page.goto(path_of(id))
            for element in (
                page.locator("button[value=approve]"),
                page.get_by_role("heading", name="Pay 48,250.50 to"),
            ):
                box = await element.bounding_box()
                assert box is not None
                assert box["y"] >= 0
                assert box["y"] + box["height"] <= height
            assert await page.evaluate("scrollY") == 0
            assert await page.get_by_role("columnheader", name="text").is_visible()
            assert complaints == []
        await invocation.reject()


async def test_the_keyboard_leads_from_the_list_to_an_answer_and_the_next_call(serve: Serve, chromium: Browser) -> None:
    """Letters only move the focus, so that Enter alone answers; in fields they are text."""
    till = Till()
    agent = payer(till, {"amount": 5, "to": "a"}, {"amount": 6, "to": "b"}, title=TITLE)
    async with serve(agent) as env, site(env.client) as web:
        invocation, first = await begun(env.client, "payer")
        async with opened(chromium, web) as (page, complaints):
            second = first.replace("fc-1", "fc-2")
            inbox = "/approvals?agent=payer&sort=oldest"
            await list_shows(page, inbox, first, second)
            await page.keyboard.press("?")
            await page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
            await page.keyboard.press("Escape")
            for key in ("j", "j", "k", "a"):
                await page.keyboard.press(key)
            await page.get_by_role("heading", name="Pay 5.00 to a").wait_for()
            await focused(page, "approve")
            await page.keyboard.press("c")
            await page.keyboard.type("jar?")
            assert await page.input_value("#comment") == "jar?"
            await page.click("button[value=approve-and-next]")
            await page.get_by_role("heading", name="Pay 6.00 to b").wait_for()
            await page.wait_for_load_state()  # when the scripts have run
            await page.keyboard.press("r")
            await focused(page, "reject")
            await page.keyboard.press("Enter")
            await page.get_by_text("This call was rejected by dana").wait_for()
            assert complaints == []
            await invocation.result()
            assert till.paid == [5]


async def test_a_call_that_is_answered_elsewhere_changes_on_screen(serve: Serve, chromium: Browser) -> None:
    """The list and the call show it without a reload, but a comment that is being typed stays."""
    agent = payer(Till(), {"amount": 5}, {"amount": 6}, {"amount": 7})
    async with serve(agent) as env, site(env.client) as web, opened(chromium, web) as (page, complaints):
        invocation, first = await begun(env.client, "payer")
        second, third = first.replace("fc-1", "fc-2"), first.replace("fc-1", "fc-3")
        await list_shows(page, "/approvals?agent=payer", first, second, third)
        assert (await page.title()).startswith("(")
        await invocation.reject("fc-1", by="erin")
        await page.locator(f'input[value="{first}"]').wait_for(state="detached")
        await page.goto(path_of(second))
        await invocation.reject("fc-2", by="erin")
        await page.get_by_text("This call was rejected by erin").first.wait_for()
        await page.goto(path_of(third))
        await page.fill("#comment", "I was about to")
        await invocation.reject("fc-3", by="erin")
        await page.get_by_text("This call has changed since you opened the page.").wait_for()
        assert await page.input_value("#comment") == "I was about to"
        assert complaints == []


async def test_times_are_in_the_zone_of_the_browser(serve: Serve, chromium: Browser) -> None:
    """The zone is part of the text, and the exact time stays in the attribute."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web, timezone_id="Asia/Kathmandu") as (page, complaints):
            await page.goto(path_of(id))
            times = page.locator("#answers time")
            assert (await times.first.inner_text()).endswith("GMT+5:45")
            assert (await times.first.get_attribute("datetime") or "").endswith("+00:00")
            assert complaints == []
        await invocation.reject()


async def test_a_time_that_is_entered_has_the_zone_of_the_browser(serve: Serve, chromium: Browser) -> None:
    """The label names the zone, and the recorded time has its offset."""

    class Booking(BaseModel):
        at: datetime

    def book() -> None:
        """Ask a person to book."""

    tool = LongRunningFunctionTool(book, response_schema=Booking)
    agent = Agent(name="booker", model=ScriptedModel(calls(("book", {})), says("Done.")), tools=[tool])
    async with serve(agent, verify=False) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "booker")
        async with opened(chromium, web, timezone_id="Asia/Kathmandu") as (page, complaints):
            await page.goto(path_of(id))
            await page.get_by_text("Date and time in GMT+5:45.").wait_for()
            await page.fill("[name='value.at']", "2026-05-31T12:00")
            await page.click("button[value=respond]")
            await page.get_by_text("This call was answered by dana").wait_for()
            assert complaints == []
        responses = [
            part["functionResponse"]["response"]
            for event in (await invocation.log()).state.events
            for part in (event.content or {}).get("parts") or ()
            if "functionResponse" in part
        ]
        assert responses[-1]["at"] == "2026-05-31T12:00:00+05:45"
        await invocation.result()


async def test_the_title_of_a_tab_in_the_background_counts_new_calls(serve: Serve, chromium: Browser) -> None:
    """The list itself stays as it is until somebody looks at it."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web:
        async with opened(chromium, web) as (page, complaints):
            await page.clock.install()
            await list_shows(page, "/approvals")
            before = await page.title()
            await page.evaluate("Object.defineProperty(document, 'hidden', { value: true });")
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            invocation, _ = await begun(env.client, "payer")

            async def counted() -> bool:
                await page.clock.run_for(30_000)
                return await page.title() != before

            await wait_until(counted, "another title")
            assert await page.title() == f"(1) {before}"
            assert await page.locator('input[name="call"]').count() == 0
            assert complaints == []
        await invocation.reject()
