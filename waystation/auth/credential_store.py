"""Where credentials are kept, outside history; and the logins that are under way.

Reading and writing block. That is what keyrings, files and the clients of most secret managers do, and what lets a
sync function, such as ADK's `get_auth_response`, use the store; coroutines use it in threads.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from waystation.auth.auth_credential import AuthCredential
from waystation.auth.credential_bucket import Bucket
from waystation.auth.credential_service.base_credential_service import BaseCredentialService
from waystation.auth.login import Authorized, complete_authorization, found, provide_credential

if TYPE_CHECKING:
    from waystation.agents.readonly_context import ReadonlyContext
    from waystation.auth.auth_tool import AuthConfig

Place: TypeAlias = tuple[str, ...]
"""What a value is kept under: its kind, then names. Names may be of any text and length."""


class CredentialStore(BaseCredentialService):
    """A store of secrets: three blocking functions to define, which any thread may call.

    Raises of all of them: `CredentialStoreError`, when the store is out of reach or damaged.
    """

    @abstractmethod
    def read(self, place: Place) -> str | None:
        """Return what was written there and has not expired."""

    @abstractmethod
    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Write a text, whole or not at all; None removes what is there. After `keep_s` seconds it may be dropped."""

    @abstractmethod
    def held(self, place: Place) -> AbstractContextManager[None]:
        """Keep all others who want to hold the place waiting, in this process and in others that use the store."""

    def credential(self, bucket: Bucket) -> AuthCredential | None:
        """Return a credential as it is kept: perhaps expired, and without the client's own secret."""
        text = self.read(("credential", *bucket))
        return None if text is None else AuthCredential.model_validate(json.loads(text))

    def keep(self, bucket: Bucket, credential: AuthCredential | None) -> None:
        """Keep a credential; None forgets it."""
        if credential is not None and credential.oauth2 is not None:
            credential = credential.model_copy(deep=True)
            assert credential.oauth2 is not None
            # The client's secret is the author's, and is read from the tool's configuration whenever it is needed.
            credential.oauth2.__dict__.update(client_secret=None, code_verifier=None, auth_code=None, state=None)
            credential.oauth2.__dict__.update(auth_response_uri=None, auth_uri=None)
        self.write(("credential", *bucket), None if credential is None else json.dumps(credential.exposed()))

    async def load_credential(
        self, auth_config: AuthConfig, callback_context: ReadonlyContext
    ) -> AuthCredential | None:
        """Return the credential of the context's user, refreshed when it has expired; None when there is none.

        Raises:
            AuthorizationFailed: It has expired, and the provider does not answer.
        """
        return await asyncio.to_thread(found, self, auth_config, Bucket.of(callback_context, auth_config.key))

    async def save_credential(self, auth_config: AuthConfig, callback_context: ReadonlyContext) -> None:
        """Keep the `exchanged_auth_credential` of a configuration for the context's user."""
        bucket = Bucket.of(callback_context, auth_config.key)
        await asyncio.to_thread(self.keep, bucket, auth_config.exchanged_auth_credential)

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: AuthCredential | str | None = None,
        call: tuple[str, str] | None = None,
    ) -> Authorized:
        """Keep what a user gave: the URI at which a login ended, or the credential itself.

        Args:
            auth_response_uri: The whole URI to which the provider sent the user.
            credential: A credential, or the text of one.
            call: The invocation and the function call that it is for; a URI tells it by itself.

        Returns:
            Which calls to answer with `approve`.

        Raises:
            AuthorizationFailed: It is no login of this call, or the provider gave no token.
            ValueError: Not exactly one of the two is given, or it is no credential for the scheme.
        """
        if auth_response_uri is not None and credential is None:
            return await complete_authorization(self, auth_response_uri=auth_response_uri, expected=call)
        if auth_response_uri is None and credential is not None and call is not None:
            return await provide_credential(self, *call, credential)
        raise ValueError("Give either `auth_response_uri`, or `credential` and `call`.")


class Locks:
    """One lock for each place within a process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Place, tuple[threading.Lock, int]] = {}

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Hold the lock of a place; forget it when nobody wants it any more."""
        with self._guard:
            lock, users = self._locks.get(place, (threading.Lock(), 0))
            self._locks[place] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks.pop(place)
                if users > 1:
                    self._locks[place] = lock, users - 1
