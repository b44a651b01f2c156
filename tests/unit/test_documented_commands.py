"""The commands and imports of every page are valid, even if they do not run."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.documents import blocks, pages
from tests.paths import ROOT
from waystation.cli.program import app
from waystation.worker.main import parse_options

NAME = r"[A-Z_]+=\S*"
COMMAND = re.compile(rf"^(?:\$ )?(?:(?:{NAME}|exec|sudo) )*(?:\S*/)?waystation (.*)$")
INSTALLS = "--install-completion"
"""The option with an effect during parsing: it changes files of the user."""
ENDS = ("|", ">", ">>", "<", "&&", "||", ";", "&", "2>")
"""Shell operators that end a command."""
PAGES = {str(page.relative_to(ROOT)): page for page in pages() if page.name != "CHANGELOG.md"}


def list_commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each Waystation command in the blocks of a page, without the name of the program."""
    for language in ("sh", "bash", "console", "text", "powershell"):
        for block in blocks(page.read_text(), language):
            for line in block.replace("\\\n", " ").splitlines():
                if (match := COMMAND.match(line.strip())) and (language != "text" or not re.search(r": |\.$", line)):
                    words = shlex.split(match[1], comments=True)
                    end = next((index for index, word in enumerate(words) if word in ENDS), len(words))
                    if INSTALLS not in words:
                        yield words[:end]


def parse(words: list[str]) -> None:
    """Parse a command as the command line does, without running it.

    Raises:
        ClickException: A command, an option or an argument is not valid.
    """
    group: Any = typer.main.get_command(app)
    with group.make_context("waystation", list(words), help_option_names=[]) as context:
        rest = [*context._protected_args, *context.args]
        while rest:
            name, command, rest = group._click_resolve_command(context, rest)
            if name == "worker":
                parse_options(rest, "waystation worker")
                return
            context = command.make_context(name, rest, parent=context)
            group, rest = command, [*context._protected_args, *context.args]


COMMANDS = {shlex.join(words): words for page in PAGES.values() for words in list_commands(page)}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_is_valid(command: str) -> None:
    """The command exists and has the options and arguments on the page."""
    parse(COMMANDS[command])


@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if blocks(page.read_text(), "python")])
def test_the_programs_of_a_page_import_existing_names(page: str) -> None:
    """The blocks are valid Python, and each name that they import from this package exists."""
    for block in blocks(PAGES[page].read_text(), "python"):
        tree = ast.parse(block)
        imports: list[ast.stmt] = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "waystation"
        ]
        exec(compile(ast.Module(imports, type_ignores=[]), page, "exec"), {})
