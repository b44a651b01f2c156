"""An installation with keys of its own."""

from tests.unit.identity.conftest import there

__all__ = ["there"]
