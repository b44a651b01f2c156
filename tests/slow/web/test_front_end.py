"""The example of a front end for AG-UI in a real browser."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from playwright.async_api import Browser, BrowserContext, Page

from tests.agents import Till
from tests.paths import EXAMPLES
from tests.server.conftest import Serve
from tests.server.interfaces.test_ag_ui import AG_UI
from tests.server.web.sites import TOKEN, site
from waystation.agents import Agent
from waystation.models import LlmRequest
from waystation.testing import FunctionModel, calls, latest_turn, says
from waystation.testing.models import Reply
from waystation.tools.function_tool import FunctionTool

TEXT = "I make this payment for you now, unless you change or reject it at once."
PARTIAL = """() => {
  const text = document.querySelector('.assistant')?.textContent ?? '';
  return text.startsWith('I make') && !text.includes('once');
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def static_files() -> Iterator[str]:
    """Serve the page as `python -m http.server` does, and return its origin."""
    handler = functools.partial(QuietHandler, directory=str(EXAMPLES / "frontend"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def payer(till: Till) -> Agent:
    """Return an agent that writes its text slowly, before a payment that needs approval."""

    def pay(amount: int) -> dict[str, int]:
        till.paid.append(amount)
        return {"paid": amount}

    def reply(request: LlmRequest) -> Reply:
        _, responses = latest_turn(request)
        return says("Done.") if responses else calls(("pay", {"amount": 5}), text=TEXT)

    tool = FunctionTool(pay, require_confirmation=True, title="Pay {amount} €")
    return Agent(name="payer", model=FunctionModel(reply, pace_s=0.25), tools=[tool])


async def opened(context: BrowserContext, url: str, complaints: list[str]) -> Page:
    """Open the page with the access token."""
    page = await context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(url)
    await page.fill("#token", TOKEN)
    await page.press("#token", "Enter")
    return page


async def test_two_tabs_stream_reload_and_approve_edited_arguments(serve: Serve, chromium: Browser) -> None:
    """Text appears while it is written. A reload loses nothing, and the other tab follows without one."""
    till, complaints = Till(), list[str]()
    with static_files() as origin:
        async with (
            serve(payer(till)) as env,
            site(env.client, interfaces=AG_UI, origins=[origin]) as web,
            await chromium.new_context(viewport={"width": 700, "height": 760}) as context,
        ):
            context.set_default_timeout(20_000)
            page = await opened(context, f"{origin}/?server={web.url}&agent=payer", complaints)
            await page.fill("#text", "Pay.")
            await page.press("#text", "Enter")
            await page.wait_for_function(PARTIAL)
            await page.reload()
            await page.get_by_text(TEXT).wait_for()
            other = await opened(context, page.url, complaints)
            for each in (page, other):
                await each.get_by_text("Pay 5 €").wait_for()
            await page.fill(".interrupt textarea", '{"amount": 7}')
            await page.get_by_role("button", name="Approve").click()
            for each in (page, other):
                await each.get_by_text("Done.").wait_for()
                assert await each.locator(".interrupt").count() == 0
                assert await each.locator("#messages > *").count() == 4
            assert (till.paid, complaints) == ([7], [])
