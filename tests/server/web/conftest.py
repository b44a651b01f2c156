"""A real browser, without a window."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.paths import ROOT

PLACE = ROOT / ".node" / "chromium"


def program() -> Path:
    """Return the Chromium that `make test` installs, or the one that WAYSTATION_CHROMIUM names."""
    found = Path(os.environ.get("WAYSTATION_CHROMIUM") or PLACE / "chromium")
    assert found.is_file(), f"There is no {found}; `make .node/.stamp` installs a Chromium."
    return found


def environment() -> dict[str, str | float | bool]:
    """Return the libraries and fonts that Chromium needs on a bare machine."""
    libraries = ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), str(PLACE / "lib"))))
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "FONTCONFIG_PATH": str(PLACE)}


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """A browser that all tests of this process share."""
    async with async_playwright() as playwright:
        # Its sandbox refuses to work for root; it sees nothing but our own pages.
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=program(), args=args, env=environment())
        yield browser
        await browser.close()
