"""What commands read: an invocation of the server, or a file."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temporalio.converter import DataConverter
from temporalio.service import RPCError

from waystation.cli.exits import Exit, Problem, problem_of
from waystation.cli.target import Target
from waystation.client import AgentClient
from waystation.core.errors import ForeignHistory
from waystation.core.wire import WORKFLOW
from waystation.history import SavedHistory, read_history_file
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
        with self.problems(source):
            if is_file(source):
                return await Recording.read(source, store=self._target.store)
            self._client = self._client or await self._target.connect()
            return await Recording.of(self._client.invocation(source))

    async def invocation(self, source: str, called: str | None = None) -> Recording:
        """Return an invocation, or one of an agent that it called; `called` may name several calls, `fc-1/fc-2`.

        Raises:
            Problem: There is no such recording.
        """
        recording = await self.get(source)
        if recording.kind != WORKFLOW:
            kind, id = recording.kind, recording.id
            text = f"{source!r} is a history of {kind!r}; name an invocation, such as {id}/1 of a session."
            raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, text)
        for call in called.split("/") if called else ():
            if call not in recording.called:
                known = ", ".join(recording.called) or "none"
                text = f"{recording.source!r} has no agent that {call!r} called; such calls: {known}."
                raise Problem(Exit.UNKNOWN, text)
            recording = recording.called[call]
        return recording

    async def saved(self, source: str) -> tuple[SavedHistory, DataConverter]:
        """Return the histories that a source names as they stand there, and what opens their payloads.

        Raises:
            Problem: It is none of ours, or cannot be read.
        """
        with self.problems(source):
            if is_file(source):
                saved = await asyncio.to_thread(read_history_file, Path(source))
                return saved, offloading(Blobs(self._target.store), short_forms=True)
            client = self._client = self._client or await self._target.connect()
            converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
            return await client.invocation(source).saved(), converter

    @contextmanager
    def problems(self, source: str) -> Iterator[None]:
        """Say of what reads a source which one it is, and that a file is at fault where it is one."""
        try:
            yield
        except ForeignHistory as error:
            text = str(error) if source in str(error) else f"{source}: {error}"
            raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, text) from None
        except RPCError as error:  # a command may read several, and only here it is known which is lacking
            raise problem_of(error, self._target.where(), source) from None
        except OSError as error:
            raise Problem(Exit.USAGE, f"Cannot read {source!r}: {error.strerror}.") from None


def is_file(source: str) -> bool:
    """Whether a source names a file, or a folder by its path, and no invocation."""
    path = Path(source)
    return source.endswith(".json") or path.is_file() or ("/" in source and path.is_dir())
