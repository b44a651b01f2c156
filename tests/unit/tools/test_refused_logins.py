"""Refused logins, whose errors contain neither secrets nor text of the provider."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from examples.calendar_login.provider import FakeOAuth
from tests.unit.tools.logins import auth_uri, calling, config_with_issuer, logged_in, login
from waystation.auth import (
    AuthConfig,
    AuthCredential,
    ExtendedOAuth2,
    HTTPBase,
    HTTPBearer,
    OAuth2,
    OAuthFlowAuthorizationCode,
    OAuthFlowImplicit,
    OAuthFlows,
    OpenIdConnect,
    complete_authorization,
    provide_credential,
)
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.core.errors import AuthorizationFailed, CredentialStoreError
from waystation.core.payload import JsonObject
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext


@pytest.mark.parametrize(
    ("ended_at", "problem"),
    [
        ("https://me/cb?code=abc&state=forged", "No pending login has this state"),
        ("https://me/cb?code=abc", "must contain a `code` and a `state`"),
        ("https://me/cb?state=abc", "must contain a `code` and a `state`"),
        ("nonsense", "must contain a `code` and a `state`"),
        ("http://[", "not a valid URL"),
        ("https://me/cb?error=access_denied&error_description=Ann", "The provider refused the login: access_denied"),
        ("https://me/cb?error=%3Cscript%3E", "The provider refused the login: with an error"),
    ],
)
async def test_an_unknown_address_is_refused(store: InMemoryCredentialService, ended_at: str, problem: str) -> None:
    """An unknown address is refused, and the error repeats at most a plain error code."""
    with pytest.raises(AuthorizationFailed, match=problem) as caught:
        await complete_authorization(store, auth_response_uri=ended_at)
    assert "abc" not in str(caught.value)


async def test_a_login_counts_once(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """A state counts once, and is invalid afterward."""
    context = calling(store)
    context.request_credential(login(provider))
    ended_at = provider.log_in(auth_uri(context))
    await complete_authorization(store, auth_response_uri=ended_at)
    with pytest.raises(AuthorizationFailed, match="already complete"):
        await complete_authorization(store, auth_response_uri=ended_at)


async def test_a_login_that_is_finished_twice_at_once_exchanges_its_code_once(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The code is exchanged once, because a browser may send the callback twice."""
    context = calling(store)
    context.request_credential(login(provider))
    ended_at = provider.log_in(auth_uri(context))
    both = [complete_authorization(store, auth_response_uri=ended_at) for _ in range(2)]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["AuthorizationFailed", "Authorized"]
    assert len(provider.token_requests) == 1


