"""Pages report their age if their lists could not be read again."""

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.browsers import opened
from tests.server.web.desk import begun, payer
from tests.server.web.sites import page_of, site
from waystation.web import shared_reads

LATER: Any = SimpleNamespace(monotonic=lambda: time.monotonic() + 12)
"""A clock by which the last read is 12 seconds old."""
AGE, REASON = re.compile(r"As of 1\d s ago\."), "This page is older than usual"


@pytest.mark.parametrize(
    "path", ["/approvals", "/approvals/rows", "/invocations", "/sessions", "{id}", "{id}/overview"]
)
async def test_a_response_says_how_old_it_is(serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Late pages report their age in a sentence, and responses to scripts in the header `Age`. Current pages do not."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web, web.browser() as me:
        invocation, _ = await begun(env.client, "payer")
        path = path.format(id=page_of(invocation))
        fresh = await me.page(path)
        monkeypatch.setattr(shared_reads, "time", LATER)
        late = await me.page(path)
        await invocation.reject()
    assert (fresh.status_code, fresh.headers.get("age"), AGE.search(fresh.text)) == (200, None, None)
    assert late.headers["age"] >= "12"
    is_page = "<html" in late.text
    assert (AGE.search(late.text) is not None, f">{REASON}" in late.text) == (is_page, is_page)


async def test_an_open_page_says_how_old_it_has_become(
    serve: Serve, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Screen readers announce the reason in the page's status, but not every new age. The note disappears again."""
    async with serve(payer(Till(), {"amount": 5})) as env, site(env.client) as web:
        invocation, _ = await begun(env.client, "payer")
        async with opened(chromium, web) as (page, complaints):
            for path in ("/invocations", "/approvals", f"{page_of(invocation)}/state"):
                await page.goto(path)
                with monkeypatch.context() as patched:
                    patched.setattr(shared_reads, "time", LATER)
                    await refresh(page)
                    await page.get_by_text(AGE).wait_for()
                    assert REASON in await page.get_by_role("status").first.inner_text()
                    assert await page.locator("[role=status] #as-of").count() == 0
                await refresh(page)
                await page.get_by_text(AGE).wait_for(state="detached")
            assert complaints == []
        await invocation.reject()


async def refresh(page: Page) -> None:
    """Read the content of the page again, as when its tab is shown."""
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
