"""From a tool's request to tokens in the store, against a provider that speaks HTTP."""

import asyncio
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.tools.logins import asked, auth_uri, calling, described, logged_in, login
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
from waystation.core import AuthorizationFailed, JsonObject
from waystation.testing.fake_oauth import REDIRECT_URI, FakeOAuth


def test_a_request_shows_where_to_log_in_and_no_secret(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """In ADK's shape, with the parameters of ADK's link, and always with PKCE."""
    context = calling(store)
    config = login(provider)
    context.request_credential(config)
    shown = asked(context)
    made = shown["exchangedAuthCredential"]["oauth2"]
    assert list(shown) == ["authScheme", "rawAuthCredential", "exchangedAuthCredential", "credentialKey"]
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
    assert provider.client_secret not in json.dumps(shown)


async def test_a_login_gives_the_tool_its_tokens(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """With the tool's own client, as ADK hands it out; in the next run, and in later invocations of the user."""
    context = calling(store)
    config = login(provider)
    assert context.get_auth_response(config) is None
    context.request_credential(config)
    kept = await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))
    assert kept.calls == (("inv", "fc-1"),)
    assert kept.credential_key == config.credential_key
    for again in (calling(store), calling(store, invocation_id="later", call="fc-7")):
        found = again.get_auth_response(config)
        assert found is not None
        assert found.oauth2 is not None
        assert found.oauth2.access_token in provider.secrets
        assert found.oauth2.client_secret == provider.client_secret
        assert found.oauth2.code_verifier is None
    assert calling(store, user_id="bob").get_auth_response(config) is None


async def test_the_credential_of_a_call_is_its_auth_response(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """Without naming a configuration; None before the login, and for calls that asked for nothing."""
    context = calling(store)
    context.request_credential(login(provider))
    assert calling(store).auth_response is None
    await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(context)))
    found = calling(store).auth_response
    assert found is not None
    assert found.oauth2 is not None
    assert found.oauth2.access_token in provider.secrets
    assert calling(store, call="fc-2").auth_response is None


