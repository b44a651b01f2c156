"""Every kept history replays with the current code, and has the recorded workflow state."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from tests.corpus.scenarios import SCENARIOS
from tests.tiers import sampled
from waystation.core.approval import PendingCall
from waystation.core.errors import ForeignHistory
from waystation.core.log import question_of
from waystation.history import build_log, decode_events
from waystation.replay import replay
from waystation.storage import Blobs
from waystation.storage.driver import offloading
from waystation.testing import assert_replays

HERE = Path(__file__).parent
CONVERTER = offloading(Blobs(HERE / "store"))
NAMES = sorted(path.name.removesuffix(".held.json") for path in HERE.glob("*.held.json"))


def kept(name: str) -> tuple[WorkflowHistory, dict[str, Any]]:
    """Return a kept history and the state of its workflow."""
    held = json.loads((HERE / f"{name}.held.json").read_text())
    return WorkflowHistory.from_json(held.pop("id"), (HERE / f"{name}.json").read_text()), held


def test_every_scenario_is_kept() -> None:
    """Every scenario has a kept history; `python -m tests.corpus.record` adds a missing one."""
    assert set(SCENARIOS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_a_kept_history_replays(name: str) -> None:
    """The history replays with the production runner."""
    history, _ = kept(name)
    await replay(history, converter=CONVERTER)


@pytest.mark.parametrize("name", sampled(NAMES, 12))
async def test_a_kept_history_replays_without_clocks_and_randomness(name: str) -> None:
    """The history replays in the strict sandbox, which takes most of the time."""
    history, _ = kept(name)
    await assert_replays(history, CONVERTER)


async def test_a_history_without_its_beginning_is_refused() -> None:
    """A history that lacks the start of its workflow is refused, because the SDK would wait for the start forever."""
    history, _ = kept("one-tool")
    with pytest.raises(ForeignHistory, match="does not begin with the start"):
        await replay(WorkflowHistory("one-tool", history.events[1:]))


async def test_a_history_without_a_workflow_task_replays() -> None:
    """A history without workflow tasks replays at once, although the SDK would wait for the first task forever."""
    history, _ = kept("one-tool")
    for length in (1, 2, 3):
        await replay(WorkflowHistory("one-tool", history.events[:length]))


@pytest.mark.parametrize("name", NAMES)
async def test_a_kept_history_has_the_workflows_state(name: str) -> None:
    """The projection equals the state of the workflow, without a server."""
    history, held = kept(name)
    log = build_log([WorkflowHistory(history.workflow_id, await decode_events(history.events, CONVERTER))])
    events = [event.to_json() for event in log.state.events]
    # Like a reader, ignore fields that a later version added.
    for call in held["pending"]:
        call |= {"run": log.state.run, "question": question_of(log.state.calls[call["function_call_id"]])} | call
    held["pending"] = [PendingCall.model_validate(call) for call in held["pending"]]
    assert {"events": events, "state": log.state.session.values, "pending": log.state.pending()} == held
