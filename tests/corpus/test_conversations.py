"""Every kept history of a session and of its invocations replays with the current code."""

import json

import pytest
from temporalio.client import WorkflowHistory

from tests.corpus.conversations import CONVERSATIONS, HERE
from tests.tiers import sampled
from waystation.replay import replay
from waystation.testing import assert_replays

NAMES = sorted(path.name.removesuffix(".json") for path in HERE.glob("*.json"))


def kept(name: str) -> WorkflowHistory:
    """Return a kept history."""
    file = json.loads((HERE / f"{name}.json").read_text())
    return WorkflowHistory.from_json(file["id"], file["history"])


def test_every_conversation_is_kept() -> None:
    """Every conversation has a kept history; `python -m tests.corpus.record` adds a missing one."""
    assert set(CONVERSATIONS) <= {name.rpartition(".")[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
async def test_a_kept_history_of_a_conversation_replays(name: str) -> None:
    """The history replays with the production runner."""
    await replay(kept(name))


@pytest.mark.parametrize("name", sampled(NAMES, 12))
async def test_a_kept_history_of_a_conversation_replays_without_clocks_and_randomness(name: str) -> None:
    """The history replays in the strict sandbox, which takes most of the time."""
    await assert_replays(kept(name))
