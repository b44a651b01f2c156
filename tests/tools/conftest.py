"""What the tests of tools share."""

import pytest

from activities.credentials import InMemoryCredentialService


@pytest.fixture
def store() -> InMemoryCredentialService:
    """A store of credentials."""
    return InMemoryCredentialService()
