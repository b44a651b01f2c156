"""The website of the documentation."""

import json
from pathlib import Path

from docs.website import build, find_problems, navigation
from tests.documents import DOCS


def test_the_website_builds_without_broken_links(tmp_path: Path) -> None:
    """Zensical builds it in strict mode; each link leads to a page, and nothing is loaded from other hosts."""
    assert build(tmp_path) == []


def test_the_navigation_has_every_page() -> None:
    """The navigation has every page that the index lists."""
    listed = json.dumps(navigation())
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if f'"{page}"' not in listed} == set()


def test_links_that_lead_nowhere_are_problems(tmp_path: Path) -> None:
    """The same holds for anchors that do not exist, and for what a page loads from another host."""
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<h2 id="top">Top</h2><a href="a/#here"></a><a href="#top"></a><a href="https://example.com"></a>'
        '<a href="b/"></a><a href="a/#there"></a><script src="https://example.com/x.js"></script>'
    )
    (tmp_path / "a" / "index.html").write_text('<h2 id="here">Here</h2>')
    assert find_problems(tmp_path) == [
        "index.html links to a/#there, which does not exist",
        "index.html links to b/, which does not exist",
        "index.html loads https://example.com/x.js",
    ]
