"""What invocations, sessions and collections use of the client that made them."""

from typing import Protocol

from temporalio.client import Client

from waystation.client.token_encryption import TokenEncryption
from waystation.storage import Blobs


class ClientContext(Protocol):
    """`waystation.client.AgentClient` provides it."""

    temporal: Client
    """Temporal's own client."""
    task_queue: str
    blobs: Blobs
    token_encryption: TokenEncryption

    async def searchable(self) -> bool:
        """Return whether the namespace has Waystation's search attributes."""
