"""The stores that workers used for open invocations: their recorded IDs, and the large values in them."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from waystation.core.contract import WORKFLOW
from waystation.core.errors import StoreFailed
from waystation.core.payload import decode
from waystation.history import decode_events, get_attributes, read_json_payloads
from waystation.storage import (
    BlobMissing,
    StoreIds,
    describe_missing_key,
    find_blobs,
    is_reference,
    list_differences,
    without_storage,
)

NEWEST = 10
"""Maximum number of open invocations to read. The newest ones may not have a reply, and thus no IDs, yet."""
MAX_EVENTS = 100
"""Maximum number of history events to read for each invocation. The first reply usually has the IDs."""
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


async def find_store_differences(client: Client, task_queue: str, ids: StoreIds) -> list[str]:
    """Describe each store that differs from the one that the newest open invocation on a task queue recorded.

    The client's payload store also differs if it lacks a large value of one of the newest open invocations: a reply
    that is itself in the store does not show the IDs. Also describe the missing encryption key if one of the
    invocations cannot be decrypted.

    Raises:
        RPCError: The server cannot be reached.
    """
    own, missing = await ids.read(), list[str]()
    query = f'WorkflowType = "{WORKFLOW}" AND ExecutionStatus = "Running" AND TaskQueue = "{task_queue}"'
    try:
        async for execution in client.list_workflows(query, page_size=NEWEST, limit=NEWEST):
            handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
            history = handle.fetch_history_events(page_size=MAX_EVENTS)
            await history.fetch_next_page()
            events = history.current_page or ()
            if "payloads" in own and not missing:
                missing = await _list_missing_values(client, execution.id, events)
            if recorded := await _read_stores(client, events):
                return list_differences(own, recorded) or missing
    except _KeyMissing as error:
        return [str(error)]
    return missing


class _KeyMissing(Exception):
    """An invocation is encrypted with a key that this process does not have."""


async def _list_missing_values(client: Client, id: str, events: Sequence[HistoryEvent]) -> list[str]:
    """Describe the first large value of an invocation that is not in the client's store, if there is one."""
    if (blobs := find_blobs(client.data_converter)) is None:
        return []
    for result in (event.activity_task_completed_event_attributes for event in events):
        for payload in filter(is_reference, result.result.payloads):
            try:
                await blobs.get(_DIGEST.findall(payload.data)[0].decode())
            except BlobMissing as error:
                return [
                    f"--store is {error.place}, but the worker {result.identity} stored a large value of {id!r} "
                    "elsewhere. Use the same --store for all workers and clients."
                ]
            except (StoreFailed, LookupError):  # reported elsewhere, or not a reference of a worker
                continue
    return []


async def _read_stores(client: Client, events: Sequence[HistoryEvent]) -> Mapping[str, str]:
    # Do not read replies from the payload store: this process may have a different one.
    converter = without_storage(client).data_converter
    for event in await decode_events(events, converter):
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
