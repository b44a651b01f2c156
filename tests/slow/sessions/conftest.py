"""Fixtures like those of the other tests of sessions."""

from tests.server.sessions.conftest import converse, store

__all__ = ["converse", "store"]
