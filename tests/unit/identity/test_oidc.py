"""Logins at a real provider over HTTP; every failure is one of two errors that hold nothing of the provider's."""

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
from waystation.core import AuthorizationFailed, IdentityUnavailable, InvalidConfiguration, JsonObject, Verified
from waystation.identity import Configuration
from waystation.identity.keys import DISCOVERY
from waystation.identity.oidc import LOGIN_LIMIT_S, MAX_LOGINS, OidcLogin

BACK = "https://approvals.example.com/oidc"


def configured(folder: Path, provider: FakeOpenId, clock: Clock, **more: str) -> OidcLogin:
    """Return the login that a file configures."""
    write_secret(folder / "secret", provider.client_secret + "\n")
    given = {"issuer": provider.url, "client_id": provider.client_id, "client_secret_file": "secret"} | more
    (folder / "gateway.toml").write_text(
        "[oidc]\n" + "".join(f"{name} = {value!r}\n" for name, value in given.items() if value)
    )
    return OidcLogin.of(Configuration.read(folder / "gateway.toml"), clock=clock)


class Redirecting(FakeOpenId):
    """A provider that redirects the requests of one path."""

    redirect: tuple[str, int, str] | None = None
    """The path, the status and where it leads."""

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
    """A time to set."""
    return Clock()


@pytest.fixture
def login(tmp_path: Path, own_openid: FakeOpenId, clock: Clock) -> OidcLogin:
    """A login at the provider."""
    return configured(tmp_path, own_openid, clock)


def back(ended_at: str) -> dict[str, str]:
    """Return the query of the address to which the provider sent the browser."""
    assert ended_at.startswith(f"{BACK}?")
    return {name: values[0] for name, values in parse_qs(urlsplit(ended_at).query).items()}


