"""The security schemes of OpenAPI 3, under the names that ADK takes from FastAPI.

JSON names are those of OpenAPI. FastAPI's own models are accepted in place of these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from waystation.auth.auth_credential import AuthModel


class SecuritySchemeType(StrEnum):
    """The kinds of security schemes in OpenAPI 3."""

    apiKey = "apiKey"
    http = "http"
    oauth2 = "oauth2"
    openIdConnect = "openIdConnect"


AuthSchemeType = SecuritySchemeType


class SchemeModel(BaseModel):
    """A part of a scheme. Unknown fields are preserved."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", validate_by_name=True, validate_by_alias=True)


class SecurityBase(SchemeModel):
    """A scheme of OpenAPI."""

    type_: SecuritySchemeType = Field(alias="type")
    description: str | None = None


class APIKeyIn(StrEnum):
    """The part of a request that carries an API key."""

    query = "query"
    header = "header"
    cookie = "cookie"


class APIKey(SecurityBase):
    """An API key in a header, a cookie or the query."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.apiKey, alias="type")
    in_: APIKeyIn = Field(alias="in")
    name: str


class HTTPBase(SecurityBase):
    """HTTP authentication (RFC 7235)."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.http, alias="type")
    scheme: str


class HTTPBearer(HTTPBase):
    """A bearer token."""

    scheme: Literal["bearer"] = "bearer"
    bearerFormat: str | None = None


class OAuthFlow(SchemeModel):
    """The common fields of all flows."""

    refreshUrl: str | None = None
    scopes: dict[str, str] = {}


class OAuthFlowImplicit(OAuthFlow):
    """Tokens straight from the login. Not supported; OAuth 2.1 removes this flow."""

    authorizationUrl: str


class OAuthFlowPassword(OAuthFlow):
    """Tokens for a user's password. Not supported; OAuth 2.1 removes this flow."""

    tokenUrl: str


class OAuthFlowClientCredentials(OAuthFlow):
    """Tokens for the program itself, without a user."""

    tokenUrl: str


class OAuthFlowAuthorizationCode(OAuthFlow):
    """Tokens for a user who logs in."""

    authorizationUrl: str
    tokenUrl: str


class OAuthFlows(SchemeModel):
    """The flows that a provider offers."""

    implicit: OAuthFlowImplicit | None = None
    password: OAuthFlowPassword | None = None
    clientCredentials: OAuthFlowClientCredentials | None = None
    authorizationCode: OAuthFlowAuthorizationCode | None = None


class OAuth2(SecurityBase):
    """OAuth 2."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.oauth2, alias="type")
    flows: OAuthFlows


class ExtendedOAuth2(OAuth2):
    """OAuth 2 with discovery: empty endpoints are fetched from the issuer's metadata."""

    issuer_url: str | None = None


class OpenIdConnect(SecurityBase):
    """OpenID Connect with a discovery document."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.openIdConnect, alias="type")
    openIdConnectUrl: str


class OpenIdConnectWithConfig(SecurityBase):
    """OpenID Connect with explicit endpoints."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.openIdConnect, alias="type")
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None = None
    revocation_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    scopes: list[str] | None = None


class CustomAuthScheme(AuthModel):
    """A scheme outside OpenAPI."""

    type_: str = Field(alias="type")


class OAuthGrantType(StrEnum):
    """The grant types of OAuth 2, as sent to token endpoints."""

    CLIENT_CREDENTIALS = "client_credentials"
    AUTHORIZATION_CODE = "authorization_code"
    IMPLICIT = "implicit"
    PASSWORD = "password"


def _parse_scheme(value: Any) -> Any:
    """Parse JSON or one of FastAPI's models into the scheme of its type. Other values are returned unchanged."""
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
