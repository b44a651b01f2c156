"""A real browser without a window, and an identity provider for logins."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.fakes.openid import FakeOpenId
from tests.paths import ROOT
from tests.server.web.logins import GRANT, provider_installed
from tests.unit.identity.conftest import Installation

PLACE = ROOT / ".node" / "chromium"


def program() -> Path:
    """Return the Chromium that `make test` installs, or the one that WAYSTATION_CHROMIUM names."""
    path = Path(os.environ.get("WAYSTATION_CHROMIUM") or PLACE / "chromium")
    assert path.is_file(), f"There is no {path}; `make .node/.stamp` installs a Chromium."
    return path


def environment() -> dict[str, str | float | bool]:
    """Return the libraries and fonts that Chromium needs on a bare machine."""
    libraries = ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), str(PLACE / "lib"))))
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "FONTCONFIG_PATH": str(PLACE)}


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser that all tests of this process share."""
    async with async_playwright() as playwright:
        # Its sandbox refuses to work for root; it sees nothing but our own pages.
        args = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP mallory.example 127.0.0.1"]
        # Like other browsers, which let pages send requests to this machine without asking the user.
        args += ["--disable-features=LocalNetworkAccessChecks"]
        browser = await playwright.chromium.launch(executable_path=program(), args=args, env=environment())
        yield browser
        await browser.close()


@pytest.fixture
def openid(own_openid: FakeOpenId) -> FakeOpenId:
    """Run an identity provider."""
    return own_openid


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose gateway uses the provider for logins."""
    return provider_installed(tmp_path, openid, f"[oidc.grant]\n{GRANT}")
