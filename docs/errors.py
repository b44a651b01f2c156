"""Write `docs/reference/errors.md`, the catalogue of errors: `python -m docs.errors`.

The sources are parsed, not imported, because some modules need further packages.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "waystation"
PAGE = Path(__file__).parent / "reference" / "errors.md"
ROOT = "WaystationError"
INTRODUCTION = """\
# Errors

This page lists every error class of Waystation, with its meaning and what to do. All of them are subclasses of
`WaystationError`. The message of an error names the value, the cause and the remedy. Use this page if you know only
the name of the class: from a log, from Temporal's Web UI, where it is the type of an `ApplicationError`, or from the
field `error_type` of a tool's response.

`MissingExtra` is not in the list, because it is an `ImportError`: install the extra that the message names. Errors of
the Temporal SDK, such as `RPCError` if the server cannot be reached, are not wrapped. `python -m docs.errors`
generates the page from the docstrings.
"""


@dataclass
class ErrorClass:
    """A class of the tree."""

    name: str
    module: str
    bases: list[str]
    paragraphs: list[str]
    """Those of the docstring, without line breaks: the meaning, what to do, and further ones."""
    children: list["ErrorClass"] = field(default_factory=list)


def read_errors(package: Path = PACKAGE) -> ErrorClass:
    """Return the root of the tree of public error classes."""
    # `rglob` does not follow links, such as that of `tools`.
    folders = [package, *(path for path in package.iterdir() if path.is_symlink())]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    found = [error for path in paths for error in _classes(path, package)]
    by_name = {error.name: error for error in reversed(found)}  # `waystation.core` comes first
    for error in sorted(found, key=lambda error: error.name):
        if base := next((base for base in error.bases if base in by_name), None):
            by_name[base].children.append(error)
    return by_name[ROOT]


def _classes(path: Path, package: Path) -> Iterator[ErrorClass]:
    module = ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
    # The command line catches its own error.
    if module.startswith(f"{package.name}.cli"):
        return
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            text = ast.get_docstring(node) or ""
            paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
            yield ErrorClass(node.name, module, [ast.unparse(base) for base in node.bases], paragraphs)


def list_errors(error: ErrorClass) -> Iterator[ErrorClass]:
    """Yield the errors below one, each before its own children."""
    for child in error.children:
        yield child
        yield from list_errors(child)


def format_page() -> str:
    """Return the text of the page: one section for each branch of the tree, and those without a branch at the end."""
    root = read_errors()
    parts = [INTRODUCTION]
    branches = [child for child in root.children if child.children]
    others = [child for child in root.children if not child.children]
    for branch in branches:
        parts.append(f"## {branch.name}\n\n{_format_text(branch)}")
        parts += [f"### {error.name}\n\n{_format_text(error)}" for error in list_errors(branch)]
    parts.append("## Other errors\n")
    parts += [f"### {error.name}\n\n{_format_text(error)}" for error in others]
    return "\n".join(parts)


def _format_text(error: ErrorClass) -> str:
    meaning, *advice = error.paragraphs
    return f"{meaning}\n\n**What to do:** {''.join(advice[:1])}\n\nDefined in `{error.module}`.\n"


if __name__ == "__main__":
    PAGE.write_text(format_page(), encoding="utf-8")
    print(PAGE)
