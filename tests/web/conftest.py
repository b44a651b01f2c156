"""A real browser, without a window."""

import os
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The Chromium of this machine, shared by all tests of this process; nothing is downloaded."""
    program = os.environ.get("WAYSTATION_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium here: install one (Debian: apt-get install chromium), or set WAYSTATION_CHROMIUM")
    async with async_playwright() as playwright:
        # Its sandbox refuses to work for root; it sees nothing but our own pages.
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        await browser.close()
