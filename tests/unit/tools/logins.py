"""Helpers for tests of logins."""

from typing import Any

from examples.calendar_login.provider import FakeOAuth
from waystation.auth import (
    AuthConfig,
    AuthScheme,
    ExtendedOAuth2,
    OAuthFlowAuthorizationCode,
    OAuthFlows,
    OpenIdConnect,
    OpenIdConnectWithConfig,
    complete_authorization,
)
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.core.payload import JsonObject
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext


def calling(store: InMemoryCredentialService, call: str = "fc-1", **about: Any) -> ToolContext:
    """Return the context of a call."""
    fields = {"invocation_id": "inv", "user_id": "ann", "function_call_id": call, **about}
    return ToolContext(services=Services(credentials=store), **fields)


def login(provider: FakeOAuth, **fields: Any) -> AuthConfig:
    """Return the configuration of a tool that needs the user's login."""
    return AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client(**fields))


def requested_config(context: ToolContext) -> JsonObject:
    """Return the requested configuration as clients see it."""
    (config,) = context.recorded_actions().requested_auth_configs.values()
    return config


def auth_uri(context: ToolContext) -> str:
    """Return the address where the user logs in."""
    return str(requested_config(context)["exchangedAuthCredential"]["oauth2"]["authUri"])


async def logged_in(provider: FakeOAuth, store: InMemoryCredentialService, config: AuthConfig) -> None:
    """Let the user log in."""
    context = calling(store)
    context.request_credential(config)
    await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))


def config_with_issuer(provider: FakeOAuth, kind: str) -> AuthConfig:
    """Return a configuration whose endpoints come from the issuer, a document, or another spelling."""
    empty = OAuthFlows(authorizationCode=OAuthFlowAuthorizationCode(authorizationUrl="", tokenUrl=""))
    document = f"{provider.url}/.well-known/oauth-authorization-server"
    schemes: dict[str, AuthScheme] = {
        "issuer": ExtendedOAuth2(flows=empty, issuer_url=provider.url),
        "document": OpenIdConnect(openIdConnectUrl=document),
        "openid": OpenIdConnectWithConfig(
            authorization_endpoint=f"{provider.url}/authorize",
            token_endpoint=f"{provider.url}/token",
            scopes=["openid"],
        ),
    }
    return AuthConfig(auth_scheme=schemes[kind], raw_auth_credential=provider.client())