async def refused(login: OidcLogin, returned: Mapping[str, str], state: str | None) -> str:
    """Return why nobody is let in."""
    with pytest.raises(AuthorizationFailed) as caught:
        await login.finish(returned, state)
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_who_logs_in_is_who_the_provider_says(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """With code, PKCE, state and nonce; the provider checks the first two."""
    url, state = await login.begin(BACK)
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert asked["code_challenge_method"] == "S256"
    assert asked["scope"].split() == ["openid", "profile", "email"]
    assert len(asked["nonce"]) >= 32
    entered = await login.finish(back(own_openid.log_in(url)), state)
    assert entered.who == Verified(subject="dana@example.com", roles=("finance",), issuer=own_openid.url)
    assert own_openid.token_requests[0]["code_verifier"]
    assert [secret for secret in own_openid.secrets if secret in f"{login!r} {entered!r}"] == []


async def test_a_public_client_and_one_that_posts_its_secret_log_in_too(
    tmp_path: Path, own_openid: FakeOpenId, clock: Clock
) -> None:
    """As providers differ."""
    posting = configured(tmp_path, own_openid, clock, client_authentication="client_secret_post")
    url, state = await posting.begin(BACK)
    assert (await posting.finish(back(own_openid.log_in(url)), state)).who.subject == "dana@example.com"
    assert own_openid.token_requests[-1]["client_secret"] == own_openid.client_secret
    own_openid.client_secret = ""
    public = configured(tmp_path, own_openid, clock, client_secret_file="")
    url, state = await public.begin(BACK)
    assert (await public.finish(back(own_openid.log_in(url)), state)).who.subject == "dana@example.com"


async def test_a_login_is_finished_once_and_by_the_browser_that_began_it(
    login: OidcLogin, own_openid: FakeOpenId
) -> None:
    """Otherwise somebody could have others work under his own name."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url))
    _, of_another = await login.begin(BACK)
    assert "another browser" in await refused(login, returned, of_another)
    assert "another browser" in await refused(login, returned, None)
    assert "another browser" in await refused(login, returned | {"state": ""}, "")
    assert "another browser" in await refused(login, {}, state)
    await login.finish(returned, state)
    assert "already finished" in await refused(login, returned, state)


async def test_a_login_takes_ten_minutes_at_most(login: OidcLogin, own_openid: FakeOpenId, clock: Clock) -> None:
    """An address that lies around opens nothing."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url))
    clock.ahead_s = LOGIN_LIMIT_S
    assert "took too long" in await refused(login, returned, state)


async def test_who_says_no_is_not_let_in(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The page names the refusal as OAuth does; what else the provider says of it is not shown."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url, consent=False))
    text = await refused(login, returned, state)
    assert "(access_denied)" in text
    assert returned["error_description"] not in text
    _, state = await login.begin(BACK)
    assert "<b>" not in await refused(login, {"error": "<b>", "state": state}, state)


async def test_a_secret_that_the_provider_does_not_take_is_told_as_that(
    login: OidcLogin, own_openid: FakeOpenId
) -> None:
    """It is the mistake of whoever set the server up; the provider's own words may quote the secret."""
    own_openid.client_secret = "another"
    url, state = await login.begin(BACK)
    text = await refused(login, back(own_openid.log_in(url)), state)
    assert "(invalid_client). Check the `client_id`, the secret" in text
    assert not any(secret in text for secret in own_openid.secrets)


async def test_a_code_of_another_login_lets_nobody_in(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """It is bound to its verifier, and the token to its nonce."""
    first, _ = await login.begin(BACK)
    stolen = back(own_openid.log_in(first))
    _, state = await login.begin(BACK)
    text = await refused(login, stolen | {"state": state}, state)
    assert not any(secret in text for secret in own_openid.secrets)
    own_openid.nonce = "that-of-another"
    url, state = await login.begin(BACK)
    assert "belongs to another login" in await refused(login, back(own_openid.log_in(url)), state)


async def test_another_provider_that_answers_is_not_asked_for_a_token(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """A mix-up of providers would send it a code."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url)) | {"iss": "https://other.example"}
    assert "another provider" in await refused(login, returned, state)
    assert own_openid.token_requests == []


async def test_a_token_that_somebody_else_signed_lets_nobody_in(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """Its signature is verified, as that of an answer's token."""
    url, state = await login.begin(BACK)
    await login.finish(back(own_openid.log_in(url)), state)
    own_openid.rotate()  # a key of which the published ones, as they are known here, say nothing
    url, state = await login.begin(BACK)
    assert "does not identify a person" in await refused(login, back(own_openid.log_in(url)), state)


async def test_a_token_that_names_another_issuer_lets_nobody_in(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """Though the provider's key has signed it: some sign for several issuers."""
    url, state = await login.begin(BACK)
    await login.finish(back(own_openid.log_in(url)), state)
    own_openid.issuer = "https://other.example"
    url, state = await login.begin(BACK)
    assert "a different issuer" in await refused(login, back(own_openid.log_in(url)), state)


async def test_a_provider_that_is_down_is_another_error(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """So the page can say to try again."""
    url, state = await login.begin(BACK)
    returned = back(own_openid.log_in(url))
    own_openid.down = True
    with pytest.raises(IdentityUnavailable):
        await login.finish(returned, state)


async def test_a_provider_whose_keys_cannot_be_had_lets_nobody_in_yet(login: OidcLogin, own_openid: FakeOpenId) -> None:
    """The message is about a login, of which nothing goes on by itself."""
    url, state = await login.begin(BACK)
    own_openid.keys_down = True
    with pytest.raises(IdentityUnavailable, match=r"cannot be read right now .* You are not logged in\. Try again"):
        await login.finish(back(own_openid.log_in(url)), state)


async def test_a_provider_that_is_not_there_is_another_error(
    tmp_path: Path, own_openid: FakeOpenId, clock: Clock
) -> None:
    """Already when a login begins."""
    away = configured(tmp_path, own_openid, clock, issuer="http://127.0.0.1:9")
    with pytest.raises(IdentityUnavailable, match="is unavailable"):
        await away.begin(BACK)


def test_a_provider_is_reached_over_tls(tmp_path: Path, own_openid: FakeOpenId, clock: Clock) -> None:
    """Anybody between could let himself in otherwise."""
    with pytest.raises(InvalidConfiguration, match=r"oidc\.issuer: keys are fetched only over https"):
        configured(tmp_path, own_openid, clock, issuer="http://login.example.com")


async def test_logins_that_are_never_finished_fill_nothing(login: OidcLogin) -> None:
    """The oldest is forgotten."""
    _, first = await login.begin(BACK)
    (pending,) = login._pending.values()
    login._pending.update({f"state-{number}": pending for number in range(MAX_LOGINS)})
    await login.begin(BACK)
    assert len(login._pending) == MAX_LOGINS
    assert first not in login._pending


@settings(max_examples=drawn_examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["code", "error", "iss", "x"]), st.text(), max_size=4))
async def test_whatever_comes_back_raises_nothing_else(login: OidcLogin, returned: dict[str, str]) -> None:
    """It is an address that anybody can open."""
    _, state = await login.begin(BACK)
    await refused(login, returned | {"state": state}, state)
    await refused(login, {"state": urlencode(returned)}, state)


@pytest.mark.parametrize("path", ["/token", "/jwks", "/.well-known/openid-configuration"])
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_of_the_provider_is_not_followed(
    tmp_path: Path, own_openid: FakeOpenId, clock: Clock, path: str, status: int
) -> None:
    """The other server would receive the code and the client's secret, or say which keys count."""
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
