"""Credentials, with ADK's names and JSON.

The values of secret fields are `Secret`: texts that do not show in `repr`, and that dumps leave out. Only `exposed`
gives them away, for stores.
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

from waystation.core import JsonObject, Secret

_EXPOSE = "expose_secrets"


def _hidden(value: Any) -> Any:
    match value:
        case str():
            return Secret(value)
        case dict():
            return {key: _hidden(item) for key, item in value.items()}
        case list():
            return [_hidden(item) for item in value]
        case _:
            return value


Hidden: TypeAlias = Annotated[str | None, AfterValidator(_hidden)]
"""A text that is a secret; given as any text."""


class AuthModel(BaseModel):
    """A part of a credential or of an authentication scheme. JSON names are camelCase, Python's are accepted too."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        validate_assignment=True,
        hide_input_in_errors=True,
    )


class CredentialPart(AuthModel):
    """A part of a credential. Fields that are not known here count as secret."""

    @model_validator(mode="after")
    def _hide_extras(self) -> CredentialPart:
        for key, value in (self.__pydantic_extra__ or {}).items():
            (self.__pydantic_extra__ or {})[key] = _hidden(value)
        return self

    @model_serializer(mode="wrap")
    def _without_secrets(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        if isinstance(info.context, dict) and info.context.get(_EXPOSE):
            return written
        fields = type(self).model_fields
        shown = {name for name, field in fields.items() if not _is_secret(field.metadata)}
        shown |= {field.alias for name, field in fields.items() if name in shown and field.alias}
        return {key: value for key, value in written.items() if key in shown}

    def exposed(self) -> JsonObject:
        """Return the JSON with all secrets, for a store that encrypts it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, context={_EXPOSE: True})

    def secrets(self) -> Iterator[Secret]:
        """Yield every secret text in it."""
        return _secrets_in(dict(self))

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]


def _is_secret(metadata: list[Any]) -> bool:
    return any(isinstance(item, AfterValidator) and item.func is _hidden for item in metadata)


def _secrets_in(value: Any) -> Iterator[Secret]:
    match value:
        case Secret():
            yield value
        case CredentialPart():
            yield from value.secrets()
        case dict():
            for item in value.values():
                yield from _secrets_in(item)
        case list():
            for item in value:
                yield from _secrets_in(item)


class HttpCredentials(CredentialPart):
    """What goes into an Authorization header."""

    username: str | None = None
    password: Hidden = None
    token: Hidden = None


class HttpAuth(CredentialPart):
    """A credential of HTTP authentication (RFC 7235)."""

    scheme: str
    """`basic`, `bearer`, …"""
    credentials: HttpCredentials
    additional_headers: Annotated[dict[str, str] | None, AfterValidator(_hidden)] = None


class OAuth2Auth(CredentialPart):
    """A client of an OAuth 2 provider, and what it was given there."""

    client_id: str | None = None
    client_secret: Hidden = None
    auth_uri: str | None = None
    """Where the user logs in; made unless given."""
    nonce: str | None = None
    state: str | None = None
    redirect_uri: str | None = None
    """Where the provider sends the user after the login."""
    auth_response_uri: Hidden = None
    """The whole URI to which the provider sent the user."""
    auth_code: Hidden = None
    access_token: Hidden = None
    refresh_token: Hidden = None
    id_token: Hidden = None
    expires_at: int | None = None
    """Seconds since 1970."""
    expires_in: int | None = None
    """Seconds, from when the token was issued."""
    audience: str | None = None
    prompt: str | None = None
    code_verifier: Hidden = None
    code_challenge_method: str | None = None
    token_endpoint_auth_method: (
        Literal["client_secret_basic", "client_secret_post", "client_secret_jwt", "private_key_jwt"] | None
    ) = "client_secret_basic"


class ServiceAccountCredential(CredentialPart):
    """The JSON key of a Google service account."""

    type_: str = Field("", alias="type")
    project_id: str
    private_key_id: Annotated[str, AfterValidator(_hidden)]
    private_key: Annotated[str, AfterValidator(_hidden)]
    client_email: str
    client_id: str
    auth_uri: str
    token_uri: str
    auth_provider_x509_cert_url: str
    client_x509_cert_url: str
    universe_domain: str


class ServiceAccount(CredentialPart):
    """A Google service account, and what is asked of it."""

    service_account_credential: ServiceAccountCredential | None = None
    """The key; None to use what the environment provides, with `use_default_credential`."""
    scopes: list[str] | None = None
    use_default_credential: bool | None = False
    use_id_token: bool | None = False
    """Whether an ID token is wanted, as Cloud Run and Cloud Functions do, instead of an access token."""
    audience: str | None = None
    """For an ID token: the URL of the service that receives it."""

    @model_validator(mode="after")
    def _is_complete(self) -> ServiceAccount:
        # ADK's wire literals.
        if not self.use_default_credential and self.service_account_credential is None:
            raise ValueError("service_account_credential is required when use_default_credential is False.")
        if self.use_id_token and not self.audience:
            raise ValueError(
                "audience is required when use_id_token is True. Set it to the URL of the target service"
                " (e.g. 'https://my-service.run.app')."
            )
        return self


class AuthCredentialTypes(StrEnum):
    """What kind of credential it is."""

    API_KEY = "apiKey"
    HTTP = "http"
    OAUTH2 = "oauth2"
    OPEN_ID_CONNECT = "openIdConnect"
    SERVICE_ACCOUNT = "serviceAccount"


class AuthCredential(CredentialPart):
    """A credential of any kind; only the field of its kind is set."""

    auth_type: AuthCredentialTypes
    resource_ref: str | None = None
    api_key: Hidden = None
    http: HttpAuth | None = None
    service_account: ServiceAccount | None = None
    oauth2: OAuth2Auth | None = None
