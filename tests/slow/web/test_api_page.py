"""The page on which people try the JSON API, in a browser."""

from playwright.async_api import Browser

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.browsers import PHONE, opened
from tests.server.web.desk import begun, payer
from tests.server.web.sites import site


async def test_the_page_sends_requests_and_shows_the_responses(serve: Serve, chromium: Browser) -> None:
    """It keeps the content security policy, and its requests are those of the person who is logged in."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        invocation, id = await begun(env.client, "payer")
        async with opened(chromium, web, width=PHONE) as (page, complaints):
            await page.goto("/api/v1")
            form = page.locator("form[data-path='/api/v1/calls/{id}/answers']")
            await page.get_by_text("POST /api/v1/calls/{id}/answers").click()
            await form.locator("[name=id]").fill(id)
            await form.locator("[name=body]").fill('{"action": "approve"}')
            await form.get_by_role("button").click()
            await form.get_by_text('"outcome": "accepted"').wait_for()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert complaints == []
        await invocation.result()
        assert till.paid == [5]
