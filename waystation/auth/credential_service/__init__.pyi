from waystation.auth.credential_service.base_credential_service import BaseCredentialService
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.postgres_credential_service import PostgresCredentialService
from waystation.auth.credential_service.store_location import open_store

__all__ = [
    "BaseCredentialService",
    "EncryptedFileCredentialService",
    "InMemoryCredentialService",
    "PostgresCredentialService",
    "open_store",
]
