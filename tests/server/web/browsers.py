"""Open pages in a browser that is logged in."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import Browser, Page

from tests.server.web.sites import Site

PHONE, DESK = 320, 1200


@contextlib.asynccontextmanager
async def opened(
    chromium: Browser, web: Site, width: int = DESK, **options: Any
) -> AsyncIterator[tuple[Page, list[str]]]:
    """Open a browser that is logged in; return its page and its complaints."""
    context = await chromium.new_context(base_url=web.url, viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(10_000)
    complaints: list[str] = []
    try:
        page = await context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        await page.goto(web.links[-1])
        yield page, complaints
    finally:
        await context.close()
