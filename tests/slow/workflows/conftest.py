"""Fixtures like those of the other tests of workflows."""

from tests.server.workflows.conftest import serve, serve_and_skip, skipping_server

__all__ = ["serve", "serve_and_skip", "skipping_server"]
