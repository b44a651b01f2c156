"""The security schemes of OpenAPI 3, with the class names that ADK imports from FastAPI.

The JSON names match OpenAPI. FastAPI's models are also accepted wherever these classes are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from waystation.auth.auth_credential import AuthModel


class SecuritySchemeType(StrEnum):
    """The types of security schemes in OpenAPI 3."""

    apiKey = "apiKey"
    http = "http"
    oauth2 = "oauth2"
    openIdConnect = "openIdConnect"


AuthSchemeType = SecuritySchemeType


class SchemeModel(BaseModel):
    """Base class for parts of a security scheme. Unknown fields are preserved."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", validate_by_name=True, validate_by_alias=True)


class SecurityBase(SchemeModel):
    """Base class for the security schemes of OpenAPI."""

    type_: SecuritySchemeType = Field(alias="type")
    description: str | None = None


class APIKeyIn(StrEnum):
    """The part of a request that carries an API key."""

    query = "query"
    header = "header"
    cookie = "cookie"


class APIKey(SecurityBase):
    """An API key that is sent in a header, a cookie or the query string."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.apiKey, alias="type")
    in_: APIKeyIn = Field(alias="in")
    name: str


class HTTPBase(SecurityBase):
    """An HTTP authentication scheme (RFC 7235)."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.http, alias="type")
    scheme: str


class HTTPBearer(HTTPBase):
    """HTTP authentication with a bearer token."""

    scheme: Literal["bearer"] = "bearer"
    bearerFormat: str | None = None


class OAuthFlow(SchemeModel):
    """Base class for OAuth flows, with the fields that they share."""

    refreshUrl: str | None = None
    scopes: dict[str, str] = {}


class OAuthFlowImplicit(OAuthFlow):
    """The implicit flow, where the login returns tokens directly. Not supported, because OAuth 2.1 removes it."""

    authorizationUrl: str


class OAuthFlowPassword(OAuthFlow):
    """The password flow, which exchanges a user's password for tokens. Not supported, because OAuth 2.1 removes it."""

    tokenUrl: str


class OAuthFlowClientCredentials(OAuthFlow):
    """The client credentials flow, where the program itself gets a token without a user."""

    tokenUrl: str


class OAuthFlowAuthorizationCode(OAuthFlow):
    """The authorization code flow, where a user logs in."""

    authorizationUrl: str
    tokenUrl: str


class OAuthFlows(SchemeModel):
    """The OAuth flows that a provider supports."""

    implicit: OAuthFlowImplicit | None = None
    password: OAuthFlowPassword | None = None
    clientCredentials: OAuthFlowClientCredentials | None = None
    authorizationCode: OAuthFlowAuthorizationCode | None = None


class OAuth2(SecurityBase):
    """OAuth 2 with one or more flows."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.oauth2, alias="type")
    flows: OAuthFlows


class ExtendedOAuth2(OAuth2):
    """OAuth 2 with discovery. Empty endpoints are looked up in the issuer's metadata."""

    issuer_url: str | None = None


class OpenIdConnect(SecurityBase):
    """OpenID Connect, configured by the URL of a discovery document."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.openIdConnect, alias="type")
    openIdConnectUrl: str


class OpenIdConnectWithConfig(SecurityBase):
    """OpenID Connect, configured by explicit endpoints."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.openIdConnect, alias="type")
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None = None
    revocation_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    scopes: list[str] | None = None


class CustomAuthScheme(AuthModel):
    """A security scheme that OpenAPI does not define."""

    type_: str = Field(alias="type")


class OAuthGrantType(StrEnum):
    """The OAuth 2 grant types, with the values that are sent to token endpoints."""

    CLIENT_CREDENTIALS = "client_credentials"
    AUTHORIZATION_CODE = "authorization_code"
    IMPLICIT = "implicit"
    PASSWORD = "password"


def _parse_scheme(value: Any) -> Any:
    """Convert JSON or a FastAPI model into the scheme class for its type. Return other values unchanged."""
    if isinstance(value, BaseModel) and not isinstance(value, SecurityBase | CustomAuthScheme):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not isinstance(value, dict):
        return value
    kind = value.get("type", value.get("type_"))
    models: dict[str, type[SecurityBase]] = {
        "apiKey": APIKey,
        "http": HTTPBearer if value.get("scheme", "bearer") == "bearer" else HTTPBase,
        "oauth2": ExtendedOAuth2 if value.get("issuer_url") else OAuth2,
        "openIdConnect": OpenIdConnect if "openIdConnectUrl" in value else OpenIdConnectWithConfig,
    }
    model = models.get(str(getattr(kind, "value", kind)))
    return value if model is None else model.model_validate(value)


SecurityScheme: TypeAlias = APIKey | HTTPBase | OAuth2 | OpenIdConnect | HTTPBearer
AuthScheme: TypeAlias = Annotated[
    APIKey
    | HTTPBearer
    | HTTPBase
    | ExtendedOAuth2
    | OAuth2
    | OpenIdConnect
    | OpenIdConnectWithConfig
    | CustomAuthScheme,
    BeforeValidator(_parse_scheme),
]
