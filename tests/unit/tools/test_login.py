"""From a tool's request to stored tokens, with a provider over HTTP."""

import asyncio
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from examples.calendar_login.provider import REDIRECT_URI, FakeOAuth
from tests.unit.tools.logins import auth_uri, calling, config_with_issuer, logged_in, login, requested_config
from waystation.auth import (
    APIKey,
    APIKeyIn,
    AuthConfig,
    AuthCredential,
    AuthCredentialTypes,
    HTTPBase,
    HTTPBearer,
    WaitingCall,
    complete_authorization,
    provide_credential,
)
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.core.errors import AuthorizationFailed
from waystation.core.payload import JsonObject


def test_a_request_shows_the_address_of_the_login_and_no_secret(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The request has ADK's shape, the parameters of ADK's link, and always PKCE."""
    context = calling(store)
    config = login(provider)
    context.request_credential(config)
    config_shown = requested_config(context)
    made = config_shown["exchangedAuthCredential"]["oauth2"]
    assert list(config_shown) == ["authScheme", "rawAuthCredential", "exchangedAuthCredential", "credentialKey"]
    assert made.keys() == {
        "clientId", "authUri", "state", "redirectUri", "codeChallengeMethod", "tokenEndpointAuthMethod"
    }  # fmt: skip
    query = {name: values[0] for name, values in parse_qs(urlsplit(made["authUri"]).query).items()}
    assert query.pop("code_challenge")
    assert query == {
        "response_type": "code",
        "client_id": provider.client_id,
        "redirect_uri": REDIRECT_URI,
        "scope": "calendar.read",
        "state": made["state"],
        "access_type": "offline",
        "prompt": "consent",
        "code_challenge_method": "S256",
    }
    assert provider.client_secret not in json.dumps(config_shown)


async def test_a_login_gives_the_tool_its_tokens(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """The next run and later invocations of the user receive the credential, as in ADK."""
    context = calling(store)
    config = login(provider)
    assert context.get_auth_response(config) is None
    context.request_credential(config)
    kept = await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))
    assert kept.calls == (("inv", "fc-1"),)
    assert kept.credential_key == config.credential_key
    for later_context in (calling(store), calling(store, invocation_id="later", call="fc-7")):
        credential = later_context.get_auth_response(config)
        assert credential is not None
        assert credential.oauth2 is not None
        assert credential.oauth2.access_token in provider.secrets
        assert credential.oauth2.client_secret == provider.client_secret
        assert credential.oauth2.code_verifier is None
    assert calling(store, user_id="bob").get_auth_response(config) is None


async def test_the_credential_of_a_call_is_its_auth_response(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The credential needs no configuration; it is None before the login and for calls that requested none."""
    context = calling(store)
    context.request_credential(login(provider))
    assert calling(store).auth_response is None
    await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))
    credential = calling(store).auth_response
    assert credential is not None
    assert credential.oauth2 is not None
    assert credential.oauth2.access_token in provider.secrets
    assert calling(store, call="fc-2").auth_response is None


async def test_code_and_state_replace_the_address(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Code and state can be passed separately, because a callback may use a framework that has parsed the query."""
    context = calling(store)
    context.request_credential(login(provider))
    query = parse_qs(urlsplit(provider.log_in(auth_uri(context))).query)
    kept = await complete_authorization(store, code=query["code"][0], state=query["state"][0])
    assert kept.calls == (("inv", "fc-1"),)


async def test_calls_with_the_same_needs_share_one_login(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Calls of a batch and of several invocations share a login; a call that asks again finds the same link."""
    config = login(provider)
    contexts = [calling(store, "fc-1"), calling(store, "fc-2"), calling(store, "fc-1", invocation_id="other")]
    contexts.append(calling(store, "fc-1"))
    for context in contexts:
        context.request_credential(config)
    assert len({auth_uri(context) for context in contexts}) == 1
    kept = await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(contexts[0])))
    assert kept.calls == (("inv", "fc-1"), ("inv", "fc-2"), ("other", "fc-1"))


