"""Logins at a real provider over HTTP; every failure is one of two errors without text of the provider."""

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.openid import FakeOpenId
from tests.paths import write_secret
from tests.tiers import drawn_examples
from tests.unit.identity.conftest import Clock
from waystation.approvers.identity import Configuration
from waystation.approvers.identity.keys import DISCOVERY
from waystation.approvers.identity.oidc import LOGIN_LIMIT_S, MAX_LOGINS, OidcLogin
from waystation.core.approval import Verified
from waystation.core.errors import AuthorizationFailed, IdentityUnavailable, InvalidConfiguration
from waystation.core.payload import JsonObject

BACK = "https://approvals.example.com/oidc"


def configured(folder: Path, provider: FakeOpenId, clock: Clock, **more: str) -> OidcLogin:
    """Return the login that a file configures."""
    write_secret(folder / "secret", provider.client_secret + "\n")
    settings = {"issuer": provider.url, "client_id": provider.client_id, "client_secret_file": "secret"} | more
    (folder / "gateway.toml").write_text(
        "[oidc]\n" + "".join(f"{name} = {value!r}\n" for name, value in settings.items() if value)
    )
    return OidcLogin.of(Configuration.read(folder / "gateway.toml"), clock=clock)


class Redirecting(FakeOpenId):
    """A provider that redirects the requests to one path."""

    redirect: tuple[str, int, str] | None = None
    """The redirected path, the status, and the target."""

    def _get(self, handler: BaseHTTPRequestHandler) -> tuple[int, JsonObject, dict[str, str]]:
        return self._redirect(handler) or super()._get(handler)

    def _post(self, handler: BaseHTTPRequestHandler) -> tuple[int, JsonObject, dict[str, str]]:
        return self._redirect(handler) or super()._post(handler)

    def _redirect(self, handler: BaseHTTPRequestHandler) -> tuple[int, JsonObject, dict[str, str]] | None:
        if self.redirect is None or handler.path != self.redirect[0]:
            return None
        return self.redirect[1], {}, {"Location": self.redirect[2]}


@pytest.fixture
def clock() -> Clock:
    """Return a clock that a test can advance."""
    return Clock()


@pytest.fixture
def login(tmp_path: Path, own_openid: FakeOpenId, clock: Clock) -> OidcLogin:
    """Return a login at the provider."""
    return configured(tmp_path, own_openid, clock)


def back(ended_at: str) -> dict[str, str]:
    """Return the query of the address to which the provider sent the browser."""
    assert ended_at.startswith(f"{BACK}?")
    return {name: values[0] for name, values in parse_qs(urlsplit(ended_at).query).items()}


