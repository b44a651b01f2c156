"""Read the logs of many invocations one after another, from files or a namespace."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from waystation.client import AgentClient
from waystation.core.contract import WORKFLOW
from waystation.core.errors import WaystationError
from waystation.core.log import Log
from waystation.core.projection import Fetch
from waystation.history import (
    SavedHistory,
    check_readable,
    decode_histories,
    fetch_log,
    get_workflow_type,
    is_not_found,
    read_history_file,
)


@dataclass(frozen=True, slots=True)
class UnreadableHistory:
    """A history that cannot be read."""

    source: str
    reason: str
    """The type of the error."""
    problem: str


def list_files(sources: Sequence[Path]) -> list[Path]:
    """Return the history files among the sources, and those below the folders among them.

    Raises:
        FileNotFoundError: A source does not exist.
    """
    files = list[Path]()
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(source)
        files += sorted(source.rglob("*.json")) if source.is_dir() else [source]
    return files


async def read_files(
    files: Sequence[Path], converter: DataConverter, fetch: Fetch
) -> AsyncGenerator[Log | UnreadableHistory]:
    """Yield the log of each invocation in the files, with the agents that it called. One file is in memory at a time.

    Histories of other workflow types are left out.
    """
    for file in files:
        try:
            waiting: list[SavedHistory] = [read_history_file(file)]
        except (WaystationError, OSError) as error:
            yield UnreadableHistory(str(file), type(error).__name__, str(error))
            continue
        while waiting:
            saved = waiting.pop()
            waiting += saved.called
            if get_workflow_type(saved.histories[0]) == WORKFLOW:
                yield await _read(str(file), saved.histories, converter, fetch)


async def read_namespace(client: AgentClient, **filters: Any) -> AsyncGenerator[Log | UnreadableHistory]:
    """Yield the log of each invocation in a namespace that matches the filters of `Invocations.list`."""
    async for entry in client.invocations.list(**filters):
        try:
            histories = await client.invocation(entry.id).histories()
        except RPCError as error:
            if not is_not_found(error):
                raise
            continue  # deleted since it was listed
        yield await _read(entry.id, histories, client.temporal.data_converter, client.blobs.get)


async def _read(
    source: str, histories: Sequence[WorkflowHistory], converter: DataConverter, fetch: Fetch
) -> Log | UnreadableHistory:
    try:
        decoded = await decode_histories(histories, converter)
        check_readable(decoded, repr(source))
        return await fetch_log(decoded, fetch)
    except Exception as error:  # noqa: BLE001  # a damaged history raises anything
        return UnreadableHistory(source, type(error).__name__, str(error))
