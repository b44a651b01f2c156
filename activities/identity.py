"""What a worker has for finding out who answers; without it nobody's identity is verified."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from waystation.core.answer import Answer
from waystation.core.errors import InvalidConfiguration
from waystation.core.policy import Verified
from waystation.core.sealed import IDENTITY_ENV


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


def links_of(file: Path | None, *, namespace: str) -> SignsLinks | None:
    """Return what signs links by the configuration that `identity_of` reads; None when it has no key for that.

    Raises:
        InvalidConfiguration: It cannot be used.
    """
    name = file or os.environ.get(IDENTITY_ENV)
    if not name:
        return None
    from waystation.identity import Configuration, Links

    configuration = Configuration.read(name)
    return Links.of(configuration, namespace=namespace).sign if configuration.links else None


def identity_of(file: Path | None) -> Verifies | None:
    """Return what a file configures, or the one that the environment names; None when there is none.

    Raises:
        InvalidConfiguration: It cannot be used.
    """
    name = file or os.environ.get(IDENTITY_ENV)
    if not name:
        return None
    try:
        from waystation.identity import WorkerIdentity
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise InvalidConfiguration(name, "", problem) from None
    return WorkerIdentity.load(name)
