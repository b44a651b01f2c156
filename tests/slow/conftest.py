"""As for the other tests on a server."""

from tests.server.conftest import payload_store, serve, server, verification

__all__ = ["payload_store", "serve", "server", "verification"]
