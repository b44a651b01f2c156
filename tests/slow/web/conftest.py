"""Fixtures like those of the other tests with a browser."""

from tests.server.web.conftest import chromium

__all__ = ["chromium"]
