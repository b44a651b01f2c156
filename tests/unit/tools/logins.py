"""What tests of logins have in common."""

from typing import Any

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
from waystation.core import JsonObject
from waystation.testing.fake_oauth import FakeOAuth
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext


def calling(store: InMemoryCredentialService, call: str = "fc-1", **about: Any) -> ToolContext:
    """Return the context of a call."""
    given = {"invocation_id": "inv", "user_id": "ann", "function_call_id": call, **about}
    return ToolContext(services=Services(credentials=store), **given)


def login(provider: FakeOAuth, **fields: Any) -> AuthConfig:
    """Return what a tool asks for that wants the user to log in."""
    return AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client(**fields))


def asked(context: ToolContext) -> JsonObject:
    """Return what clients are shown."""
    (shown,) = context.recorded_actions().requested_auth_configs.values()
    return shown


def auth_uri(context: ToolContext) -> str:
    """Return where the user logs in."""
    return str(asked(context)["exchangedAuthCredential"]["oauth2"]["authUri"])


async def logged_in(provider: FakeOAuth, store: InMemoryCredentialService, config: AuthConfig) -> None:
    """Let the user log in."""
    context = calling(store)
    context.request_credential(config)
    await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))


def described(provider: FakeOAuth, kind: str) -> AuthConfig:
    """Return a configuration that leaves endpoints to the provider, or spells them out in another form."""
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