async def refusal(login: OidcLogin, returned: Mapping[str, str], state: str | None) -> str:
    """Return the error text of a refused login."""
    with pytest.raises(AuthorizationFailed) as caught:
        await login.finish(returned, state)
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_the_provider_names_the_person_who_logs_in(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The login has a code, PKCE, a state and a nonce; the provider checks the first two."""
    url, state = await login.begin(BACK)
    params = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert params["code_challenge_method"] == "S256"
    assert params["scope"].split() == ["openid", "profile", "email"]
    assert len(params["nonce"]) >= 32
    entered = await login.finish(back(own_openid.log_in(url)), state)
    assert entered.who == Verified(subject="dana@example.com", roles=("finance",), issuer=own_openid.url)
    assert own_openid.token_requests[0]["code_verifier"]
    assert [secret for secret in own_openid.secrets if secret in f"{login!r} {entered!r}"] == []


async def test_other_kinds_of_clients_log_in_too(tmp_path: Path, own_openid: FakeOpenId, clock: Clock) -> None:
    """Public clients and clients that post their secret can log in."""
    posting = configured(tmp_path, own_openid, clock, client_authentication="client_secret_post")
    url, state = await posting.begin(BACK)
    assert (await posting.finish(back(own_openid.log_in(url)), state)).who.subject == "dana@example.com"
    assert own_openid.token_requests[-1]["client_secret"] == own_openid.client_secret
    own_openid.client_secret = ""
    public = configured(tmp_path, own_openid, clock, client_secret_file="")
    url, state = await public.begin(BACK)
    assert (await public.finish(back(own_openid.log_in(url)), state)).who.subject == "dana@example.com"


async def test_a_login_is_finished_once_by_the_browser_that_began_it(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """A login is finished once, by its own browser, so that nobody works under an attacker's name."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url))
    _, of_another = await login.begin(BACK)
    assert "another browser" in await refusal(login, returned, of_another)
    assert "another browser" in await refusal(login, returned, None)
    assert "another browser" in await refusal(login, returned | {"state": ""}, "")
    assert "another browser" in await refusal(login, {}, state)
    await login.finish(returned, state)
    assert "already finished" in await refusal(login, returned, state)


async def test_a_login_takes_at_most_ten_minutes(login: OidcLogin, own_openid: FakeOpenId, clock: Clock) -> None:
    """A login that takes longer than ten minutes is refused."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url))
    clock.ahead_s = LOGIN_LIMIT_S
    assert "took too long" in await refusal(login, returned, state)


async def test_a_person_who_refuses_is_not_logged_in(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The page shows OAuth's name of the refusal and no other text of the provider."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url, consent=False))
    text = await refusal(login, returned, state)
    assert "(access_denied)" in text
    assert returned["error_description"] not in text
    _, state = await login.begin(BACK)
    assert "<b>" not in await refusal(login, {"error": "<b>", "state": state}, state)


async def test_a_wrong_client_secret_is_reported_as_such(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The provider's own text is left out, because it may quote the secret."""
    own_openid.client_secret = "another"
    url, state = await login.begin(BACK)
    text = await refusal(login, back(own_openid.log_in(url)), state)
    assert "(invalid_client). Check the `client_id`, the secret" in text
    assert not any(secret in text for secret in own_openid.secrets)


async def test_a_code_of_another_login_is_refused(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """A code of another login is refused, because a code is bound to its verifier and the token to its nonce."""
    first, _ = await login.begin(BACK)
    stolen = back(own_openid.log_in(first))
    _, state = await login.begin(BACK)
    text = await refusal(login, stolen | {"state": state}, state)
    assert not any(secret in text for secret in own_openid.secrets)
    own_openid.nonce = "that-of-another"
    url, state = await login.begin(BACK)
    assert "belongs to another login" in await refusal(login, back(own_openid.log_in(url)), state)


async def test_a_response_of_another_provider_requests_no_token(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """A response of another provider requests no token, because the wrong provider would receive the code."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url)) | {"iss": "https://other.example"}
    assert "another provider" in await refusal(login, returned, state)
    assert own_openid.token_requests == []


async def test_a_token_signed_by_someone_else_is_refused(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The signature of the token is verified like that of an answer's token."""
    url, state = await login.begin(BACK)
    await login.finish(back(own_openid.log_in(url)), state)
    own_openid.rotate()  # a key that the provider does not publish
    url, state = await login.begin(BACK)
    assert "does not identify a person" in await refusal(login, back(own_openid.log_in(url)), state)


async def test_a_token_of_another_issuer_is_refused(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """A token of another issuer is refused although the provider signed it. Some providers serve several issuers."""
    url, state = await login.begin(BACK)
    await login.finish(back(own_openid.log_in(url)), state)
    own_openid.issuer = "https://other.example"
    url, state = await login.begin(BACK)
    assert "a different issuer" in await refusal(login, back(own_openid.log_in(url)), state)


async def test_a_failing_provider_is_reported_as_unavailable(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """A failing provider is reported as unavailable, so that the page can ask the person to try again."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url))
    own_openid.down = True
    with pytest.raises(IdentityUnavailable):
        await login.finish(returned, state)


async def test_unreadable_keys_refuse_a_login_for_now(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The login fails with a message of its own, because a login is not retried automatically."""
    url, state = await login.begin(BACK)
    own_openid.keys_down = True
    with pytest.raises(IdentityUnavailable, match=r"cannot be read right now .* You are not logged in\. Try again"):
        await login.finish(back(own_openid.log_in(url)), state)


async def test_a_missing_provider_is_reported_as_unavailable(
    tmp_path: Path, own_openid: FakeOpenId, clock: Clock
) -> None:
    """The error is raised when the login begins."""
    away = configured(tmp_path, own_openid, clock, issuer="http://127.0.0.1:9")
    with pytest.raises(IdentityUnavailable, match="is unavailable"):
        await away.begin(BACK)


def test_a_provider_must_use_tls(tmp_path: Path, own_openid: FakeOpenId, clock: Clock) -> None:
    """A provider without TLS is refused, because an attacker on the network could log in."""
    with pytest.raises(InvalidConfiguration, match=r"oidc\.issuer: keys are fetched only over https"):
        configured(tmp_path, own_openid, clock, issuer="http://login.example.com")


async def test_unfinished_logins_are_bounded(login: OidcLogin) -> None:
    """The oldest unfinished login is dropped."""
    _, first = await login.begin(BACK)
    (pending,) = login._pending.values()
    login._pending.update({f"state-{number}": pending for number in range(MAX_LOGINS)})
    await login.begin(BACK)
    assert len(login._pending) == MAX_LOGINS
    assert first not in login._pending


@settings(max_examples=drawn_examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["code", "error", "iss", "x"]), st.text(), max_size=4))
async def test_any_response_is_accepted_or_refused(login: OidcLogin, returned: dict[str, str]) -> None:
    """Any parameters are accepted or refused without another error, because anyone can open the address."""
    _, state = await login.begin(BACK)
    await refusal(login, returned | {"state": state}, state)
    await refusal(login, {"state": urlencode(returned)}, state)


@pytest.mark.parametrize("path", ["/token", "/jwks", "/.well-known/openid-configuration"])
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_of_the_provider_is_not_followed(
    tmp_path: Path, own_openid: FakeOpenId, clock: Clock, path: str, status: int
) -> None:
    """A redirect is not followed: its target could get the code and the client's secret, or choose trusted keys."""
    with Redirecting() as provider:
        login = configured(tmp_path, provider, clock)
        url, state = await login.begin(BACK)
        returned = back(provider.log_in(url))
        provider.redirect = (path, status, own_openid.url + path)
        if path == DISCOVERY:
            login = configured(tmp_path, provider, clock)
            with pytest.raises(IdentityUnavailable, match="is unavailable"):
                await login.begin(BACK)
        else:
            with pytest.raises((AuthorizationFailed, IdentityUnavailable)):
                await login.finish(returned, state)
        assert (own_openid.token_requests, own_openid.key_reads) == ([], 0)
