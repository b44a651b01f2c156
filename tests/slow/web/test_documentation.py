"""The website of the documentation in a real browser."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.async_api import Browser

from docs.website import build
from tests.unit.test_documents import QUESTIONS

RESULTS = """() => {
    const links = [];
    const visit = root => root.querySelectorAll('*').forEach(element => {
        if (element.shadowRoot) visit(element.shadowRoot);
        if (root !== document && element.tagName === 'A') links.push(element.href);
    });
    visit(document);
    return links;
}"""
"""Returns the links of the search results, which are in a shadow tree."""


class Files(SimpleHTTPRequestHandler):
    """Serves files without writing to standard error."""

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def website(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the built website."""
    folder = tmp_path_factory.mktemp("website")
    assert build(folder) == []
    handler = functools.partial(Files, directory=str(folder / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


async def test_one_search_finds_the_answer_to_an_everyday_question(website: str, chromium: Browser) -> None:
    """The first three results have the page, or the page with all questions; nothing else is requested."""
    page = await chromium.new_page()
    requested = list[str]()
    page.on("request", lambda request: requested.append(request.url))
    await page.goto(website)
    await page.keyboard.press("/")
    missing = []
    for question, (name, _) in QUESTIONS.items():
        await page.keyboard.type(question)
        links = list[str]()
        while not links:  # what is typed before the index has been loaded finds nothing
            await page.keyboard.press("Control+a")
            await page.keyboard.press("Delete")
            await page.wait_for_function(f"!({RESULTS})().length")
            await page.keyboard.type(question)
            await page.wait_for_timeout(500)
            links = [link.removeprefix(website) for link in await page.evaluate(RESULTS)]
        if not any(link.startswith((f"how-to/{name}/", "how-do-i/")) for link in links[:3]):
            missing.append((question, links[:3]))
    assert missing == []
    assert {url for url in requested if not url.startswith((website, "data:", "blob:"))} == set()


@pytest.mark.parametrize("path", ["", "how-do-i/", "reference/python/", "reference/cli/", "how-to/deploy/"])
async def test_a_page_fits_a_phone(website: str, chromium: Browser, path: str) -> None:
    """A page does not scroll sideways on a phone."""
    page = await chromium.new_page(viewport={"width": 320, "height": 640})
    await page.goto(f"{website}{path}")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
