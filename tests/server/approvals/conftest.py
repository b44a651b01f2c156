"""As for all workflows: none may have a workflow task that failed."""

from tests.server.workflows.conftest import serve, serve_and_skip, skipping_server

__all__ = ["serve", "serve_and_skip", "skipping_server"]
