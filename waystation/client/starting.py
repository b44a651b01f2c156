"""Start the workflow of an invocation."""

from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy

from waystation.client.large import sending
from waystation.client.search_attributes import at_start
from waystation.core import summary
from waystation.core.payload import JsonObject
from waystation.core.wire import WORKFLOW, InvocationInput

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient


async def begin(
    client: "AgentClient", id: str, given: JsonObject, memo: JsonObject | None = None
) -> WorkflowHandle[Any, Any]:
    """Start an invocation with an input.

    Raises:
        WorkflowAlreadyStartedError: There is, or was, one of that id.
    """
    started = InvocationInput.model_validate(given)
    said = started.message if isinstance(started.message, str) else "…"
    with sending(given):
        return await client.temporal.start_workflow(
            WORKFLOW,
            given,
            id=id,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            task_queue=client.task_queue,
            static_summary=summary.clip(f"{started.agent}: {said}"),
            search_attributes=at_start(started) if await client.searchable() else None,
            memo=memo,
        )
