"""The command `waystation top` counts invocations by agent and status."""

from datetime import UTC, datetime, timedelta

from waystation.cli.overview import count_by_agent
from waystation.client import InvocationEntry

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def entry(agent: str | None, status: str, age_s: float) -> InvocationEntry:
    """Return an invocation that started so many seconds ago."""
    ended = None if status in ("running", "waiting", "held") else NOW
    began = NOW - timedelta(seconds=age_s)
    return InvocationEntry(
        id="i", agent=agent, user_id="u", tenant=None, status=status, started_at=began, ended_at=ended
    )


def test_invocations_are_counted_by_agent_and_status() -> None:
    """Timeouts and terminations count as failures; the oldest open invocation gives the age."""
    entries = [
        entry("pay", "waiting", 60),
        entry("pay", "running", 5),
        entry("pay", "timed_out", 900),
        entry("pay", "failed", 900),
        entry(None, "completed", 10),
    ]
    assert count_by_agent(entries, NOW.timestamp()) == {
        "pay": {"running": 1, "waiting": 1, "held": 0, "failed": 2, "completed": 0, "oldest_s": 60.0},
        "": {"running": 0, "waiting": 0, "held": 0, "failed": 0, "completed": 1, "oldest_s": None},
    }
