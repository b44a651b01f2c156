"""Open the credential store at a configured location."""

from __future__ import annotations

from pathlib import Path

from waystation.auth import CredentialStore, EncryptedFileCredentialService, PostgresCredentialService
from waystation.core.errors import CredentialStoreError
from waystation.storage import is_postgres_url, load_store


def open_store(place: str | Path) -> CredentialStore:
    """Return the store at a location: a file path, a PostgreSQL URL, `python:MODULE:NAME`, or a URL of another package.

    `NAME` in your module is a store, or a class or function that returns one. A file is created on first use.

    Raises:
        CredentialStoreError: The URL is not valid, the name in the module is not a credential store, or a required
            extra is missing.
    """
    try:
        store = load_store(place, CredentialStore, "open_credentials")  # type: ignore[type-abstract]  # only for isinstance
    except ValueError as error:
        raise CredentialStoreError(str(error)) from None
    if store is not None:
        return store
    if is_postgres_url(place):
        return PostgresCredentialService(str(place))
    if str(place).startswith("keyring:"):  # an earlier version stored credentials there
        raise CredentialStoreError(
            f"{str(place)!r} is not a store of this version. Use a file, which is encrypted, or your own store with "
            "python:MODULE:NAME. Users will then have to log in again."
        )
    return EncryptedFileCredentialService(place)