async def test_code_and_state_do_as_well_as_the_address(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """For a callback whose framework has read the query."""
    context = calling(store)
    context.request_credential(login(provider))
    query = parse_qs(urlsplit(provider.log_in(auth_uri(context))).query)
    kept = await complete_authorization(store, code=query["code"][0], state=query["state"][0])
    assert kept.calls == (("inv", "fc-1"),)


async def test_calls_that_need_the_same_share_one_login(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Of one batch or of several invocations; a call that asks again, after a crash, finds its link unchanged."""
    config = login(provider)
    contexts = [calling(store, "fc-1"), calling(store, "fc-2"), calling(store, "fc-1", invocation_id="other")]
    contexts.append(calling(store, "fc-1"))
    for context in contexts:
        context.request_credential(config)
    assert len({auth_uri(context) for context in contexts}) == 1
    kept = await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(contexts[0])))
    assert kept.calls == (("inv", "fc-1"), ("inv", "fc-2"), ("other", "fc-1"))


async def test_a_login_of_another_user_is_another(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """Even for the same tool."""
    ann, bob = calling(store), calling(store, user_id="bob", invocation_id="of-bob")
    ann.request_credential(login(provider))
    bob.request_credential(login(provider))
    assert auth_uri(ann) != auth_uri(bob)
    kept = await complete_authorization(store, auth_response_uri=provider.log_in(auth_uri(bob)))
    assert kept.calls == (("of-bob", "fc-1"),)
    assert ann.get_auth_response(login(provider)) is None


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_the_client_proves_itself_as_configured(
    provider: FakeOAuth, store: InMemoryCredentialService, method: str
) -> None:
    """In the header or in the body."""
    await logged_in(provider, store, login(provider, token_endpoint_auth_method=method))
    assert ("client_secret" in provider.token_requests[0]) is (method == "client_secret_post")


async def test_a_public_client_needs_no_secret(store: InMemoryCredentialService) -> None:
    """PKCE stands for it."""
    with FakeOAuth(client_secret="") as provider:
        await logged_in(provider, store, login(provider, client_secret=None))
        assert provider.token_requests[0]["client_id"] == provider.client_id


async def test_without_a_redirect_uri_the_address_tells_it(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """As in ADK's guide, where the client adds its own to the link."""
    context = calling(store)
    context.request_credential(login(provider, redirect_uri=None))
    ended_at = provider.log_in(f"{auth_uri(context)}&redirect_uri=https%3A%2F%2Fapp.example%2Fback")
    await complete_authorization(store, auth_response_uri=ended_at)
    assert provider.token_requests[0]["redirect_uri"] == "https://app.example/back"


async def test_an_expired_token_is_refreshed_once_for_all_who_want_it(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """Parallel calls of a provider whose refresh tokens work once."""
    config = login(provider)
    provider.lifetime_s = 10  # within the leeway, so it counts as expired
    await logged_in(provider, store, config)
    provider.lifetime_s = 3600
    contexts = [calling(store, f"fc-{number}") for number in range(6)]
    found = await asyncio.gather(
        *(context.load_credential(config) for context in contexts[:3]),
        *(asyncio.to_thread(context.get_auth_response, config) for context in contexts[3:]),
    )
    tokens = {one.oauth2.access_token for one in found if one is not None and one.oauth2 is not None}
    assert len(tokens) == 1
    assert provider.refreshes == 1


@pytest.mark.parametrize("rotates", [True, False])
async def test_refresh_goes_on_and_on(provider: FakeOAuth, store: InMemoryCredentialService, rotates: bool) -> None:
    """Whether or not the provider gives a new refresh token each time; also from an async tool, without awaiting."""
    provider.rotates, provider.lifetime_s = rotates, 10
    config = login(provider)
    await logged_in(provider, store, config)
    for _ in range(3):
        assert calling(store).get_auth_response(config) is not None
    assert provider.refreshes == 3


async def test_a_revoked_login_is_asked_for_again(provider: FakeOAuth, store: InMemoryCredentialService) -> None:
    """There is no credential any more, so the tool requests one."""
    provider.lifetime_s = 10
    config = login(provider)
    await logged_in(provider, store, config)
    provider.revoke()
    assert calling(store).get_auth_response(config) is None
    assert calling(store).get_credential(config.key) is None


async def test_a_token_that_cannot_be_refreshed_now_is_an_error(
    provider: FakeOAuth, store: InMemoryCredentialService
) -> None:
    """The user is not asked to log in because a provider is down for a minute."""
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
async def test_a_text_becomes_what_the_scheme_wants(
    store: InMemoryCredentialService, config: AuthConfig, text: str, credential: JsonObject
) -> None:
    """A key, a token, or a user with a password."""
    calling(store).request_credential(config)
    await provide_credential(store, "inv", "fc-1", text)
    found = calling(store).get_auth_response(config)
    assert found is not None
    assert found.exposed() == credential


async def test_a_credential_given_whole_is_kept_as_it_is(store: InMemoryCredentialService) -> None:
    """For programs that have one."""
    config = AuthConfig(auth_scheme=HTTPBearer())
    calling(store).request_credential(config)
    given = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="k")
    kept = await store.authorize(credential=given, call=("inv", "fc-1"))
    assert kept.calls == (WaitingCall("inv", "fc-1"),)
    assert calling(store).get_auth_response(config) == given


def test_a_link_of_the_tools_own_is_used(store: InMemoryCredentialService, provider: FakeOAuth) -> None:
    """With a state, so that whoever comes back can be recognised."""
    context = calling(store)
    context.request_credential(login(provider, auth_uri="https://a/login?x=1"))
    assert auth_uri(context).startswith("https://a/login?x=1&state=")
    other = calling(store, user_id="bob")
    other.request_credential(login(provider, auth_uri="https://a/login?state=given"))
    assert asked(other)["exchangedAuthCredential"]["oauth2"]["state"] == "given"


@pytest.mark.parametrize("kind", ["issuer", "document", "openid"])
async def test_endpoints_are_found_however_the_scheme_names_them(
    provider: FakeOAuth, store: InMemoryCredentialService, kind: str
) -> None:
    """By issuer, by document, or spelt out."""
    config = described(provider, kind)
    await logged_in(provider, store, config)
    assert calling(store).get_auth_response(config) is not None
