"""The owners of workflows, as their recorded inputs name them, and whether a workflow may start for an owner.

The ID of an invocation does not show its owner, because anyone who starts an invocation may choose its ID.
"""

import asyncio
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from waystation.core import ids
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, EVENT_WORKFLOW, SESSION_WORKFLOW, WORKFLOW
from waystation.core.errors import InvalidInput, KeyMissing, UserForgotten
from waystation.core.payload import Recorded, decode
from waystation.core.push import PUSH_WORKFLOW
from waystation.core.scope_state import SCOPE_WORKFLOW, prefix_of
from waystation.history.history_events import decode_events, get_attributes, read_json_content
from waystation.history.history_fetch import describe_workflow, fetch_or_none
from waystation.storage import BlobMissing, Owner, find_user_keys_of


class _Names(Recorded):
    """The part of an input that names the owner."""

    app: str = DEFAULT_APP
    user_id: str = DEFAULT_USER
    tenant: str | None = None


async def read_owner(client: Client, execution: WorkflowExecution) -> Owner | None:
    """Return the owner of a run, or None if it has none, or its input is invalid, deleted, or not readable here.

    A workflow that holds state has no input. Its ID shows whose state it is, because state is only found by this ID.

    Raises:
        StoreFailed: The store of large payloads or of user keys is not available.
        RPCError: The server cannot be reached.
    """
    if execution.workflow_type not in (WORKFLOW, SESSION_WORKFLOW, EVENT_WORKFLOW, PUSH_WORKFLOW):
        is_state = execution.workflow_type == SCOPE_WORKFLOW and prefix_of(execution.id)
        return Owner.of_workflow(execution.id) if is_state else None
    try:
        names = _Names.model_validate(await read_input(client, execution))
        return Owner(ids.app_key(names.app, names.tenant), names.user_id)
    except (ValueError, BlobMissing, KeyMissing):
        return None


async def read_input(client: Client, execution: WorkflowExecution) -> Any:
    """Return the recorded input of a run of an invocation or a session, or None if the server has deleted the run.

    Raises:
        ValueError: The input is not JSON.
        StoreFailed: The input, or the key that it is encrypted with, is not in the stores of this process.
        RPCError: The server cannot be reached.
    """
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    page = handle.fetch_history_events(page_size=1)
    await fetch_or_none(page.fetch_next_page())
    if not page.current_page:
        return None
    [first] = await decode_events(page.current_page[:1], client.data_converter)
    return decode(read_json_content(get_attributes(first).input.payloads))


async def check_start(client: Client, workflow_id: str, owner: Owner) -> None:
    """Check that a workflow with this ID may start for an owner.

    Raises:
        UserForgotten: The data of the user is being deleted.
        InvalidInput: The workflow would be encrypted with the key of another owner, which its ID names.
        RPCError: The server cannot be reached.
    """
    named = Owner.of_workflow(workflow_id)
    if named not in (None, owner) and find_user_keys_of(client) is not None:
        raise InvalidInput(
            f"The ID {workflow_id!r} is reserved for the owner that it names, because it selects the encryption key. "
            "Choose another ID."
        )
    app, tenant = ids.parse_app_key(owner.app)
    marks = (ids.forgetting(tenant, name, owner.user_id) for name in (app, None))
    for mark in await asyncio.gather(*(describe_workflow(client, id) for id in marks)):
        if mark is not None and mark.status is WorkflowExecutionStatus.RUNNING:
            raise UserForgotten(owner.user_id)
