"""ADK's interface of a credential service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from waystation.auth import AuthConfig, AuthCredential

if TYPE_CHECKING:
    from waystation.agents.readonly_context import ReadonlyContext


class BaseCredentialService(ABC):
    """ADK's credential service. Source: adk-semantics 11.3. To support logins, subclass `CredentialStore` instead."""

    @abstractmethod
    async def load_credential(
        self, auth_config: AuthConfig, callback_context: ReadonlyContext
    ) -> AuthCredential | None:
        """Return the credential of the context's user; None when the user has none."""

    @abstractmethod
    async def save_credential(self, auth_config: AuthConfig, callback_context: ReadonlyContext) -> None:
        """Store the `exchanged_auth_credential` of a configuration for the context's user."""
