"""The shortest run of chaos; `make test-full` has a longer one, and `make chaos` the longest."""

from pathlib import Path

import pytest

from tests.chaos.chaos_plan import SHORTEST, draw_plan
from tests.chaos.chaos_run import run_chaos

SEED = 1


@pytest.mark.timeout(540)
async def test_a_few_kills_and_outages_lose_nothing(tmp_path: Path) -> None:
    """Workers and the server are killed, the model and the store fail, the database is emptied: all calls are paid."""
    plan = draw_plan(SEED, SHORTEST)
    figures = await run_chaos(plan, tmp_path)
    assert figures.problems == {}, figures.details
    assert figures.invocations == len(plan.scripts)
    assert figures.answers_accepted == sum(len(script.call_ids) for script in plan.scripts)
    assert (figures.workers_killed, figures.servers_killed) == (SHORTEST.kills, 1)
