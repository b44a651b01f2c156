"""What commands read: an invocation of the server, or a file."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temporalio.converter import DataConverter

from waystation.cli.exits import Exit, Problem
from waystation.cli.target import Target
from waystation.client.agent_client import AgentClient
from waystation.core.errors import ForeignHistory
from waystation.history_files import Saved, read
from waystation.replay.recording import Recording
from waystation.storage import Blobs
from waystation.storage.driver import offloading


class Recordings:
    """Reads recordings; it connects when the first is on a server."""

    def __init__(self, target: Target, client: AgentClient | None = None) -> None:
        self._target, self._client = target, client

    async def get(self, source: str) -> Recording:
        """Return what a source names.

        Raises:
            Problem: It is none of ours, or cannot be read.
        """
        with _problems(source):
            if is_file(source):
                return await Recording.read(source, store=self._target.store)
            self._client = self._client or await self._target.connect()
            return await Recording.of(self._client.invocation(source))

    async def saved(self, source: str) -> tuple[Saved, DataConverter]:
        """Return the histories that a source names as they stand there, and what opens their payloads.

        Raises:
            Problem: It is none of ours, or cannot be read.
        """
        with _problems(source):
            if is_file(source):
                saved = await asyncio.to_thread(read, Path(source))
                return saved, offloading(Blobs(self._target.store), short_forms=True)
            client = self._client = self._client or await self._target.connect()
            converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
            return await client.invocation(source).saved(), converter


@contextmanager
def _problems(source: str) -> Iterator[None]:
    try:
        yield
    except ForeignHistory as error:
        text = str(error) if source in str(error) else f"{source}: {error}"
        raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, text) from None
    except OSError as error:
        raise Problem(Exit.USAGE, f"Cannot read {source!r}: {error.strerror}.") from None


def is_file(source: str) -> bool:
    """Whether a source names a file, and no invocation."""
    return source.endswith(".json") or Path(source).is_file()
