"""A credential store in the operating system's keyring."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waystation.auth.credential_store import CredentialStore, Place
from waystation.core import CredentialStoreError


class KeyringCredentialService(CredentialStore):
    """Keeps credentials in the operating system's keyring, for one user on one machine.

    This requires the extra `keyring`. There is no lock between processes, so two processes may refresh the same token
    at the same time.
    """

    def __init__(self, *, service: str = "waystation", backend: Any = None) -> None:
        """Open a keyring.

        Args:
            service: The service name of the entries in the keyring.
            backend: A backend of the `keyring` library. By default, the library chooses one.

        Raises:
            CredentialStoreError: The extra `keyring` is not installed.
        """
        try:
            import keyring
        except ImportError:
            raise CredentialStoreError(
                "Storing credentials in a keyring requires the extra `keyring`: pip install 'waystation[keyring]'."
            ) from None
        self._service, self._backend = service, backend or keyring.get_keyring()

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place, or None if there is none or it has expired."""
        with self._translate_errors():
            entry = self._backend.get_password(self._service, _compute_name(place))
        if entry is None:
            return None
        text, expires_at = json.loads(entry)
        return text if expires_at is None or expires_at > time.time() else None

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a value for `keep_s` seconds, by default forever, or remove it if `text` is None."""
        name = _compute_name(place)
        with self._translate_errors():
            if text is not None:
                entry = [text, None if keep_s is None else time.time() + keep_s]
                self._backend.set_password(self._service, name, json.dumps(entry))
            elif self._backend.get_password(self._service, name) is not None:
                self._backend.delete_password(self._service, name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from keyring.errors import KeyringError

        try:
            yield
        except KeyringError as error:
            raise CredentialStoreError(
                f"The keyring {type(self._backend).__name__} cannot be used ({type(error).__name__}). Unlock it, or "
                "store credentials in a file with EncryptedFileCredentialService."
            ) from None


def _compute_name(place: Place) -> str:
    return hashlib.sha256(json.dumps(place).encode()).hexdigest()
