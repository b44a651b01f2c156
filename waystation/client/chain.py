"""The runs of one invocation, read as one.

An invocation whose history grows long goes on in further runs. Each says which run it continues, and what came before.
"""

from collections.abc import AsyncIterator
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.continued import Carried, Fetch, extend
from waystation.core.log import Log
from waystation.core.projection import Projection
from waystation.history import HistoryReader, carried_by, continued_as, decoded


async def before(client: Client, id: str, first: HistoryEvent, fetch: Fetch) -> Log:
    """Return the log up to the start of a run, given the first event of that run's history.

    Read from the histories of earlier runs, and, where the server has deleted them, from the segments in the store.

    Raises:
        ForeignHistory: It is not a history of Waystation, or it is damaged.
        StoreFailed: It is to be read from the store, and the store does not have it.
    """
    earlier: list[WorkflowHistory] = []
    log = Log(id)
    carried = carried_by(first)
    while carried:
        history = await run_of(client, id, carried.run_id)
        if history is None:
            await extend(log, carried, fetch)
            break
        earlier.append(history)
        carried = carried_by(history.events[0])
    for history in reversed(earlier):
        log = grown(log, history)
    return log


def grown(log: Log, history: WorkflowHistory) -> Log:
    """Return the log with what a further run did."""
    projection = Projection(log.invocation_id, log)
    projection.feed(HistoryReader().read(history.events))
    projection.flush()
    return projection.log


async def run_of(client: Client, id: str, run_id: str | None) -> WorkflowHistory | None:
    """Return the history of one run; None when the server has deleted it."""
    try:
        history = await client.get_workflow_handle(id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    return WorkflowHistory(id, await decoded(history.events, client.data_converter))


async def histories(client: Client, last: WorkflowHistory) -> list[WorkflowHistory]:
    """Return the histories of all runs up to `last` that the server still has, oldest first, as it has them."""
    found = [last]
    while carried := await _carried(client, found[0]):
        try:
            handle = client.get_workflow_handle(last.workflow_id, run_id=carried.run_id)
            found.insert(0, await handle.fetch_history())
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            break
    return found


async def _carried(client: Client, history: WorkflowHistory) -> Carried | None:
    (first,) = await decoded(history.events[:1], client.data_converter)
    return carried_by(first)


async def follow(client: Client, handle: WorkflowHandle[Any, Any], fetch: Fetch) -> AsyncIterator[Log]:
    """Yield the log whenever a history has grown, over all further runs, until the invocation ends."""
    log: Log | None = None
    run_id = handle.run_id
    while True:
        reader = HistoryReader()
        projection: Projection | None = None
        following: str | None = None
        pages = client.get_workflow_handle(handle.id, run_id=run_id).fetch_history_events(wait_new_event=True)
        while pages.current_page is None or pages.next_page_token:
            await pages.fetch_next_page()
            page = await decoded(pages.current_page or (), client.data_converter)
            if projection is None:
                projection = Projection(handle.id, log or await before(client, handle.id, page[0], fetch))
            projection.feed(reader.read(page))
            projection.flush()
            log = projection.log
            following = continued_as(page[-1]) if page else following
            yield log
        if following is None:
            return
        run_id = following