async def test_a_login_for_another_call_is_refused(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """A login is refused if the client names another call; its own call can still finish it."""
    context = calling(store)
    context.request_credential(login(provider))
    ended_at = provider.log_in(auth_uri(context))
    with pytest.raises(AuthorizationFailed, match="not for call 'fc-9'"):
        await store.authorize(auth_response_uri=ended_at, call=("inv", "fc-9"))
    assert (await store.authorize(auth_response_uri=ended_at, call=("inv", "fc-1"))).calls == (("inv", "fc-1"),)


@pytest.mark.parametrize("kind", ["issuer", "document"])
async def test_a_login_that_ends_at_another_provider_is_refused(
    provider: FakeOAuth, store: InMemoryCredentialService, kind: str
) -> None:
    """The code is sent to nobody if the login ends at another provider than it began. Source: RFC 9207."""
    context = calling(store)
    context.request_credential(config_with_issuer(provider, kind))
    ended_at = provider.log_in(auth_uri(context))
    with pytest.raises(AuthorizationFailed, match="ended at another provider"):
        await complete_authorization(store, auth_response_uri=f"{ended_at}&iss=https%3A%2F%2Fmallory.example")
    assert provider.token_requests == []
    await complete_authorization(store, auth_response_uri=f"{ended_at}&iss={quote(provider.url, safe='')}")
    assert len(provider.token_requests) == 1


async def test_a_stolen_code_is_useless_without_its_verifier(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The provider refuses a stolen code, because its verifier belongs to another login."""
    ann, bob = calling(store), calling(store, user_id="bob")
    ann.request_credential(login(provider))
    bob.request_credential(login(provider))
    stolen = parse_qs(urlsplit(provider.log_in(auth_uri(ann))).query)["code"][0]
    state = parse_qs(urlsplit(auth_uri(bob)).query)["state"][0]
    with pytest.raises(AuthorizationFailed, match="refused the authorization_code: invalid_grant"):
        await complete_authorization(store, code=stolen, state=state)


async def test_no_error_quotes_a_secret(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """No error quotes a secret, although the provider repeats everything that it received."""
    context = calling(store)
    context.request_credential(
        login(provider, client_secret="wrong-secret", token_endpoint_auth_method="client_secret_post")
    )
    with pytest.raises(AuthorizationFailed, match="invalid_client") as caught:
        await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))
    assert not any(secret in repr(caught.value) for secret in {*provider.secrets, "wrong-secret"})
    assert caught.value.__cause__ is None


async def test_an_unavailable_provider_is_reported_as_such(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The login can be finished later with the same address."""
    context = calling(store)
    context.request_credential(login(provider))
    ended_at = provider.log_in(auth_uri(context))
    provider.down = True
    with pytest.raises(AuthorizationFailed, match=r"did not issue a token for the authorization_code \(status 503\)"):
        await complete_authorization(store, auth_response_uri=ended_at)
    provider.down = False
    await complete_authorization(store, auth_response_uri=ended_at)


@pytest.mark.parametrize(
    ("scheme", "text", "problem"),
    [(HTTPBase(scheme="basic"), "no-colon", "user:password"), (HTTPBearer(), " ", "empty")],
)
async def test_a_text_that_is_not_a_credential_is_refused(
    store: InMemoryCredentialService, scheme: Any, text: str, problem: str
) -> None:
    """A text is refused, and the call still accepts a credential."""
    calling(store).request_credential(AuthConfig(auth_scheme=scheme))
    with pytest.raises(ValueError, match=problem):
        await provide_credential(store, "inv", "fc-1", text)
    await provide_credential(store, "inv", "fc-1", "ann:secret")


async def test_a_call_without_a_request_receives_no_credential(store: InMemoryCredentialService) -> None:
    """A call without a request is refused; usually the program uses another store."""
    with pytest.raises(AuthorizationFailed, match="same store as the workers"):
        await provide_credential(store, "inv", "fc-1", "key")


@pytest.mark.parametrize(
    ("scheme", "raw", "problem"),
    [
        ("login", None, "Auth Scheme oauth2 requires auth_credential."),
        ("login", {"authType": "oauth2"}, "Auth Scheme oauth2 requires oauth2 in auth_credential."),
        ("login", {"authType": "oauth2", "oauth2": {}}, "requires client_id in auth_credential.oauth2."),
        (
            "login",
            {"authType": "oauth2", "oauth2": {"clientId": "c", "codeChallengeMethod": "plain"}},
            "Unsupported code_challenge_method: plain. Only 'S256' is supported.",
        ),
        ("implicit", {"authType": "oauth2", "oauth2": {"clientId": "c"}}, "password flows are not supported"),
        ("own", {"authType": "oauth2", "oauth2": {"clientId": "c"}}, "AuthenticatedFunctionTool"),
        ("silent", {"authType": "oauth2", "oauth2": {"clientId": "c"}}, "OAuth scheme info is missing"),
    ],
)
def test_a_configuration_without_a_usable_login_is_refused(
    provider: FakeOAuth, store: InMemoryCredentialService, scheme: str, raw: JsonObject | None, problem: str
) -> None:
    """The error has ADK's text if ADK has one."""
    schemes = {
        "login": provider.scheme(),
        "own": provider.own_scheme(),
        "implicit": OAuth2(flows=OAuthFlows(implicit=OAuthFlowImplicit(authorizationUrl="https://a"))),
        "silent": OAuth2(
            flows=OAuthFlows(authorizationCode=OAuthFlowAuthorizationCode(authorizationUrl="", tokenUrl=""))
        ),
    }
    credential = None if raw is None else AuthCredential.model_validate(raw)
    with pytest.raises(ValueError, match=problem.replace(".", r"\.")):
        calling(store).request_credential(AuthConfig(auth_scheme=schemes[scheme], raw_auth_credential=credential))


def test_a_description_of_another_issuer_is_refused(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """A description of another issuer is refused, because it would send the user's login to that issuer."""
    issuer = provider.url.replace("127.0.0.1", "localhost")
    config = config_with_issuer(provider, "issuer")
    assert isinstance(config.auth_scheme, ExtendedOAuth2)
    config.auth_scheme.issuer_url = issuer
    with pytest.raises(AuthorizationFailed, match="Provider metadata was not found"):
        calling(store).request_credential(config)


def test_an_openid_document_must_name_its_issuer(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """The document's issuer must be the beginning of its URL. Source: OpenID Connect Discovery 4.3."""
    config = config_with_issuer(provider, "document")
    assert isinstance(config.auth_scheme, OpenIdConnect)
    config.auth_scheme.openIdConnectUrl = config.auth_scheme.openIdConnectUrl.replace("127.0.0.1", "localhost")
    with pytest.raises(AuthorizationFailed, match="Provider metadata was not found"):
        calling(store).request_credential(config)


async def test_nothing_secret_is_logged(
    provider: FakeOAuth, store: InMemoryCredentialService, caplog: pytest.LogCaptureFixture
) -> None:
    """Secrets are not logged, even in the HTTP client's debug log."""
    for logger in (None, "httpx", "httpx2"):  # the last two may have levels from other tests
        caplog.set_level(logging.DEBUG, logger)
    provider.lifetime_s = 10
    config = login(provider, token_endpoint_auth_method="client_secret_post")
    await logged_in(provider, store, config)
    calling(store).get_auth_response(config)
    assert "POST" in caplog.text
    assert not any(secret in caplog.text for secret in provider.secrets)


def test_only_a_tool_call_can_request_a_login() -> None:
    """Callbacks and instruction providers cannot request a login, because they cannot wait."""
    config = AuthConfig(auth_scheme=HTTPBearer())
    with pytest.raises(ValueError, match="request_credential requires function_call_id"):
        ToolContext(services=Services(credentials=InMemoryCredentialService())).request_credential(config)


async def test_requesting_a_login_needs_a_service() -> None:
    """Without a service, reading finds nothing, and requesting raises ADK's error."""
    context = ToolContext(function_call_id="fc-1")
    config = AuthConfig(auth_scheme=HTTPBearer())
    assert context.get_auth_response(config) is None
    assert context.get_credential(config.key) is None
    assert context.auth_response is None
    with pytest.raises(ValueError, match=r"^Credential service is not initialized\.$"):
        context.request_credential(config)
    with pytest.raises(ValueError, match=r"^Credential service is not initialized\.$"):
        await context.load_credential(config)
    with pytest.raises(ValueError, match=r"^Credential service is not initialized\.$"):
        await context.save_credential(config)


@pytest.mark.parametrize("missing", ["authlib.oauth2", "cryptography.hazmat.primitives.ciphers.aead"])
def test_a_missing_package_is_named(
    provider: FakeOAuth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The error names a missing package; workers whose tools need no login run without it."""
    monkeypatch.setitem(sys.modules, missing, None)
    config = login(provider)
    context = ToolContext(
        function_call_id="fc-1", services=Services(credentials=EncryptedFileCredentialService(tmp_path / "credentials"))
    )
    with pytest.raises((AuthorizationFailed, CredentialStoreError), match=r"pip install 'waystation\[auth\]'"):
        context.request_credential(config)
