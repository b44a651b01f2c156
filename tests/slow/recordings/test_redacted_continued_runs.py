"""Redacted histories of several runs."""

from pathlib import Path

from tests.server.conftest import Serve
from tests.server.recordings.test_redacted_runs import RULES, redacted
from tests.server.workflows.test_continuing import add, counting, start_with_cuts
from waystation.agents import Agent
from waystation.history import SavedHistory, decode_histories
from waystation.replay import redact, replay


async def test_an_invocation_of_several_runs_replays(serve: Serve, tmp_path: Path) -> None:
    """Log, state and the snapshots between runs stay consistent."""
    async with serve(Agent(name="adder", model=counting(8), tools=[add])) as env:
        invocation = await start_with_cuts(env, "adder", state={"base": "Tweety sings"})
        await invocation.result()
        before = await invocation.log()
        recordings = [await redacted(invocation, rules, tmp_path / "adder.json") for rules in RULES]
        whole = await invocation.saved()
        [plain] = await decode_histories(whole.histories[-1:], invocation.converter)
        last = await redact(SavedHistory([whole.histories[-1]]), ["text"], converter=invocation.converter)
    for recording in recordings:
        assert len(recording.histories) > 2
        await replay(recording)
        assert [str(entry.ref) for entry in recording.log.entries] == [str(entry.ref) for entry in before.entries]
        assert [event.id for event in recording.events] == [event.id for event in before.state.events]
    # Without the earlier runs, the state comes from the snapshot.
    assert b"Tweety" in b"".join(event.SerializeToString() for event in plain.events)
    assert b"Tweety" not in b"".join(event.SerializeToString() for event in last.histories[0].events)
    await replay(last.histories[0])
