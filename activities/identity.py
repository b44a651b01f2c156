"""What a worker has for finding out who answers; without it nobody's identity is verified."""

from collections.abc import Callable
from typing import Protocol

from waystation.core.answer import Answer
from waystation.core.policy import Verified


class Verifies(Protocol):
    """Finds out who answers; see `waystation.identity.WorkerIdentity`."""

    async def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer) -> tuple[Verified, str]:
        """Return who answers, and what makes the token usable once.

        Raises:
            NotAllowed: The token proves nothing.
            IdentityUnavailable: It cannot be said now.
        """


SignsLinks = Callable[[str, str | None], str]
"""Returns the token of a link to a call, for a person or for whoever has it."""
