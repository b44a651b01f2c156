"""Configurations and credentials have ADK's names and JSON, and never display secrets."""

import copy
import json
import logging
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waystation.auth import (
    APIKey,
    APIKeyIn,
    AuthConfig,
    AuthCredential,
    AuthCredentialTypes,
    HttpAuth,
    HTTPBase,
    HTTPBearer,
    HttpCredentials,
    OAuth2,
    OAuth2Auth,
    OAuthFlowAuthorizationCode,
    OAuthFlows,
    OpenIdConnectWithConfig,
    ServiceAccount,
    ServiceAccountCredential,
)
from waystation.core.errors import NotJson
from waystation.core.payload import to_plain_json
from waystation.core.secrets import Secret

CANARY = "canary-7f3a91"

KEY = APIKey(in_=APIKeyIn.header, name="X-Key")
LOGIN = OAuth2(
    flows=OAuthFlows(
        authorizationCode=OAuthFlowAuthorizationCode(
            authorizationUrl="https://a/auth", tokenUrl="https://a/token", scopes={"r": "read"}
        )
    )
)


def account() -> ServiceAccountCredential:
    """Return the key of a service account whose secret parts are canaries."""
    texts = dict.fromkeys(("client_email", "client_id", "auth_uri", "token_uri", "universe_domain", "project_id"), "x")
    urls = dict.fromkeys(("auth_provider_x509_cert_url", "client_x509_cert_url"), "https://x")
    return ServiceAccountCredential(type_="service_account", private_key_id=CANARY, private_key=CANARY, **texts, **urls)


def http_credential(**fields: Any) -> AuthCredential:
    """Return a credential for an Authorization header."""
    held = HttpAuth(scheme="x", credentials=HttpCredentials(**fields), additional_headers={"X-Also": CANARY})
    return AuthCredential(auth_type=AuthCredentialTypes.HTTP, http=held)


SECRETIVE = [
    AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=CANARY),
    http_credential(username="u", password=CANARY),
    http_credential(token=CANARY),
    AuthCredential(
        auth_type=AuthCredentialTypes.OAUTH2,
        oauth2=OAuth2Auth(
            client_id="cid",
            client_secret=CANARY,
            auth_code=CANARY,
            auth_response_uri=f"https://me/?code={CANARY}",
            access_token=CANARY,
            refresh_token=CANARY,
            id_token=CANARY,
            code_verifier=CANARY,
        ),
    ),
    AuthCredential(
        auth_type=AuthCredentialTypes.SERVICE_ACCOUNT,
        service_account=ServiceAccount(service_account_credential=account()),
    ),
    # A provider's answer may contain unknown fields.
    AuthCredential.model_validate({"authType": "oauth2", "oauth2": {"clientId": "cid", "deviceSecret": CANARY}}),
    AuthCredential.model_validate({"authType": "oauth2", "more": {"nested": [CANARY]}}),
]


@pytest.mark.parametrize("credential", SECRETIVE, ids=lambda credential: str(credential.auth_type))
def test_a_credential_does_not_show_its_secrets(credential: AuthCredential) -> None:
    """Secrets are hidden in text, in dumps, in a configuration or list, and in the credential's own attributes."""
    config = AuthConfig(auth_scheme=KEY, raw_auth_credential=credential, exchanged_auth_credential=credential)
    for holder in (credential, config, [credential], {"c": config}):
        assert CANARY not in repr(holder)
        assert CANARY not in str(holder)
        assert CANARY not in json.dumps(to_plain_json(holder))
    for model in (credential, config):
        for by_alias in (True, False):
            assert CANARY not in str(model.model_dump(by_alias=by_alias))
            assert CANARY not in model.model_dump_json(by_alias=by_alias)
    assert CANARY not in json.dumps(config.redacted())
    assert CANARY not in repr(vars(credential))
    assert CANARY not in logging.makeLogRecord({"msg": "%s %r", "args": (credential, config)}).getMessage()


@pytest.mark.parametrize("credential", SECRETIVE, ids=lambda credential: str(credential.auth_type))
def test_a_stored_credential_survives_a_round_trip(credential: AuthCredential) -> None:
    """Only `exposed` returns the secrets for storage."""
    written = credential.exposed()
    assert CANARY in json.dumps(written)
    restored = AuthCredential.model_validate(json.loads(json.dumps(written)))
    assert restored == credential
    assert restored.exposed() == written
    assert CANARY in " ".join(restored.secrets())
    assert CANARY not in repr(restored)


def test_secrets_are_strings_for_tools() -> None:
    """ADK's tools read them unchanged; an assigned secret is hidden, and copies stay hidden."""
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=CANARY)
    assert credential.api_key == CANARY
    assert f"Bearer {credential.api_key}" == f"Bearer {CANARY}"
    credential.api_key = f"{CANARY}-2"
    for copied in (credential, credential.model_copy(deep=True), copy.deepcopy(credential)):
        assert isinstance(copied.api_key, Secret)
    assert pickle.loads(pickle.dumps(credential)).api_key == f"{CANARY}-2"


