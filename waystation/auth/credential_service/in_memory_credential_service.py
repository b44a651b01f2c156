"""A credential store in memory."""

from __future__ import annotations

import time

from waystation.auth.credential_store import CredentialStore, Place


class InMemoryCredentialService(CredentialStore):
    """Keeps credentials in memory until the process ends. Use it in tests, or if one process contains all clients and
    workers.
    """

    def __init__(self) -> None:
        self._texts: dict[Place, tuple[str, float | None]] = {}

    def read(self, place: Place) -> str | None:
        """Return the value stored at a place, or None if there is none or it has expired."""
        text, expires_at = self._texts.get(place, (None, None))
        return text if expires_at is None or expires_at > time.time() else None

    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a value for `keep_s` seconds, by default forever, or remove it if `text` is None."""
        if text is None:
            self._texts.pop(place, None)
        else:
            self._texts[place] = text, None if keep_s is None else time.time() + keep_s
