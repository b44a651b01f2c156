"""Load what verifies approvers and signs links, as configured."""

import os
from pathlib import Path

from waystation.activities.identity import SignsLinks, Verifies
from waystation.core.errors import InvalidConfiguration
from waystation.core.sealed import IDENTITY_ENV


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
