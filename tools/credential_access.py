"""Credentials, as tools reach them; they never enter history, state, logs or traces.

ADK's functions for tools are sync, so the store is read where the tool runs: in the tool's thread, or, for an async
tool, on the worker's loop. That costs less than a millisecond, except for the rare token that has to be refreshed; an
async tool that must not hold others up then awaits `load_credential`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from waystation.tools.actions import Acting
from waystation.tools.given import config_given, text_given

if TYPE_CHECKING:
    from waystation.auth.auth_credential import AuthCredential
    from waystation.auth.auth_tool import AuthConfig
    from waystation.auth.credential_service.base_credential_service import BaseCredentialService
    from waystation.auth.credential_store import CredentialStore

MISSING = "Credential service is not initialized."
"""ADK's wire literal, see adk-semantics 5."""


class CredentialAccess(Acting):
    """Asking for credentials, and reading those that were given."""

    _given: tuple[AuthCredential, ...] = ()
    _function_call_id: str | None

    @property
    def credential_service(self) -> BaseCredentialService | None:
        """Where the worker keeps credentials."""
        return self._services.credentials

    @property
    def has_credential_service(self) -> bool:
        """Whether the worker keeps credentials."""
        return self._services.credentials is not None

    def request_credential(self, auth_config: AuthConfig) -> None:
        """Have the user asked for a credential; return something for the model meanwhile.

        The tool runs again from the top when the credential is there, and then finds it with `get_auth_response`. It
        runs again, too, when somebody only says that it is there. Source: adk-semantics 11.1.

        Raises:
            ValueError: This is not a tool call, there is no credential service, or the configuration lacks something.
            AuthorizationFailed: The provider's endpoints are not known.
        """
        call_id = self._function_call_id
        if call_id is None:
            raise ValueError(
                "request_credential requires function_call_id: only a tool call can wait for a credential. Elsewhere "
                "use load_credential and save_credential."
            )
        from waystation.auth.credential_store import Bucket, WaitingCall, begin_login

        config_given("request_credential", auth_config)
        bucket = Bucket.of(self, auth_config.key)
        call = WaitingCall(self.invocation_id, call_id)
        shown = begin_login(self._store("request_credential"), auth_config, bucket, call)
        self.actions.requested_auth_configs[call_id] = shown

    def get_auth_response(self, auth_config: AuthConfig) -> AuthCredential | None:
        """Return the user's credential, None when there is none yet. An expired token is refreshed.

        A credential that was given in an earlier invocation is found, too.

        Raises:
            AuthorizationFailed: It has expired, and the provider does not answer.
        """
        config_given("get_auth_response", auth_config)
        if not self.has_credential_service:
            return None
        from waystation.auth.credential_store import Bucket, load_refreshed

        store = self._store("get_auth_response")
        return self._noted(load_refreshed(store, auth_config, Bucket.of(self, auth_config.key)))

    @property
    def auth_response(self) -> AuthCredential | None:
        """The credential that this call asked for when it ran before, None before it is there. ADK's guide names it."""
        call_id = self._function_call_id
        if call_id is None or not self.has_credential_service:
            return None
        from waystation.auth.credential_store import WaitingCall, bucket_of

        store = self._store("auth_response")
        bucket = bucket_of(store, WaitingCall(self.invocation_id, call_id))
        return None if bucket is None else self._noted(store.credential(bucket))

    async def load_credential(self, auth_config: AuthConfig) -> AuthCredential | None:
        """Return the user's credential, None when there is none. An expired token is refreshed.

        Raises:
            ValueError: There is no credential service.
            AuthorizationFailed: It has expired, and the provider does not answer.
        """
        config_given("load_credential", auth_config)
        return self._noted(await self._service().load_credential(auth_config, self))

    async def save_credential(self, auth_config: AuthConfig) -> None:
        """Keep the `exchanged_auth_credential` of a configuration for the user.

        Raises:
            ValueError: There is no credential service.
        """
        config_given("save_credential", auth_config)
        await self._service().save_credential(auth_config, self)

    def get_credential(self, key: str) -> AuthCredential | None:
        """Return the user's credential under a key as it is kept, perhaps expired; None when there is none."""
        text_given("get_credential", "key", key)
        if not self.has_credential_service:
            return None
        from waystation.auth.credential_store import Bucket

        return self._noted(self._store("get_credential").credential(Bucket.of(self, key)))

    def secrets_given(self) -> Iterator[str]:
        """Yield the secrets in all credentials that were handed out here, so that what is recorded can be cleared."""
        for credential in self._given:
            yield from credential.secrets()

    def note_credential(self, credential: AuthCredential) -> None:
        """Have what is recorded of this call cleared of a credential that did not come from the store."""
        self._given = (*self._given, credential)

    def _noted(self, credential: AuthCredential | None) -> AuthCredential | None:
        if credential is not None:
            self.note_credential(credential)
        return credential

    def _service(self) -> BaseCredentialService:
        if self._services.credentials is None:
            raise ValueError(MISSING)
        return self._services.credentials

    def _store(self, member: str) -> CredentialStore:
        from waystation.auth.credential_store import CredentialStore

        service = self._service()
        if not isinstance(service, CredentialStore):
            raise ValueError(
                f"{member} needs a CredentialStore, and {type(service).__name__} is none: it can only be awaited, with "
                "load_credential and save_credential."
            )
        return service
