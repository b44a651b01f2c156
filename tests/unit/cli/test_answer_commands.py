"""Each action of the table has a command with the options of its row."""

import pytest
import typer

from waystation.cli.pending_calls import OWN_OPTIONS
from waystation.cli.program import app
from waystation.core.actions import ACTIONS

COMMANDS = [row.name for row in ACTIONS.values() if row.help]


@pytest.mark.parametrize("action", COMMANDS)
def test_a_command_has_only_the_options_of_its_action(action: str) -> None:
    """A command does not have options that its action would ignore."""
    command = typer.main.get_command(app).get_command(None, action.replace("_", "-"))  # type: ignore[attr-defined]  # a group
    names = {parameter.name for parameter in command.params}
    assert names & OWN_OPTIONS == set(ACTIONS[action].options)
    assert command.help == ACTIONS[action].help
