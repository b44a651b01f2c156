"""Reports in a real browser, opened from the disk."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page

from tests.paths import HISTORIES
from tests.server.conftest import Serve
from tests.server.recordings.test_report import long
from tests.server.web.test_guarding import XSS as HOSTILE
from waystation.agents import Agent
from waystation.replay import Recording, report
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.tool_context import ToolContext

XSS = " ".join(HOSTILE)
PHONES, DESK = (320, 390), 1200
KEPT = HISTORIES / "many-steps.json"


@contextlib.asynccontextmanager
async def opened(
    chromium: Browser, path: Path, width: int = DESK, **options: Any
) -> AsyncIterator[tuple[Page, list[str]]]:
    """Open a page from the disk; return it with the browser's complaints and requests."""
    context = await chromium.new_context(viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(10_000)
    complaints: list[str] = []
    try:
        page = await context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else complaints.append(asked.url)
        )
        await page.goto(path.as_uri())
        yield page, complaints
    finally:
        await context.close()


async def written(path: Path, recording: Recording) -> Path:
    """Write the report on a recording."""
    await asyncio.to_thread(path.write_text, report(recording).html(), encoding="utf-8")
    return path


async def test_a_report_fits_phones_and_desktops_and_axe_finds_nothing(
    serve: Serve, chromium: Browser, tmp_path: Path
) -> None:
    """Light and dark reports send no request and run no script from recorded text."""

    def look(where: str, tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state[XSS] = where
        return {XSS: "a\u202eb" + "x" * 3_000, "many": ["word " * 50] * 20}

    helper = Agent(name="helper", model=ScriptedModel(calls(("look", {"where": XSS})), says(XSS)), tools=[look])
    model = ScriptedModel(calls(("helper", {"request": XSS}), ("look", {"where": "y" * 300})), says("Done. " + XSS))
    agent = Agent(name="caller", model=model, tools=[AgentTool(helper), look])
    async with serve(agent) as env:
        invocation = await env.client.start("caller", XSS)
        await invocation.result()
        path = await written(tmp_path / "report.html", await Recording.of(invocation))
    axe = Axe()
    for width, scheme in ((PHONES[0], "dark"), (PHONES[1], "light"), (DESK, "light")):
        async with opened(chromium, path, width, color_scheme=scheme) as (page, complaints):
            for _ in range(2):
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
                results = await axe.run(page)
                found = [(each["id"], each["nodes"][0]["html"]) for each in results.response["violations"]]
                assert (width, scheme, found) == (width, scheme, [])
                await page.get_by_role("button", name="Open all").or_(page.get_by_role("button", name="Close")).click()
            assert complaints == []


async def test_a_report_works_without_scripts(chromium: Browser, tmp_path: Path) -> None:
    """Without scripts the page hides their controls, while rows open and links work."""
    path = await written(tmp_path / "report.html", await Recording.read(KEPT))
    async with opened(chromium, path, java_script_enabled=False) as (page, complaints):
        assert not await page.locator("#find").is_visible()
        await page.locator("#m2 > summary").click()
        contents = page.locator("#m2 .contents > li")
        assert await contents.count() == 3
        assert "the first 1, as in model call 1" in await contents.first.inner_text()
        await contents.nth(1).locator("a").click()
        assert page.url.endswith("#e2")
        await page.locator("#e2 > summary").click()
        assert await page.locator("#e2 .part.call").is_visible()
        assert complaints == []


async def test_the_script_finds_rows_and_assembles_prompts(chromium: Browser, tmp_path: Path) -> None:
    """The script assembles a prompt from earlier ones, and a link opens its target."""
    path = await written(tmp_path / "report.html", await Recording.read(KEPT))
    async with opened(chromium, path) as (page, complaints):
        await page.locator("#m4 > summary").click()
        await page.locator("#m4").get_by_role("button", name="Show them").click()
        contents = page.locator("#m4 .contents > li")
        links = [await each.inner_text() for each in await contents.locator("a").all()]
        assert links == [f"event {number}" for number in range(1, 8)]
        await contents.nth(2).locator("a").click()
        assert await page.locator("#e3").evaluate("each => each.open")
        await page.locator("#find").fill("no such words")
        assert await page.locator("#matches").inner_text() == "0 of 27 rows"
        assert not await page.locator("#e3").is_visible()
        assert complaints == []


async def test_a_history_of_a_thousand_events_stays_usable(chromium: Browser, tmp_path: Path) -> None:
    """The page is small, shows few rows at once, and has everything one click away."""
    path = await written(tmp_path / "report.html", long(160))
    assert len(path.read_bytes()) < 1_000_000
    async with opened(chromium, path, PHONES[0]) as (page, complaints):
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONES[0]
        assert await page.locator("#timeline figure svg.timeline:visible").count() == 1
        box = await page.locator("#timeline").bounding_box()
        assert box is not None
        assert box["height"] < 900
        assert await page.locator("#happened .group").count() == 4
        assert await page.locator("#happened .event:visible").count() == 122
        await page.get_by_text("Each of the last 300 of 321 steps on its own row").click()
        assert await page.locator("#timeline figure svg.timeline:visible").count() == 2
        assert complaints == []


async def test_a_report_can_be_printed(chromium: Browser, tmp_path: Path) -> None:
    """Folded rows are printed, and controls are not."""
    path = await written(tmp_path / "report.html", await Recording.read(KEPT))
    async with opened(chromium, path) as (page, complaints):
        assert not await page.locator("#e2 .part.call").is_visible()
        await page.emulate_media(media="print")
        assert await page.locator("#e2 .part.call").is_visible()
        assert not await page.locator("header nav").is_visible()
        assert complaints == []
