"""google-adk's browser front end while the worker and the web server are killed."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from tests.paths import ROOT
from tests.server.processes.workers import Place, Process, plan, until
from tests.server.web.conftest import chromium

__all__ = ["chromium"]
pytestmark = pytest.mark.timeout(600)
PYTHON = ROOT / ".venv-adk" / "bin" / "python"


def serve_at(place: Place, port: int, artifacts: Path) -> Process:
    """Return a web server of the environment with google-adk, which is not started yet."""
    command = ("-m", "waystation.cli", "--address", place.address, "--task-queue", place.task_queue)
    return Process(
        str(PYTHON), *command, "web", "--adk", "--as", "dana", "--port", str(port), "--artifacts", str(artifacts)
    )


async def find(web: Process, pattern: str) -> str:
    """Return what the server has printed."""

    def look() -> re.Match[str] | None:
        assert web.running, web.other
        return re.search(pattern, " ".join(web.other))

    found = await until(look, pattern)
    assert found
    return found[1]


async def say(page: Page, text: str) -> None:
    """Send a message."""
    box = page.get_by_placeholder("Type a message")
    await box.fill(text)
    await box.press("Enter")


async def test_a_turn_in_adks_front_end_survives_the_worker_and_the_web_server(
    place: Place, chromium: Browser, tmp_path: Path
) -> None:
    """After both were killed while a tool ran, the page shows the complete turn. Nothing was paid twice."""
    assert PYTHON.exists(), f"{PYTHON} is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    context = await chromium.new_context()
    context.set_default_timeout(60_000)
    page, login = await context.new_page(), await context.new_page()
    async with place.worker() as worker, serve_at(place, 0, tmp_path) as web:
        address = await find(web, r"Serving at (\S+);")
        await login.goto(await find(web, r"(http://\S+/login\?token=\S+)"))
        await page.goto(f"{address}/dev-ui/?app=planned")
        await say(page, plan([("pay", {"amount": 5})], [("hold", {"gate": "after"})]))
        await page.get_by_text("Confirmed").last.click()
        await page.get_by_role("button", name="Submit").last.click()
        await until(lambda: place.ledger.lines("began"), "a tool that runs")
        await worker.kill()
        await web.kill()
    place.ledger.open("after")
    async with place.worker(), serve_at(place, int(address.rpartition(":")[2]), tmp_path) as web:
        await login.goto(await find(web, r"(http://\S+/login\?token=\S+)"))
        session = page.url.rpartition("session=")[2]
        turn = (await place.client()).session(agent="planned", session_id=session, user_id="dana").invocation(1)
        await turn.result()
        await page.reload()
        await page.get_by_text('{"held": "after"').first.wait_for()
    assert [each["amount"] for each in place.ledger.lines("paid")] == [5]
    await context.close()
