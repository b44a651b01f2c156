"""An installation with its own keys."""

from tests.unit.identity.conftest import there

__all__ = ["there"]
