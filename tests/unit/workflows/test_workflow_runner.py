"""Workers free the memory of a workflow without a garbage collection."""

import gc

import pytest
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner

from tests.paths import HISTORIES
from waystation.lazy_exports import pause_collection
from waystation.replay import Recording
from waystation.storage import Blobs, offloading
from waystation.worker import workflow_runner
from waystation.worker.workflow_runner import ClearingWorkflowRunner
from waystation.workflows.invocation import AgentInvocation


def list_workflows() -> list[AgentInvocation]:
    """Return the workflows in memory, which may also be those of other tests."""
    return [thing for thing in gc.get_objects() if type(thing) is AgentInvocation]


async def count_remaining(history: str, runner: WorkflowRunner) -> int:
    """Replay a history of the corpus, and return how many workflows remain in memory after their removal."""
    replayer = Replayer(
        workflows=[AgentInvocation], unsandboxed_workflow_runner=runner, data_converter=offloading(Blobs())
    )
    recording = await Recording.read(HISTORIES / f"{history}.json")
    earlier = list_workflows()
    with pause_collection():
        await replayer.replay_workflow(recording.histories[0])
        return len(list_workflows()) - len(earlier)


@pytest.mark.parametrize("history", ["one-tool", "tool-raises", "invalid-input", "parallel-tools"])
async def test_a_removed_workflow_is_freed_at_once(history: str) -> None:
    assert await count_remaining(history, ClearingWorkflowRunner()) == 0


async def test_a_users_workflow_is_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner knows Waystation's workflows by their names."""
    monkeypatch.setattr(workflow_runner, "WORKFLOW", "Another")
    assert await count_remaining("one-tool", ClearingWorkflowRunner()) == 1


async def test_the_sdks_runner_leaves_workflows_to_the_garbage_collector() -> None:
    """This is why `ClearingWorkflowRunner` exists. If the test fails, remove both."""
    assert await count_remaining("one-tool", UnsandboxedWorkflowRunner()) == 1
