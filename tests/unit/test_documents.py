"""The documentation is complete and its links resolve."""

import pkgutil
import re

import pytest

from tests.documents import DOCS, FENCE, anchors, how_to, pages, section
from tests.paths import ROOT

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


QUESTIONS = {
    "deploy": ("deploy", "Deploy"),
    "use other models": ("choose-models", "Choose models"),
    "approve from Slack": ("approve-from-slack", "Approve from Slack"),
    "test my agent": ("test-agents", "Test agents"),
    "schedule an agent": ("schedule-invocations", "Schedule invocations"),
    "cancel an invocation": ("cancel", "Cancel"),
    "limit cost": ("limit-budgets", "Limit budgets"),
    "encrypt histories": ("encrypt", "Encrypt histories and stores"),
    "scale workers": ("scale", "Scale"),
    "upgrade": ("upgrade", "Upgrade"),
    "monitor invocations": ("monitor", "Monitor"),
    "get traces": ("trace", "Trace invocations"),
    "call an agent from my workflow": ("work-in-a-temporal-project", "Run an agent in a workflow"),
    "use my activities as tools": ("work-in-a-temporal-project", "Let an agent use your code"),
    "migrate from ADK": ("migrate-from-adk", "Migrate from ADK"),
    "evaluate my agent": ("evaluate-agents", "Evaluate agents"),
    "separate tenants": ("separate-tenants", "Separate tenants"),
    "set rate limits": ("limit-rates", "Limit rates and spending"),
    "delete a user's data": ("delete-a-users-data", "Delete a user's data"),
    "use FastAPI or Django": ("use-a-web-framework", "Use a web framework"),
    "let users upload files": ("hold-conversations", "Give a session a file"),
    "stream a conversation": ("use-a-web-framework", "Use a web framework"),
    "connect MCP servers and APIs": ("connect-toolsets", "Connect toolsets"),
    "use Temporal Cloud": ("use-temporal-cloud", "Use Temporal Cloud"),
    "change an agent while calls wait": ("upgrade", "Change an agent"),
    "back up and restore": ("back-up-and-restore", "Back up and restore"),
}
"""Everyday questions, each with the how-to page and the heading that answers it."""


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
    """The README has few lines, so that a newcomer reads it in a few minutes."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_every_page_is_in_a_table_of_contents() -> None:
    """The index links each page, and the list of decisions links each decision."""
    contents = (DOCS / "index.md", DOCS / "explanation" / "decisions" / "README.md")
    linked = {(page.parent / target).resolve() for page in contents for target, _ in LINK.findall(page.read_text())}
    assert {page for page in DOCS.rglob("*.md") if page != contents[0]} <= linked


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items(), ids=list(QUESTIONS))
def test_an_everyday_question_has_an_answer(question: str, answer: tuple[str, str]) -> None:
    """The page `How do I …?` has a row for it, whose first link leads to the heading that answers it."""
    name, heading = answer
    (row,) = re.findall(rf"^\| … {re.escape(question)}\? \| .*$", (DOCS / "how-do-i.md").read_text(), re.MULTILINE)
    (anchor,) = anchors(f"# {heading}")
    target, linked_anchor = LINK.findall(row)[0]
    assert target == f"how-to/{name}.md"
    assert linked_anchor in {"", anchor}
    text = how_to(name)
    assert anchor in anchors(text)
    assert linked_anchor or text.startswith(f"# {heading}\n")


def test_every_example_is_linked_from_a_how_to_page() -> None:
    """Each example is linked from a guide, so that its reader finds the program."""
    text = "".join(page.read_text() for page in (DOCS / "how-to").glob("*.md"))
    examples = {path.parent.name for path in (ROOT / "examples").glob("*/agent.py")}
    assert {name for name in examples if f"/examples/{name})" not in text} == set()


def test_the_sources_name_only_existing_pages() -> None:
    """Pages that messages refer to exist, so a page cannot be moved without them."""
    sources = [
        path for name in ("waystation", "tools", "activities", "workflows") for path in (ROOT / name).rglob("*.py")
    ]
    named = {page for path in sources for page in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text())}
    assert {page for page in named if not (ROOT / page).exists()} == set()


def test_the_pages_name_only_existing_modules() -> None:
    """A path in backquotes, such as `core/budget/budget.py`, leads to a file here or below `waystation`."""
    named = {
        (page.name, path)
        for page in pages()
        if page.parent.name != "tutorial"
        for path in re.findall(r"`((?:[\w-]+/)+\w+\.(?:py|toml|mjs))`", page.read_text())
    }
    missing = {item for item in named if not any((ROOT / top / item[1]).exists() for top in ("", "waystation"))}
    assert missing == set()


def test_the_pages_name_only_existing_python_names() -> None:
    """A dotted name in backquotes, such as `waystation.replay.redact`, exists. Attributes of spans are skipped."""
    texts = [page.read_text() for page in pages() if page.name != "telemetry.md"]
    for name in {name for text in texts for name in re.findall(r"`(waystation(?:\.\w+)+)", text)} - {"waystation.toml"}:
        assert pkgutil.resolve_name(name), name


def test_tests_that_do_not_run_on_a_cluster_are_listed() -> None:
    """The list has each test that starts a development server or uses a server that can skip time."""
    folder = ROOT / "tests" / "server"
    starts = re.compile(r"EmbeddedServer\(|\b(?:skipping_server|serve_and_skip)\b")
    files = {str(file.relative_to(ROOT)) for file in folder.rglob("test_*.py") if starts.search(file.read_text())}
    text = section((DOCS / "reference" / "compatibility.md").read_text(), "## Temporal servers")
    assert set(re.findall(r"`([\w/]*test_\w+\.py)`", text)) == files
