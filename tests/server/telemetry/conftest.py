"""Tests of telemetry also use the server that can skip time."""

from tests.server.workflows.skipping import skipping_server

__all__ = ["skipping_server"]
