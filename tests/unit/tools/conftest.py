"""What the tests of tools share."""

import pytest

from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService


@pytest.fixture
def store() -> InMemoryCredentialService:
    """A store of credentials."""
    return InMemoryCredentialService()
