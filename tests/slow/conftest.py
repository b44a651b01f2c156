"""Fixtures like those of the other tests on a server."""

from tests.server.conftest import payload_store, serve, server, strictly_replayed, verification

__all__ = ["payload_store", "serve", "server", "strictly_replayed", "verification"]
