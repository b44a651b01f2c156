"""Read the runs of one invocation as one log.

A long invocation continues as new: each run names the run that it continues, and carries a snapshot.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.continued import Carried, Fetch, extend
from waystation.core.log import Log
from waystation.core.projection import Projection
from waystation.core.wire import WORKFLOW, InvocationInput
from waystation.history.history_events import carried_by, continued_as, continues, decode_events, type_of
from waystation.history.history_fetch import HistoryPoll
from waystation.history.history_files import SavedHistory
from waystation.history.invocation_reader import HistoryReader, log_of


async def fetch_log_before(client: Client, id: str, first: HistoryEvent, fetch: Fetch) -> Log:
    """Return the log up to the start of a run, given the first event of that run's history.

    Read from the histories of earlier runs, and, where the server has deleted them, from the segments in the store.

    Raises:
        ForeignHistory: It is not a history of Waystation, or it is damaged.
        StoreFailed: It is to be read from the store, and the store does not have it.
    """
    earlier: list[WorkflowHistory] = []
    log = Log(id)
    given = carried_by(first)
    while given:
        history = None if given[1].forked else await fetch_run(client, id, given[1].run_id)
        if history is None:
            await extend(log, given[1], fetch)
            break
        earlier.append(history)
        given = carried_by(history.events[0])
    return log_of(earlier[::-1], log)


async def log_from_runs(histories: Sequence[WorkflowHistory], fetch: Fetch) -> Log:
    """Return the log of the runs in a file, including the entries before them.

    Raises:
        ForeignHistory: The file is damaged.
        StoreFailed: The store does not have what came before.
    """
    own = own_runs(histories)
    given = carried_by(own[0].events[0])
    log = Log(own[0].workflow_id)
    if given:
        await extend(log, given[1], fetch)
    return log_of(own, log)


def own_runs(histories: Sequence[WorkflowHistory]) -> Sequence[WorkflowHistory]:
    """Return the runs whose log is the invocation's: without the run in which a fork read its source."""
    for number, history in enumerate(histories[1:], 1):
        if (given := carried_by(history.events[0])) and given[1].forked:
            return histories[number:]
    return histories


def carried_log(histories: Sequence[WorkflowHistory]) -> Log:
    """Return the log at the start of the first of `own_runs`, without the entries before that run."""
    first = own_runs(histories)[0]
    started, carried = carried_by(first.events[0]) or (None, None)
    return carried.snapshot.restored(first.workflow_id, started) if carried and started else Log(first.workflow_id)


async def fetch_run(client: Client, id: str, run_id: str | None) -> WorkflowHistory | None:
    """Return the history of one run; None when the server has deleted it."""
    try:
        history = await client.get_workflow_handle(id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    (read,) = await decode_histories([history], client.data_converter)
    return read


async def fetch_runs(client: Client, last: WorkflowHistory) -> list[WorkflowHistory]:
    """Return the histories of all runs up to `last` that the server still has, oldest first, as it has them."""
    found = [last]
    while run_id := continues(found[0].events[0]):
        try:
            found.insert(0, await client.get_workflow_handle(last.workflow_id, run_id=run_id).fetch_history())
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            break
    return found


async def fetch_saved_history(client: Client, last: WorkflowHistory) -> SavedHistory:
    """Return all runs up to `last`, as `histories` does, and those of the agents that were called."""
    runs = await fetch_runs(client, last)
    ids = dict.fromkeys(id for run in runs for id in called_agent_ids(run))
    called = []
    for id in ids:
        try:
            called.append(await fetch_saved_history(client, await client.get_workflow_handle(id).fetch_history()))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
    return SavedHistory(runs, called)


def called_agent_ids(history: WorkflowHistory) -> list[str]:
    """Return the ids of the agents that a run of an invocation has called."""
    if type_of(history) != WORKFLOW:
        return []
    initiated = (event.start_child_workflow_execution_initiated_event_attributes for event in history.events)
    return [child.workflow_id for child in initiated if child.workflow_type.name == WORKFLOW]


async def decode_histories(histories: Iterable[WorkflowHistory], converter: DataConverter) -> list[WorkflowHistory]:
    """Return histories with payloads decoded by the codec and fetched from the store.

    Raises:
        StoreFailed: Offloaded payloads cannot be looked for.
    """
    return [WorkflowHistory(each.workflow_id, await decode_events(each.events, converter)) for each in histories]


async def follow_log(client: Client, handle: WorkflowHandle[Any, Any], fetch: Fetch) -> AsyncIterator[Log]:
    """Yield the log whenever the history has grown, through all further runs, until the invocation ends.

    After a reset it is another log: that of the new run.
    """
    log: Log | None = None
    run_id = handle.run_id
    while True:
        reader = HistoryReader()
        projection: Projection | None = None
        following: str | None = None
        given: tuple[InvocationInput, Carried] | None = None
        pages = HistoryPoll(client, handle.id, run_id)
        while pages.more:
            page = await pages.page()
            if not handle.run_id and (following := await pages.replaced_by()):
                log = None
                break
            if projection is None:
                given = carried_by(page[0]) if page else None
                known = None if given and given[1].forked else log
                projection = Projection(handle.id, known or await fetch_log_before(client, handle.id, page[0], fetch))
            projection.feed(reader.read(page))
            projection.flush()
            log = projection.log
            following = continued_as(page[-1]) if page else following
            # A fork first reads what it takes over, and goes on in another run.
            if given or not (log.input and log.input.fork) or log.failure or log.ended:
                yield log
        if following is None:
            return
        run_id = following
