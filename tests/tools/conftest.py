"""What the tests of tools share."""

import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from activities.credentials import InMemoryCredentialService
from waystation.testing.fake_oauth import FakeOAuth


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during a test, from warnings up."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with capture_logs() as entries:
        yield entries
    structlog.configure(**before)


@pytest.fixture
def provider() -> Iterator[FakeOAuth]:
    """A provider with one client."""
    with FakeOAuth() as provider:
        yield provider


@pytest.fixture
def store() -> InMemoryCredentialService:
    """A store of credentials."""
    return InMemoryCredentialService()
