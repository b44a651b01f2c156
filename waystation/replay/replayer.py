"""Replay a history against the present workflow code."""

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner

from waystation.core.errors import ForeignHistory, NotReplayable
from waystation.storage import Blobs
from waystation.storage.driver import offloading
from workflows.invocation import AgentInvocation
from workflows.scope import AgentScope
from workflows.session import AgentSession


async def replay(
    history: WorkflowHistory, *, runner: WorkflowRunner | None = None, converter: DataConverter | None = None
) -> None:
    """Replay a history; neither a server nor the agent is needed.

    Args:
        history: Of an invocation, a session or a scope, open or closed.
        runner: How workflow code is run; by default as in production.
        converter: Opens its payloads; by default large ones are looked for where `Blobs` says.

    Raises:
        ForeignHistory: It does not begin with the start of a workflow; the SDK would wait for that for ever.
        NotReplayable: The present code would not do what was recorded.
    """
    if not history.events or not history.events[0].HasField("workflow_execution_started_event_attributes"):
        raise ForeignHistory(f"The history of {history.workflow_id!r} does not begin with the start of a workflow.")
    if all(event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in history.events):
        return  # nobody has taken it up yet; for the first task, too, the SDK would wait for ever
    workflows = [AgentInvocation, AgentScope, AgentSession]
    replayer = Replayer(
        workflows=workflows,
        workflow_runner=runner or UnsandboxedWorkflowRunner(),
        data_converter=converter or offloading(Blobs()),
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    if result.replay_failure:
        raise NotReplayable(f"The history of {history.workflow_id!r} does not replay: {result.replay_failure}")
