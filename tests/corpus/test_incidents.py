"""A stored incident replays, and its log equals the one that its workflow recorded."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.paths import HISTORIES
from waystation.core.payload import JsonObject
from waystation.replay import Recording
from waystation.testing import assert_keeps_replaying
from waystation.testing.checks import find_misreadings


@pytest.mark.parametrize("name", ["confirmation-approved", "confirmation-left-waiting", "model-fails", "called-agent"])
async def test_stored_incidents_keep_replaying(name: str) -> None:
    """Completed, waiting and failed invocations replay."""
    await assert_keeps_replaying(HISTORIES / f"{name}.json")


def _result(held: JsonObject) -> None:
    """Change the recorded result."""
    last = held["events"][-1]["workflowExecutionCompletedEventAttributes"]["result"]["payloads"][0]
    changed = json.loads(base64.b64decode(last["data"])) | {"text": "Nothing was paid."}
    last["data"] = base64.b64encode(json.dumps(changed).encode()).decode()


def _tool(held: JsonObject) -> None:
    """Change the tool of a recorded call."""
    scheduled = [event.get("activityTaskScheduledEventAttributes", {}) for event in held["events"]]
    next(each for each in scheduled if each.get("activityType") == {"name": "clerk.pay"})["activityType"] = {
        "name": "a.b"
    }


@pytest.mark.parametrize(("change", "problem"), [(_result, "Nothing was paid"), (_tool, r"now: call pay\(amount=5\)")])
async def test_a_difference_is_described(change: Callable[[JsonObject], None], problem: str, tmp_path: Path) -> None:
    """A difference is described in terms of agents."""
    held = json.loads((HISTORIES / "confirmation-approved.json").read_text())
    change(held)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(held))
    with pytest.raises(AssertionError, match=problem):
        await assert_keeps_replaying(file)


async def test_a_result_that_reads_differently_is_noticed() -> None:
    """A log that ends too early is detected."""
    recording = await Recording.read(HISTORIES / "one-tool.json")
    assert list(find_misreadings(recording)) == []
    assert "text is '3'" in next(find_misreadings(replace(recording, log=recording.after(1))), "")


async def test_a_missing_wait_is_noticed() -> None:
    """A log in which a pending call appears as refused is detected."""
    recording = await Recording.read(HISTORIES / "confirmation-left-waiting.json")
    assert list(find_misreadings(recording)) == []
    recording.log.state.calls["fc-1"].gate = "refused"
    assert "fc-1" in next(find_misreadings(recording), "")
