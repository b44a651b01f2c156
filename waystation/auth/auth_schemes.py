"""Where ADK has `google.adk.auth.auth_schemes`."""

from tools.auth import (
    AuthScheme,
    AuthSchemeType,
    CustomAuthScheme,
    ExtendedOAuth2,
    OAuthGrantType,
    OpenIdConnectWithConfig,
)

__all__ = [
    "AuthScheme",
    "AuthSchemeType",
    "CustomAuthScheme",
    "ExtendedOAuth2",
    "OAuthGrantType",
    "OpenIdConnectWithConfig",
]
