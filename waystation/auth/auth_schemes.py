"""How a service wants to be authenticated: the security schemes of OpenAPI 3, under the names ADK takes from FastAPI.

JSON names are those of OpenAPI. The models of FastAPI itself are accepted wherever these are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from waystation.auth.auth_credential import AuthModel


class SecuritySchemeType(StrEnum):
    """The kinds of scheme that OpenAPI 3 knows."""

    apiKey = "apiKey"
    http = "http"
    oauth2 = "oauth2"
    openIdConnect = "openIdConnect"


AuthSchemeType = SecuritySchemeType


class SchemeModel(BaseModel):
    """A part of a scheme: names as in OpenAPI, further fields kept."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", validate_by_name=True, validate_by_alias=True)


class SecurityBase(SchemeModel):
    """Any scheme of OpenAPI."""

    type_: SecuritySchemeType = Field(alias="type")
    description: str | None = None


class APIKeyIn(StrEnum):
    """Where a key is sent."""

    query = "query"
    header = "header"
    cookie = "cookie"


class APIKey(SecurityBase):
    """A key in a header, a cookie or the query."""

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
    """What all flows have."""

    refreshUrl: str | None = None
    scopes: dict[str, str] = {}


class OAuthFlowImplicit(OAuthFlow):
    """Tokens straight from the login; not supported, and no longer recommended by anybody."""

    authorizationUrl: str


class OAuthFlowPassword(OAuthFlow):
    """Tokens for a user's password; not supported, for the same reason."""

    tokenUrl: str


class OAuthFlowClientCredentials(OAuthFlow):
    """Tokens for the program itself; no user takes part."""

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
    """OAuth 2 whose endpoints may be left empty: they are asked of the issuer."""

    issuer_url: str | None = None


class OpenIdConnect(SecurityBase):
    """OpenID Connect, described by a document at a URL."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.openIdConnect, alias="type")
    openIdConnectUrl: str


class OpenIdConnectWithConfig(SecurityBase):
    """OpenID Connect with the endpoints spelt out."""

    type_: SecuritySchemeType = Field(default=SecuritySchemeType.openIdConnect, alias="type")
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None = None
    revocation_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    scopes: list[str] | None = None


class CustomAuthScheme(AuthModel):
    """A scheme that OpenAPI does not know."""

    type_: str = Field(alias="type")


class OAuthGrantType(StrEnum):
    """The flows, as token endpoints call them."""

    CLIENT_CREDENTIALS = "client_credentials"
    AUTHORIZATION_CODE = "authorization_code"
    IMPLICIT = "implicit"
    PASSWORD = "password"


def _own(value: Any) -> Any:
    """Return FastAPI's model of a scheme as JSON, and anything else as it is."""
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
    BeforeValidator(_own),
]
