"""An identity provider, and an installation that uses it."""

from tests.server.web.conftest import openid, there

__all__ = ["openid", "there"]
