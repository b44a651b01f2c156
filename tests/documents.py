"""The pages of the documentation, and the code in them."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

DOCS = ROOT / "docs"
HOW_TO = DOCS / "how-to"
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> Iterator[Path]:
    """Yield all pages, including those outside of `docs`."""
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")
    yield from sorted(DOCS.rglob("*.md"))
    yield from sorted((ROOT / "examples").glob("*/README.md"))


def how_to(name: str) -> str:
    """Return the text of a how-to page."""
    return (HOW_TO / f"{name}.md").read_text()


def section(text: str, heading: str) -> str:
    """Return the text below a heading, such as `## Install`, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    below = text.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{1,{level}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