def test_a_secret_of_a_credential_cannot_be_recorded() -> None:
    """A tool that returns a credential or writes it to state receives an error."""
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=CANARY)
    with pytest.raises(NotJson, match=r"'key' is part of a credential"):
        to_plain_json({"key": credential.api_key})


def test_a_validation_error_omits_the_value() -> None:
    """The error omits the value, because a malformed secret is still a secret."""
    with pytest.raises(ValidationError) as caught:
        AuthCredential.model_validate({"authType": "apiKey", "apiKey": [CANARY]})
    assert "apiKey" in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (AuthConfig(auth_scheme=KEY), "adk_apiKey_9a46dad5a84303f3_"),
        (AuthConfig(auth_scheme=HTTPBearer(bearerFormat="JWT")), "adk_http_3e922d755264ee81_"),
        (
            AuthConfig(
                auth_scheme=LOGIN,
                raw_auth_credential=AuthCredential(
                    auth_type=AuthCredentialTypes.OAUTH2,
                    oauth2=OAuth2Auth(client_id="cid", redirect_uri="https://me/cb"),
                ),
            ),
            "adk_oauth2_1dcfe95714f3a3fa_oauth2_015a05355fd9ed48",
        ),
        (AuthConfig(auth_scheme=KEY, credential_key="mine"), "mine"),
        (AuthConfig.model_validate({"authScheme": {"type": "http", "scheme": "x", "credentialKey": "its"}}), "its"),
    ],
)
def test_credential_keys_equal_those_of_adk(config: AuthConfig, key: str) -> None:
    """The keys equal those that google-adk 2.13 computes."""
    assert config.credential_key == key


def test_a_credential_key_contains_no_secret() -> None:
    """Keys are recorded, and a renewed client secret keeps the logins of users."""

    def config(secret: str) -> AuthConfig:
        oauth2 = OAuth2Auth(client_id="cid", client_secret=secret, state=secret, redirect_uri=secret)
        raw = AuthCredential(auth_type=AuthCredentialTypes.OAUTH2, oauth2=oauth2)
        return AuthConfig(auth_scheme=LOGIN, raw_auth_credential=raw)

    assert config("one").credential_key == config("two").credential_key


def test_a_configuration_is_read_from_adks_json() -> None:
    """Names in camelCase are read, and each scheme has the class of its kind."""
    data = {
        "authScheme": {"type": "http", "scheme": "basic"},
        "rawAuthCredential": {"authType": "http", "http": {"scheme": "basic", "credentials": {"username": "u"}}},
        "credentialKey": "k",
    }
    config = AuthConfig.model_validate(data)
    assert type(config.auth_scheme) is HTTPBase
    assert config.redacted() == data
    openid = {"type": "openIdConnect", "authorization_endpoint": "https://a", "token_endpoint": "https://t"}
    read = AuthConfig.model_validate({"authScheme": openid, "rawAuthCredential": {"authType": "apiKey"}})
    assert type(read.auth_scheme) is OpenIdConnectWithConfig


def test_schemes_of_fastapi_are_accepted() -> None:
    """FastAPI's schemes, which agents for ADK import, are accepted: models with `type_` and aliases."""

    class SecurityBase(BaseModel):
        model_config = ConfigDict(extra="allow", populate_by_name=True)
        type_: str = Field(default="apiKey", alias="type")
        in_: str = Field(default="header", alias="in")
        name: str = "X-Key"

    foreign: Any = SecurityBase()
    config = AuthConfig(auth_scheme=foreign)
    assert config.auth_scheme == KEY
    assert config.credential_key == "adk_apiKey_9a46dad5a84303f3_"


def test_a_displayed_scheme_omits_fields_named_like_secrets() -> None:
    """Fields that are named like secrets are hidden, because authors may add any field; scopes and flows are shown."""
    data = {"type": "apiKey", "in": "header", "name": "X-Key", "x-api-key": CANARY, "extra": {"token": CANARY}}
    redacted = AuthConfig.model_validate({"authScheme": data}).redacted()["authScheme"]
    assert redacted == {"type": "apiKey", "in": "header", "name": "X-Key", "extra": {}}
    assert "authorizationCode" in AuthConfig(auth_scheme=LOGIN).redacted()["authScheme"]["flows"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "service_account_credential is required when use_default_credential is False."),
        ({"use_default_credential": True, "use_id_token": True}, "audience is required when use_id_token is True."),
    ],
)
def test_an_incomplete_service_account_is_refused(fields: dict[str, Any], problem: str) -> None:
    """The error has ADK's text."""
    with pytest.raises(ValidationError, match=problem):
        ServiceAccount(**fields)
