"""Credentials, with the same names and JSON format as in ADK.

Secret fields hold `Secret` strings, which `repr` hides and `model_dump` leaves out. Only `exposed` returns them, and
only stores that encrypt their content should call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from waystation.core.payload import JsonObject
from waystation.core.secrets import Secret

_EXPOSE = "expose_secrets"


def _hide(value: Any) -> Any:
    match value:
        case str():
            return Secret(value)
        case dict():
            return {key: _hide(item) for key, item in value.items()}
        case list():
            return [_hide(item) for item in value]
        case _:
            return value


Hidden: TypeAlias = Annotated[str | None, AfterValidator(_hide)]
"""A string field that is converted to a `Secret`."""


class AuthModel(BaseModel):
    """Base class for parts of credentials and authentication schemes. Accepts camelCase JSON names and Python names."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        validate_assignment=True,
        hide_input_in_errors=True,
    )


class CredentialPart(AuthModel):
    """Base class for parts of a credential. Unknown fields are treated as secrets."""

    @model_validator(mode="after")
    def _hide_extras(self) -> CredentialPart:
        for key, value in (self.__pydantic_extra__ or {}).items():
            (self.__pydantic_extra__ or {})[key] = _hide(value)
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if isinstance(info.context, dict) and info.context.get(_EXPOSE):
            return content
        public = {name: field for name, field in type(self).model_fields.items() if not _is_secret(field.metadata)}
        names = {*public, *(field.alias for field in public.values())}
        return {key: value for key, value in content.items() if key in names}

    def exposed(self) -> JsonObject:
        """Return the JSON including all secrets. Call this only to store the result encrypted."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, context={_EXPOSE: True})

    def secrets(self) -> Iterator[Secret]:
        """Yield every secret string in the credential."""
        return _find_secrets(dict(self))

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]


def _is_secret(metadata: list[Any]) -> bool:
    return any(isinstance(item, AfterValidator) and item.func is _hide for item in metadata)


def _find_secrets(value: Any) -> Iterator[Secret]:
    match value:
        case Secret():
            yield value
        case CredentialPart():
            yield from value.secrets()
        case dict():
            for item in value.values():
                yield from _find_secrets(item)
        case list():
            for item in value:
                yield from _find_secrets(item)


class HttpCredentials(CredentialPart):
    """The content of an Authorization header."""

    username: str | None = None
    password: Hidden = None
    token: Hidden = None


class HttpAuth(CredentialPart):
    """A credential for HTTP authentication (RFC 7235)."""

    scheme: str
    """The HTTP authentication scheme, such as `basic` or `bearer`."""
    credentials: HttpCredentials
    additional_headers: Annotated[dict[str, str] | None, AfterValidator(_hide)] = None


class OAuth2Auth(CredentialPart):
    """An OAuth 2 client and the tokens that the provider issued to it."""

    client_id: str | None = None
    client_secret: Hidden = None
    auth_uri: str | None = None
    """The URI where the user logs in. It is generated if not set."""
    nonce: str | None = None
    state: str | None = None
    redirect_uri: str | None = None
    """The URI that the provider redirects the user to after the login."""
    auth_response_uri: Hidden = None
    """The complete URI that the provider redirected the user to."""
    auth_code: Hidden = None
    access_token: Hidden = None
    refresh_token: Hidden = None
    id_token: Hidden = None
    expires_at: int | None = None
    """When the access token expires, in seconds since 1970."""
    expires_in: int | None = None
    """The lifetime of the access token in seconds, counted from when it was issued."""
    audience: str | None = None
    prompt: str | None = None
    code_verifier: Hidden = None
    code_challenge_method: str | None = None
    token_endpoint_auth_method: (
        Literal["client_secret_basic", "client_secret_post", "client_secret_jwt", "private_key_jwt"] | None
    ) = "client_secret_basic"


class ServiceAccountCredential(CredentialPart):
    """The content of a Google service account's JSON key file."""

    type_: str = Field("", alias="type")
    project_id: str
    private_key_id: Annotated[str, AfterValidator(_hide)]
    private_key: Annotated[str, AfterValidator(_hide)]
    client_email: str
    client_id: str
    auth_uri: str
    token_uri: str
    auth_provider_x509_cert_url: str
    client_x509_cert_url: str
    universe_domain: str


class ServiceAccount(CredentialPart):
    """A Google service account and the kind of token to request for it."""

    service_account_credential: ServiceAccountCredential | None = None
    """The account's key. It is required unless `use_default_credential` is true. In that case, None means the
    credential in the environment.
    """
    scopes: list[str] | None = None
    use_default_credential: bool | None = False
    use_id_token: bool | None = False
    """Whether to request an ID token instead of an access token, as Cloud Run and Cloud Functions require."""
    audience: str | None = None
    """The URL of the service that receives the ID token."""

    @model_validator(mode="after")
    def _check_completeness(self) -> ServiceAccount:
        # These messages are the same as in ADK.
        if not self.use_default_credential and self.service_account_credential is None:
            raise ValueError("service_account_credential is required when use_default_credential is False.")
        if self.use_id_token and not self.audience:
            raise ValueError(
                "audience is required when use_id_token is True. Set it to the URL of the target service"
                " (e.g. 'https://my-service.run.app')."
            )
        return self


class AuthCredentialTypes(StrEnum):
    """The types of credentials."""

    API_KEY = "apiKey"
    HTTP = "http"
    OAUTH2 = "oauth2"
    OPEN_ID_CONNECT = "openIdConnect"
    SERVICE_ACCOUNT = "serviceAccount"


class AuthCredential(CredentialPart):
    """A credential of any type. Only the field that belongs to `auth_type` is set."""

    auth_type: AuthCredentialTypes
    resource_ref: str | None = None
    api_key: Hidden = None
    http: HttpAuth | None = None
    service_account: ServiceAccount | None = None
    oauth2: OAuth2Auth | None = None
