"""A remote agent for each test."""

from collections.abc import Iterator

import pytest

from tests.fakes.a2a_agent import A2aAgent


@pytest.fixture
def remote() -> Iterator[A2aAgent]:
    """Return a remote agent."""
    with A2aAgent() as agent:
        yield agent
