"""Rules of CONTRIBUTING.md that a machine can check: names, sizes and words."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT, syntax_tree

FOLDERS = ("waystation", "workflows", "activities", "tools")
LINKS = {ROOT / "waystation" / name for name in ("workflows", "activities", "tools")}
MODULES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not LINKS & set(path.parents) and not path.name.startswith("__")
]
ADK_MODULES = {
    "waystation/apps/app.py": "google.adk.apps.app",
    "waystation/events/event.py": "google.adk.events.event",
    "waystation/models/registry.py": "google.adk.models.registry",
    "waystation/sessions/session.py": "google.adk.sessions.session",
    "waystation/sessions/state.py": "google.adk.sessions.state",
}
"""Modules with a basename that occurs again, because ADK programs import them by this name."""
UNREAD = {ROOT / "tests" / "unit" / "test_style.py"}
"""The page with the phrases, which would match itself."""
MAX_METHODS = 20
MAX_ATTRIBUTES = 16
MAX_FUNCTION_LINES = 60
BANNED = {
    r"who(m)?ever\b": "anyone who, or the person's role",
    r"whom\b": "who, or the person's role",
    r"meanwhile\b": "in the meantime, while",
    r"at hand\b": "current, available",
    r"(is|are|was|were|be|been|being) told\b": "is notified, receives, is asked to",
    r"stand-ins?\b": "fake, scripted",
    r"noticeboard\b": "visibility",
    r"look(s|ed|ing)? into\b": "verify, check",
    r"tak(es?|en|ing) (it|a call|calls|them) on\b": "claim",
    r"given back\b": "released, returned",
    r"otherwise than\b": "differently from",
    r"(go|goes|went|going) on\b": "continue",
    r"under way\b": "in flight, in progress",
    r"of which\b": "whose, with",
    r"for want of\b": "without",
    r"as it stands\b": "unchanged",
    r"be it\b": "whether",
    r"nobody need\b": "no one needs to",
    r"(hears?|heard) of\b": "learn of, receive",
    r"(?<!there )(is|are) no (?!longer|more|less|one)[a-z]+": "is not a",
    r'(?<=""")(what|whose|whom|of what|of which) ': "a noun or a verb first",
    r"(colour|behaviour|favour|licence|centre)\w*": "American spelling",
    r"(?!recognise url)\w*(author|recogn|summar|normal|initial|serial|organ|categor)is\w+": "American spelling",
}
"""Phrases of an earlier dialect in lower case, each with what to write instead. At most 25."""


def test_a_module_name_occurs_once() -> None:
    """A module name leads to one file; ADK's names are the exception."""
    places = defaultdict[str, list[str]](list)
    for path in MODULES:
        if (place := path.relative_to(ROOT).as_posix()) not in ADK_MODULES:
            places[path.stem].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


ADK_CLASSES = {"Event", "EventActions", "EventCompaction", "LlmRequest", "Session"}
"""Classes whose name occurs again: ADK has the name, and recorded types and clients need it, too."""


def test_a_class_name_occurs_once() -> None:
    """A class name identifies one class, so an import shows which class is meant."""
    places = defaultdict[str, list[str]](list)
    for path in MODULES:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ClassDef) and node.name not in ADK_CLASSES:
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def stem(name: str) -> str:
    """Return the common part of names such as `answer`, `answers`, `answered` and `answering`."""
    endings = ("ations", "ation", "ings", "ing", "ies", "ers", "er", "ed", "es", "s", "e", "y")
    return next((name[: -len(end)] for end in endings if name.endswith(end) and len(name) - len(end) > 2), name)


def test_siblings_differ_in_more_than_an_ending() -> None:
    """Names of siblings differ in more than an ending: `call` next to `calls` does not tell a reader which is which."""
    siblings = defaultdict[tuple[Path, str], set[str]](set)
    for path in MODULES:
        siblings[path.parent, "_".join(map(stem, path.stem.split("_")))].add(path.stem)
    assert {key: names for key, names in siblings.items() if len(names) > 1} == {}


def classes_and_functions() -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in MODULES:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}: {node.name}", node


def test_a_class_has_a_bounded_size() -> None:
    """A class has at most 20 methods and sets at most 16 attributes."""
    large = {}
    for name, node in classes_and_functions():
        if isinstance(node, ast.ClassDef):
            methods = sum(
                isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("__")
                for item in node.body
            )
            attributes = {
                item.attr
                for item in ast.walk(node)
                if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
                if isinstance(item.value, ast.Name) and item.value.id == "self"
            }
            if methods > MAX_METHODS or len(attributes) > MAX_ATTRIBUTES:
                large[name] = (methods, len(attributes))
    assert large == {}


def test_a_function_fits_on_a_screen() -> None:
    """A function has at most 60 lines, without parameters and docstring."""
    long = {}
    for name, node in classes_and_functions():
        if not isinstance(node, ast.ClassDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > MAX_FUNCTION_LINES:
                long[name] = lines
    assert long == {}


def read_texts() -> dict[Path, str]:
    """Return everything that people read: code, tests, pages and documents."""
    tests = [path for top in ("tests", "verification") for path in (ROOT / top).rglob("*.py") if path not in UNREAD]
    pages = [*(ROOT / "waystation").rglob("*.html"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    places = [*MODULES, *tests, *pages]
    return {path.relative_to(ROOT): path.read_text() for path in places if not LINKS & set(path.parents)}


def find_phrases(text: str) -> list[str]:
    """Return the phrases in a text, each with its line and what to write instead."""
    text, phrases = text.lower(), re.compile(rf"\b(?:{'|'.join(BANNED)})")  # eight times as fast as one after another
    return [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}; instead: {instead}"
        for match in phrases.finditer(text)
        for phrase, instead in BANNED.items()
        if re.compile(phrase).match(text, match.start())
    ]


def test_no_phrase_of_the_old_dialect_is_used() -> None:
    """The table has a replacement for each phrase."""
    assert {path: found for path, text in read_texts().items() if (found := find_phrases(text))} == {}


@pytest.mark.parametrize(
    "text",
    ["x\nWhom to ask", "They were told.", '"""What it is."""', "It is no tool.", "The colours.", "It is authorised."],
)
def test_a_phrase_is_found_with_its_replacement(text: str) -> None:
    """Letter case and the place in the text do not matter."""
    assert find_phrases(text)
    assert find_phrases("There is no tool. It is no longer pending. It continues, with the colors of the parent.") == []


def test_the_list_of_phrases_stays_short() -> None:
    """The list has at most 25 phrases, because reviewers read for the rest."""
    assert len(BANNED) <= 25
