"""Put the log of a run into the store, before the run is continued as new."""

import structlog
from temporalio import activity
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import ApplicationError

from waystation.activities.heartbeat import beating
from waystation.activities.view import Views
from waystation.core import segment
from waystation.core.continued import Archived, ArchiveInput
from waystation.core.entry import Entry
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.facts import Started
from waystation.core.projection import Projection
from waystation.history import HistoryReader, decode_events
from waystation.storage import Blobs

events = structlog.get_logger("waystation.activities")


class Archiver:
    """Carries out the activity `archive`."""

    def __init__(self, client: Client, views: Views, blobs: Blobs) -> None:
        self._client, self._views, self._blobs = client, views, blobs

    async def archive(self, given: ArchiveInput) -> bytes:
        """Return an encoded `Archived`.

        The entries come from the history and not from a view: when each was applied is part of it.

        Raises:
            ApplicationError: The store, or the history, cannot be had.
        """
        info = activity.info()
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        upto = given.at + len(given.new)
        try:
            with beating():
                history = await self._client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
                read = await decode_events(history.events, self._client.data_converter)
                data = segment.pack(entries_of(WorkflowHistory(workflow_id, read), given.since, upto))
                # So that the next run finds the whole log in this process.
                await self._views.at(workflow_id, run_id, given)
                if len(data) <= given.inline:
                    return Archived(upto=upto).encode()
                digest = await self._blobs.put(data)
        except (ForeignHistory, StoreFailed) as error:
            events.warning("archive.failed", invocation_id=workflow_id, attempt=info.attempt, problem=str(error))
            raise ApplicationError(str(error), type=type(error).__name__) from None
        ref = segment.SegmentRef(digest=digest, size=len(data), entries=upto - given.since)
        events.info("archive.completed", invocation_id=workflow_id, entries=ref.entries, size=ref.size)
        return Archived(upto=upto, segment=ref).encode()


def entries_of(history: WorkflowHistory, since: int, upto: int) -> list[Entry]:
    """Return entries of one run's history, those that it has from earlier runs in its input included.

    Raises:
        ForeignHistory: It does not hold them.
    """
    projection = Projection(history.workflow_id)
    inherited: list[Entry] = []
    for fact in HistoryReader().read(history.events):
        projection.feed([fact])
        if isinstance(fact, Started) and (given := fact.carried()):
            inherited = segment.from_json(given[1].tail)
    projection.flush()
    log = projection.log
    entries = [*inherited, *log.entries]
    first = log.entries_before - len(inherited)
    if not first <= since <= upto <= log.length:
        raise ForeignHistory(f"The history of {history.workflow_id!r} does not hold entries {since} to {upto}.")
    return entries[since - first : upto - first]
