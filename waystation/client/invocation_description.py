"""Read the owner, the status and the pending calls of an invocation. None of this needs a running worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)

from waystation.client.search_attributes import PENDING, STATUS
from waystation.core.approval import PendingCall
from waystation.core.contract import HELD, MEMO_HELD, MEMO_PENDING, RUNNING, WORKFLOW, InvocationInput
from waystation.core.errors import ForeignHistory, UnknownInvocation
from waystation.core.payload import describe_faults
from waystation.history import fetch_or_none, read_input, read_memo

WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class InvocationDescription:
    """An invocation's owner and status."""

    id: str
    user_id: str
    """The owner of the invocation: the user that the agent serves."""
    tenant: str | None
    app: str
    agent: str
    status: str
    """One of `waystation.client.STATUSES`, except `open`. An invocation that waits only inside a called agent is
    `running`."""
    started_at: datetime
    """Start time of the current run. A long invocation may have started earlier, because it continues as new."""


async def describe_invocation(temporal: Client, handle: WorkflowHandle[Any, Any]) -> InvocationDescription:
    """Describe an invocation; see `Invocation.describe`."""
    described = await fetch_or_none(handle.describe())
    if described is None:
        raise UnknownInvocation(handle.id)
    if described.workflow_type != WORKFLOW:
        raise ForeignHistory(
            f"{handle.id!r} is not an invocation, but a workflow of the type {described.workflow_type!r}. Pass the ID "
            "of an invocation; `waystation list` lists them."
        )
    # Search attributes may be missing, lack the app, and contain only the beginning of a long name.
    started = await read_invocation_input(temporal, described)
    return InvocationDescription(
        id=handle.id,
        user_id=started.user_id,
        tenant=started.tenant,
        app=started.app,
        agent=started.agent,
        status=name_status(described, await read_memo(described)),
        started_at=described.start_time,
    )


async def read_invocation_input(temporal: Client, described: WorkflowExecutionDescription) -> InvocationInput:
    """Return the input of an invocation, even if no worker has begun it.

    Raises:
        UnknownInvocation: The invocation no longer exists.
        ForeignHistory: The input is not valid.
    """
    if (recorded := await read_input(temporal, described)) is None:
        raise UnknownInvocation(described.id)
    try:
        return InvocationInput.model_validate(recorded)
    except ValidationError as error:
        problem = f"The recorded input of {described.id!r} is not valid: {describe_faults(error)}."
        raise ForeignHistory(f"{problem} Start the invocation again with a valid input.") from None


def name_status(execution: WorkflowExecution, memo: Mapping[str, Any]) -> str:
    """Return the status of an invocation, one of `STATUSES` except `open`."""
    if execution.status is not WorkflowExecutionStatus.RUNNING:
        return execution.status.name.lower() if execution.status else "unknown"
    # A held invocation may also have pending calls.
    return HELD if memo.get(MEMO_HELD) else WAITING if parse_pending_calls(execution, memo) else RUNNING


def parse_pending_calls(execution: WorkflowExecution, memo: Mapping[str, Any]) -> list[PendingCall]:
    """Return the pending calls in a memo. If the workflow sets search attributes, return only the calls they list."""
    calls = [PendingCall.from_memo(call, execution.id) for call in memo.get(MEMO_PENDING) or ()]
    attributes = execution.typed_search_attributes
    listed = attributes.get(PENDING) or ()
    return [call for call in calls if attributes.get(STATUS) is None or call.function_call_id in listed]
