"""Open the credential store at a configured location."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from waystation.auth import CredentialStore, EncryptedFileCredentialService, KeyringCredentialService
from waystation.core import CredentialStoreError, with_article


def open_store(place: str | Path) -> CredentialStore:
    """Return the store at a location: a file path, `keyring:NAME`, or `python:MODULE:NAME` for your own store.

    `NAME` in your module is a store, or a class or function that returns one. A file is created on first use.

    Raises:
        CredentialStoreError: The name in the module is not a credential store, or the extra `keyring` is missing.
    """
    kind, _, rest = str(place).partition(":")
    if kind == "keyring":
        return KeyringCredentialService(service=rest or "waystation")
    if kind != "python":
        return EncryptedFileCredentialService(place)
    try:
        value = pkgutil.resolve_name(rest)
        store = value if isinstance(value, CredentialStore) else value()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CredentialStoreError(f"{str(place)!r} is not a credential store: {error}.") from None
    if not isinstance(store, CredentialStore):
        raise CredentialStoreError(f"{str(place)!r} is {with_article(store)}. It must be a CredentialStore.")
    return store
