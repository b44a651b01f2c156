"""Create the screenshots for the documentation: `python -m docs.pictures`.

Starts a Temporal server, a worker with the examples and `waystation web`, and takes screenshots with the Chromium that
`make .node/.stamp` installs.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.async_api import Page, async_playwright

from waystation import AgentClient
from waystation.cli.demo import WorkerProcess
from waystation.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = ROOT / ".node" / "chromium"
REQUESTS = (
    ("tiles-4", "payments_agent", "Pay 620 to Ines for the tiles"),
    ("roof-1", "payments_agent", "Pay 5000 to Rose for the roof"),
    ("meals-7", "reimbursement_agent", "Please reimburse 200$ for meals"),
    ("chair-3", "reimbursement_agent", "Please reimburse 480$ for a chair"),
)


@asynccontextmanager
async def web_server(address: str) -> AsyncIterator[str]:
    """Serve the inbox and yield its login link."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.cli", "--address", address, "web", "--port", "0", "--as", "dana"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            while line := (await process.stdout.readline()).decode():
                if link := re.search(r"http://\S+", line):
                    yield link[0]
                    break
    finally:
        process.terminate()
        await process.communicate()


async def make_requests(client: AgentClient) -> None:
    """Start invocations and wait until each has a pending call."""
    for id, agent, message in REQUESTS:
        invocation = await client.start(agent, message, id=id, user_id="alex")
        while not await invocation.pending():
            await asyncio.sleep(0.1)


async def start_chat(client: AgentClient) -> str:
    """Have a conversation in which a call waits for approval, and return the path of its page."""
    session = client.session(agent="travel_desk", session_id="trips", user_id="dana")
    await session.say("I live in Zurich")
    await session.send("I need a trip to Lisbon")
    while not await session.pending():
        await asyncio.sleep(0.1)
    return f"/sessions/{quote(session.id, safe='')}"


async def take(page: Page, url: str, name: str, origin: str = "") -> None:
    """Save a screenshot of a page."""
    url = origin + url
    await page.goto(url)
    # Visibility can lag by up to a second.
    await page.wait_for_timeout(1500)
    await page.goto(url)
    await page.screenshot(path=IMAGES / name)
    print(IMAGES / name)


async def main() -> None:
    """Create all screenshots."""
    IMAGES.mkdir(exist_ok=True)
    program = os.environ.get("WAYSTATION_CHROMIUM") or str(CHROMIUM / "chromium")
    environment: dict[str, str | float | bool] = {
        **os.environ,
        "LD_LIBRARY_PATH": str(CHROMIUM / "lib"),
        "FONTCONFIG_PATH": str(CHROMIUM),
    }
    async with EmbeddedServer() as server:
        options = ("--agents", str(ROOT / "examples"), "--model", "demo", "--address", server.address)
        async with WorkerProcess(*options), web_server(server.address) as link, async_playwright() as playwright:
            client = await AgentClient.connect(address=server.address)
            await make_requests(client)
            browser = await playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"], env=environment
            )
            page = await browser.new_page(viewport={"width": 1080, "height": 500})
            await page.goto(link)
            origin = link.split("/", 3)[0] + "//" + link.split("/", 3)[2]
            await take(page, f"{origin}/approvals", "inbox.png")
            await page.set_viewport_size({"width": 1080, "height": 640})
            await take(page, f"{origin}/approvals/tiles-4%2Ffc-1", "call.png")
            await page.set_viewport_size({"width": 1080, "height": 560})
            await take(page, f"{origin}/invocations?sort=status", "invocations.png")
            await take(page, f"{origin}/invocations/roof-1", "invocation.png")
            await page.set_viewport_size({"width": 900, "height": 640})
            await take(page, await start_chat(client), "chat.png", origin)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
