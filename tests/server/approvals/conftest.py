"""After every test, verify that no workflow task failed."""

from tests.server.workflows.conftest import serve, serve_and_skip, skipping_server

__all__ = ["serve", "serve_and_skip", "skipping_server"]