async def test_users_do_not_share_logins(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Users do not share logins, even for the same tool."""
    ann, bob = calling(store), calling(store, user_id="bob", invocation_id="of-bob")
    ann.request_credential(login(provider))
    bob.request_credential(login(provider))
    assert auth_uri(ann) != auth_uri(bob)
    kept = await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(bob)))
    assert kept.calls == (("of-bob", "fc-1"),)
    assert ann.get_auth_response(login(provider)) is None


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_the_client_authenticates_as_configured(
    provider: FakeOAuth, store: InMemoryCredentialService, method: str
) -> None:
    """The client's secret is sent in the header or in the body, as configured."""
    await logged_in(provider, store, login(provider, token_endpoint_auth_method=method))
    assert ("client_secret" in provider.token_requests[0]) is (method == "client_secret_post")


async def test_a_public_client_needs_no_secret(store: InMemoryCredentialService) -> None:
    """A public client uses PKCE instead of a secret."""
    with FakeOAuth(client_secret="") as provider:
        await logged_in(provider, store, login(provider, client_secret=None))
        assert provider.token_requests[0]["client_id"] == provider.client_id


async def test_without_a_redirect_uri_the_client_adds_its_own(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The client adds its redirect URI to the link, as in ADK's guide."""
    context = calling(store)
    context.request_credential(login(provider, redirect_uri=None))
    ended_at = provider.log_in(f"{auth_uri(context)}&redirect_uri=https%3A%2F%2Fapp.example%2Fback")
    await complete_authorization(store, auth_response_uri=ended_at)
    assert provider.token_requests[0]["redirect_uri"] == "https://app.example/back"


async def test_parallel_calls_refresh_an_expired_token_once(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """Parallel calls refresh a token once, because the provider accepts each refresh token once."""
    config = login(provider)
    provider.lifetime_s = 10  # within the leeway, so it counts as expired
    await logged_in(provider, store, config)
    provider.lifetime_s = 3600
    contexts = [calling(store, f"fc-{number}") for number in range(6)]
    credentials = await asyncio.gather(
        *(context.load_credential(config) for context in contexts[:3]),
        *(asyncio.to_thread(context.get_auth_response, config) for context in contexts[3:]),
    )
    tokens = {one.oauth2.access_token for one in credentials if one is not None and one.oauth2 is not None}
    assert len(tokens) == 1
    assert provider.refreshes == 1


@pytest.mark.parametrize("rotates", [True, False])
async def test_a_token_is_refreshed_any_number_of_times(
    provider: FakeOAuth, store: InMemoryCredentialService, rotates: bool
) -> None:
    """The provider may return a new refresh token or not; async tools need not await anything."""
    provider.rotates, provider.lifetime_s = rotates, 10
    config = login(provider)
    await logged_in(provider, store, config)
    for _ in range(3):
        assert calling(store).get_auth_response(config) is not None
    assert provider.refreshes == 3


async def test_a_revoked_login_is_requested_again(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """A revoked credential is removed, so the tool requests a login."""
    provider.lifetime_s = 10
    config = login(provider)
    await logged_in(provider, store, config)
    provider.revoke()
    assert calling(store).get_auth_response(config) is None
    assert calling(store).get_credential(config.key) is None


async def test_a_failed_refresh_is_an_error(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """A failed refresh is an error, so that a short outage of the provider does not ask the user to log in."""
    provider.lifetime_s = 10
    config = login(provider)
    await logged_in(provider, store, config)
    provider.down = True
    with pytest.raises(AuthorizationFailed, match="did not issue a token for the refresh_token"):
        calling(store).get_auth_response(config)
    provider.down = False
    assert calling(store).get_auth_response(config) is not None


@pytest.mark.parametrize(
    ("config", "text", "credential"),
    [
        (
            AuthConfig(auth_scheme=APIKey(in_=APIKeyIn.query, name="key")),
            "k-123",
            {"authType": "apiKey", "apiKey": "k-123"},
        ),
        (
            AuthConfig(auth_scheme=HTTPBearer()),
            "t-123",
            {"authType": "http", "http": {"scheme": "bearer", "credentials": {"token": "t-123"}}},
        ),
        (
            AuthConfig(auth_scheme=HTTPBase(scheme="basic")),
            "ann:p:w",
            {"authType": "http", "http": {"scheme": "basic", "credentials": {"username": "ann", "password": "p:w"}}},
        ),
    ],
)
async def test_a_text_becomes_the_credential_of_the_scheme(
    store: InMemoryCredentialService, config: AuthConfig, text: str, credential: JsonObject
) -> None:
    """The text is a key, a token, or a user with a password."""
    calling(store).request_credential(config)
    await provide_credential(store, "inv", "fc-1", text)
    stored = calling(store).get_auth_response(config)
    assert stored is not None
    assert stored.exposed() == credential


async def test_a_whole_credential_is_kept_unchanged(store: InMemoryCredentialService) -> None:
    """A whole credential is kept unchanged, because programs may already have one."""
    config = AuthConfig(auth_scheme=HTTPBearer())
    calling(store).request_credential(config)
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="k")
    kept = await store.authorize(credential=credential, call=("inv", "fc-1"))
    assert kept.calls == (WaitingCall("inv", "fc-1"),)
    assert calling(store).get_auth_response(config) == credential


def test_a_tools_own_link_is_used(store: InMemoryCredentialService, provider: FakeOAuth) -> None:
    """The tool's own link gets a state, so that the returning user can be recognized."""
    context = calling(store)
    context.request_credential(login(provider, auth_uri="https://a/login?x=1"))
    assert auth_uri(context).startswith("https://a/login?x=1&state=")
    other = calling(store, user_id="bob")
    other.request_credential(login(provider, auth_uri="https://a/login?state=given"))
    assert requested_config(other)["exchangedAuthCredential"]["oauth2"]["state"] == "given"


@pytest.mark.parametrize("kind", ["issuer", "document", "openid"])
async def test_endpoints_are_found_for_every_form_of_scheme(
    provider: FakeOAuth, store: InMemoryCredentialService, kind: str
) -> None:
    """The scheme names the issuer, a document, or the endpoints."""
    config = config_with_issuer(provider, kind)
    await logged_in(provider, store, config)
    assert calling(store).get_auth_response(config) is not None
