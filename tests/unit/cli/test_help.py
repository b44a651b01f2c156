"""The output of `waystation --help` has every command in its panel, without importing any command."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from tests.paths import ROOT
from waystation.cli.command_table import COMMANDS
from waystation.cli.program import WIDTH, app

NAMES = [name for panel in COMMANDS.values() for name in panel]


def help_of(*arguments: str) -> str:
    """Return the help of a command."""
    result = CliRunner().invoke(app, [*arguments, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_help_lists_every_command_on_one_line() -> None:
    """Each command has one line, which is not wrapped or cut at 80 columns."""
    lines = help_of().splitlines()
    for title, commands in COMMANDS.items():
        assert f"{title}:" in lines
        assert {f"  {name:{WIDTH}}  {text}" for name, (_, text) in commands.items()} <= set(lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_command_exists(name: str) -> None:
    """The table of the help names the module of the command."""
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]  # a group
    assert command is not None
    assert command.callback is not None or command.commands


def test_the_help_loads_no_command() -> None:
    """The help imports neither Temporal's client nor genai."""
    code = (
        "import sys; from waystation.cli.program import app; app(['--help'], standalone_mode=False); "
        "print(*sorted({'temporalio', 'google.genai', 'waystation.client'} & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stderr.strip() == ""


@pytest.mark.parametrize(("group", "name"), [("encryption", "keys"), ("store", "prune"), ("identity", "init")])
def test_the_only_command_of_a_group_keeps_its_name(group: str, name: str) -> None:
    """Typer would merge a group with its only command, so that the documented name became an argument."""
    assert f"{group} {name}" in help_of(group, name)
