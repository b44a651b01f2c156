"""Every history ever kept of a session, and of what it began, replays against today's code."""

import json

import pytest
from temporalio.client import WorkflowHistory

from tests.corpus.conversations import CONVERSATIONS, HERE
from waystation.testing import assert_replays

NAMES = sorted(path.name.removesuffix(".json") for path in HERE.glob("*.json"))


def test_every_conversation_is_kept() -> None:
    """A new behaviour needs its history: `python -m tests.corpus.record`."""
    assert set(CONVERSATIONS) <= {name.rpartition(".")[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
async def test_a_kept_history_of_a_conversation_replays(name: str) -> None:
    """In the production runner and in the strict sandbox."""
    kept = json.loads((HERE / f"{name}.json").read_text())
    await assert_replays(WorkflowHistory.from_json(kept["id"], kept["history"]))
