"""The interface of credential services in ADK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential
    from waystation.tools import ReadonlyContext


class BaseCredentialService(ABC):
    """Base class of credential services in ADK. To support logins, subclass `CredentialStore` instead."""

    @abstractmethod
    async def load_credential(
        self, auth_config: AuthConfig, callback_context: ReadonlyContext
    ) -> AuthCredential | None:
        """Return the credential of the context's user, or None if the user does not have one."""

    @abstractmethod
    async def save_credential(self, auth_config: AuthConfig, callback_context: ReadonlyContext) -> None:
        """Store the `exchanged_auth_credential` of a configuration for the context's user."""

    async def store_id(self) -> str | None:
        """Return the ID of the store, "" if the store does not exist yet, or None if stores of this kind have no ID.

        Workers record the ID to detect that they use different stores. This method is not part of ADK.
        """
        return None
