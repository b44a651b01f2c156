"""Tests of telemetry also use the server on which time can be skipped."""

from tests.server.workflows.skipping import skipping_server

__all__ = ["skipping_server"]
