"""Fixtures for the tests of tools."""

import pytest

from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService


@pytest.fixture
def store() -> InMemoryCredentialService:
    """Return a store of credentials."""
    return InMemoryCredentialService()
