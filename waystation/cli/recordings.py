"""What commands read: an invocation of the server, or a file."""

from pathlib import Path

from waystation.cli.exits import Exit, Problem
from waystation.cli.target import Target
from waystation.client.agent_client import AgentClient
from waystation.core.errors import ForeignHistory
from waystation.replay.recording import Recording


class Recordings:
    """Reads recordings; it connects when the first is on a server."""

    def __init__(self, target: Target, client: AgentClient | None = None) -> None:
        self._target, self._client = target, client

    async def get(self, source: str) -> Recording:
        """Return what a source names.

        Raises:
            Problem: It is none of ours, or cannot be read.
        """
        in_file = is_file(source)
        try:
            if in_file:
                return await Recording.read(source, store=self._target.store)
            self._client = self._client or await self._target.connect()
            return await Recording.of(self._client.invocation(source))
        except ForeignHistory as error:
            text = str(error) if source in str(error) else f"{source}: {error}"
            raise Problem(Exit.USAGE if in_file else Exit.UNKNOWN, text) from None
        except OSError as error:
            raise Problem(Exit.USAGE, f"Cannot read {source!r}: {error.strerror}.") from None


def is_file(source: str) -> bool:
    """Whether a source names a file, and no invocation."""
    return source.endswith(".json") or Path(source).is_file()
