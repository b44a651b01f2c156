"""Long lists are shown with a pager in a terminal, and short ones are not."""

import os

import pytest

from tests.terminals import in_terminal

PROGRAM = """
import sys
from waystation.cli.output import Output
out = Output()
with out.pages():
    for number in range(int(sys.argv[1])):
        out.line(f"line {number}")
"""
PAGER = {**os.environ, "PAGER": "sed 's/^/paged: /'"}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "paged"), [(3, False), (100, True)])
async def test_only_text_longer_than_the_terminal_is_paged(count: int, paged: bool) -> None:
    """A text longer than the terminal goes completely to the pager that the user has set."""
    code, screen = await in_terminal("-c", PROGRAM, str(count), typed=[], environment=PAGER)
    lines = [line for line in screen.splitlines() if "line" in line]
    assert code == 0, screen
    assert lines == [f"{'paged: ' * paged}line {number}" for number in range(count)]
