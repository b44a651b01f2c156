"""Stores of users' credentials. ADK's `google.adk.auth.credential_service`."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.auth.credential_service.base_credential_service import BaseCredentialService
    from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
    from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
    from waystation.auth.credential_service.keyring_credential_service import KeyringCredentialService
    from waystation.auth.credential_service.store_location import store_at

__all__ = [
    "BaseCredentialService",
    "EncryptedFileCredentialService",
    "InMemoryCredentialService",
    "KeyringCredentialService",
    "store_at",
]

_EXPORTS = {
    "waystation.auth.credential_service.base_credential_service": "BaseCredentialService",
    "waystation.auth.credential_service.encrypted_file_credential_service": "EncryptedFileCredentialService",
    "waystation.auth.credential_service.in_memory_credential_service": "InMemoryCredentialService",
    "waystation.auth.credential_service.keyring_credential_service": "KeyringCredentialService",
    "waystation.auth.credential_service.store_location": "store_at",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
