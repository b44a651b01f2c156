"""Fixtures like those of the other tests on a server."""

from tests.server.conftest import one_session_one_file, payload_store, serve, server, strictly_replayed, verification

__all__ = ["one_session_one_file", "payload_store", "serve", "server", "strictly_replayed", "verification"]
