"""The documentation is complete and its links resolve."""

import pkgutil
import re

from tests.documents import DOCS, FENCE, anchors, pages
from tests.paths import ROOT

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def test_every_relative_link_and_anchor_resolves() -> None:
    """A link leads to an existing file, and its anchor to a heading there."""
    broken = []
    for page in pages():
        for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


def test_the_readme_is_short() -> None:
    """A newcomer reads it in a few minutes."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_every_page_is_in_a_table_of_contents() -> None:
    """The index links each page, and the list of decisions links each decision."""
    contents = (DOCS / "index.md", DOCS / "explanation" / "decisions" / "README.md")
    linked = {(page.parent / target).resolve() for page in contents for target, _ in LINK.findall(page.read_text())}
    assert {page for page in DOCS.rglob("*.md") if page != contents[0]} <= linked


def test_every_example_is_linked_from_a_how_to_page() -> None:
    """A reader of a guide finds the program that shows it."""
    text = "".join(page.read_text() for page in (DOCS / "how-to").glob("*.md"))
    examples = {path.parent.name for path in (ROOT / "examples").glob("*/agent.py")}
    assert {name for name in examples if f"/examples/{name})" not in text} == set()


def test_the_sources_name_only_pages_that_exist() -> None:
    """A message that refers to a page still helps after the page moved."""
    sources = [
        path for name in ("waystation", "tools", "activities", "workflows") for path in (ROOT / name).rglob("*.py")
    ]
    named = {page for path in sources for page in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text())}
    assert {page for page in named if not (ROOT / page).exists()} == set()


def test_the_pages_name_only_modules_that_exist() -> None:
    """A path in backquotes, such as `core/budget.py`, leads to a file here or below `waystation`."""
    named = {
        (page.name, path)
        for page in pages()
        if page.parent.name != "tutorial"
        for path in re.findall(r"`((?:[\w-]+/)+\w+\.(?:py|toml|mjs))`", page.read_text())
    }
    missing = {item for item in named if not any((ROOT / top / item[1]).exists() for top in ("", "waystation"))}
    assert missing == set()


def test_the_pages_name_only_python_names_that_exist() -> None:
    """A dotted name in backquotes, such as `waystation.replay.redact`, can be imported."""
    for name in {name for page in pages() for name in re.findall(r"`(waystation(?:\.\w+)+)", page.read_text())}:
        assert pkgutil.resolve_name(name), name
