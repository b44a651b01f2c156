"""Replays that hang or crash."""

import sys
from pathlib import Path

from tests.server.recordings.test_gate import PAYS, TROUBLE, clerk, own_server, parked
from waystation.embedded import EmbeddedServer
from waystation.replay import gate
from waystation.testing import AgentEnvironment

__all__ = ["own_server"]


async def test_a_replay_that_hangs_or_crashes_is_reported_like_any_other(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its process is replaced, and the others are looked at."""
    program = tmp_path / "trouble.py"
    program.write_text(TROUBLE)
    async with AgentEnvironment(clerk(*[PAYS] * 4), server=own_server) as env:
        await parked(env, "one", "hangs", "crashes", "two")
        report = await gate(env.client, processes=1, limit_s=10, program=[sys.executable, str(program)])
    assert (report.passes, dict(report.counts)) == (False, {"replays": 2, "unchecked": 2})
    assert {found.id: found.problem for found in report.findings} == {
        "hangs": "Its replay hung for 10 s.",
        "crashes": "Its replay crashed: out of memory",
    }
