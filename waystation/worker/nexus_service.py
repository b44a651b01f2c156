"""A Nexus service with which workflows of other namespaces, in any language, run agents."""

from typing import Any

from nexusrpc import HandlerError, HandlerErrorType
from nexusrpc.handler import service_handler
from pydantic import ValidationError
from temporalio import nexus
from temporalio.common import Priority, RawValue

from waystation.core import ids
from waystation.core.contract import TASK_TIMEOUT, WORKFLOW, InvocationInput
from waystation.core.payload import describe_faults
from waystation.workflows.ports import raw

_ENGINE_FIELDS = frozenset(
    {"carried", "depth", "joined_requesters", "origin", "root", "session", "signed_request", "standing"}
)
_REFUSED = _ENGINE_FIELDS | {"fork"}
"""Fields that callers may not set. A fork would read a conversation of the namespace."""


@service_handler(name="waystation")
class AgentService:
    """The service `waystation`, with the operation `run`. Pass an instance to a worker's `nexus_service_handlers`.

    The input of `run` is the input of an invocation, for example `{"agent": "clerk", "message": "hi"}`. Its result is
    the result of the invocation. The workers of the task queue to which the endpoint routes must serve the agent.
    """

    @nexus.workflow_run_operation
    async def run(
        self, context: nexus.WorkflowRunOperationContext, params: dict[str, Any]
    ) -> nexus.WorkflowHandle[Any]:
        """Start an invocation. The request ID is part of its ID, so a repeated request finds the same invocation."""
        if refused := sorted(_REFUSED & params.keys()):
            problem = f"A caller may not set {', '.join(map(repr, refused))}. Start the invocation without them."
            raise HandlerError(problem, type=HandlerErrorType.BAD_REQUEST)
        try:
            started = InvocationInput.model_validate(params)
        except ValidationError as error:
            problem = f"The input of the invocation is invalid: {describe_faults(error)}."
            raise HandlerError(problem, type=HandlerErrorType.BAD_REQUEST) from None
        return await context.start_workflow(
            WORKFLOW,
            raw(started.encode()),
            id=f"{started.agent}-{context.request_id}",
            result_type=RawValue,
            task_timeout=TASK_TIMEOUT,
            priority=Priority(fairness_key=ids.fairness_key(started.app_key, started.user_id)),
        )
