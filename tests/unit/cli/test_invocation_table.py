"""The table of `waystation list` fits the terminal, and its IDs can be copied."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from waystation.cli.invocation_table import write_entries
from waystation.cli.output import Output
from waystation.client import InvocationEntry

LONG = "session/waystation/dana%40example.com/a-long-conversation/3"


def entry(id: str, **fields: Any) -> InvocationEntry:
    """Return an invocation that has been running for two hours."""
    began = datetime.now(UTC) - timedelta(hours=2)
    usual = {"agent": "refund_agent", "user_id": "dana", "tenant": None, "status": "running", "ended_at": None}
    return InvocationEntry(id=id, started_at=began, **{**usual, **fields})


def table_lines(width: int, *entries: InvocationEntry) -> list[str]:
    """Return the lines of a list in a terminal with this width."""
    stream = io.StringIO()
    out = Output(page=width)
    out.console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    write_entries(out, entries)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_each_invocation_has_a_row(width: int) -> None:
    """A row has ID, agent, user, status and age, and fits the terminal."""
    held = entry("b", status="held", holds=({"reason": "model_unavailable"},))
    lines = table_lines(width, entry("refund_agent-048434f148b9"), held)
    assert max(map(len, lines)) <= width
    first = next(line for line in lines if "048434f148b9" in line)
    assert first.split() == ["refund_agent-048434f148b9", "refund_agent", "dana", "running", "2", "h"]
    assert "held, the model is" in " ".join(" ".join(lines).split())


def test_a_long_id_has_its_own_line() -> None:
    """An ID is never cut or broken over lines."""
    lines = table_lines(80, entry(LONG), entry("a"))
    assert lines[0] == LONG
    assert lines[1].strip() == "refund_agent, dana, running, 2 h"


def test_ids_cannot_control_the_terminal() -> None:
    """Control characters in the names of others are escaped."""
    assert "\x1b" not in "\n".join(table_lines(80, entry("a\x1b[2J", agent="b\x1b", user_id="\x1bc")))
