"""Fixtures like those of the other tests with worker processes."""

from tests.server.processes.conftest import client, place

__all__ = ["client", "place"]
