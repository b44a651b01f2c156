"""A short run of chaos; `make chaos` has the long one."""

from pathlib import Path

import pytest

from verification.chaos.chaos_plan import SHORT, draw_plan
from verification.chaos.chaos_run import run_chaos

SEED = 4
"""A seed whose plan uses every channel."""


@pytest.mark.timeout(540)
async def test_chaos_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """Workers and the server are killed, the model and the store fail, the database is emptied: nothing is lost."""
    plan = draw_plan(SEED, SHORT)
    figures = await run_chaos(plan, tmp_path)
    assert figures.problems == {}, figures.details
    assert figures.invocations == len(plan.scripts)
    assert figures.answers_accepted == sum(len(script.call_ids) for script in plan.scripts)
    assert (figures.workers_killed, figures.servers_killed) == (SHORT.kills, 1)
