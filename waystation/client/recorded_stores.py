"""The store IDs that workers recorded in open invocations."""

from collections.abc import Mapping
from contextlib import suppress

from temporalio.client import Client, WorkflowHistoryEventAsyncIterator

from waystation.core import WORKFLOW, decode
from waystation.history import decode_events, get_attributes, read_json_payloads
from waystation.storage import StoreIds, describe_missing_key, list_differences, without_storage

NEWEST = 10
"""Maximum number of open invocations to read. The newest ones may not have a reply, and thus no IDs, yet."""
MAX_EVENTS = 100
"""Maximum number of history events to read for each invocation. The first reply usually has the IDs."""


async def find_store_differences(client: Client, task_queue: str, ids: StoreIds) -> list[str]:
    """Describe each store that differs from the one that the newest open invocation on a task queue recorded.

    Also describe the missing encryption key if one of the newest open invocations cannot be decrypted.

    Raises:
        RPCError: The server cannot be reached.
    """
    try:
        recorded = await _find_recorded_stores(client, task_queue)
    except _KeyMissing as error:
        return [str(error)]
    return list_differences(await ids.read(), recorded)


class _KeyMissing(Exception):
    """An invocation is encrypted with a key that this process does not have."""


async def _find_recorded_stores(client: Client, task_queue: str) -> Mapping[str, str]:
    query = f'WorkflowType = "{WORKFLOW}" AND ExecutionStatus = "Running" AND TaskQueue = "{task_queue}"'
    async for execution in client.list_workflows(query, page_size=NEWEST, limit=NEWEST):
        handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
        if stores := await _read_stores(client, handle.fetch_history_events(page_size=MAX_EVENTS)):
            return stores
    return {}


async def _read_stores(client: Client, history: WorkflowHistoryEventAsyncIterator) -> Mapping[str, str]:
    # Do not read replies from the payload store: this process may have a different one.
    converter = without_storage(client).data_converter
    await history.fetch_next_page()
    for event in await decode_events(history.current_page or (), converter):
        for payload in event.workflow_execution_started_event_attributes.input.payloads:
            if problem := describe_missing_key(payload):
                raise _KeyMissing(f"An open invocation cannot be read: {problem}")
        if event.HasField("activity_task_completed_event_attributes"):
            [data, *_] = read_json_payloads(get_attributes(event).result.payloads) or [b""]
            with suppress(ValueError):
                match decode(data):
                    case {"stores": {**stores}}:
                        return {str(name): str(id) for name, id in stores.items()}
    return {}
