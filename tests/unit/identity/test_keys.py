"""Keys of issuers are read once, cached, and read again when a new one may exist."""

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from tests.fakes.openid import FakeOpenId
from tests.unit.identity.conftest import Clock, Installation, installed
from waystation.approvers.identity.keys import FRESH_S, REFETCH_AFTER_S, STALE_S, IssuerKeys
from waystation.core.errors import IdentityUnavailable, NotAllowed


async def is_known(keys: IssuerKeys, provider: FakeOpenId) -> bool:
    """Return whether the current signing key of the provider is known."""
    return await keys.find(provider.keys[0].kid, "ES256") is not None


@pytest.fixture
def clock() -> Clock:
    """Return a clock that a test can advance."""
    return Clock()


@pytest.fixture(params=["discovery", "address", "file"])
def keys(request: pytest.FixtureRequest, own_openid: FakeOpenId, tmp_path: Path, clock: Clock) -> IssuerKeys:
    """Return the provider's keys, from each possible place."""
    if request.param == "file":
        place: str | Path | None = tmp_path / "jwks.json"
        (tmp_path / "jwks.json").write_text(json.dumps({"keys": [own_openid.keys[0].as_dict(private=False)]}))
    else:
        place = f"{own_openid.url}/jwks" if request.param == "address" else None
    return IssuerKeys(own_openid.url, place, clock=clock)


async def test_keys_are_read_once(keys: IssuerKeys, own_openid: FakeOpenId) -> None:
    """The keys are read once for any number of concurrent answers."""
    assert all(await asyncio.gather(*(is_known(keys, own_openid) for _ in range(20))))
    assert own_openid.key_reads <= 1


async def test_an_unknown_key_is_looked_up_at_most_once_a_minute(own_openid: FakeOpenId, clock: Clock) -> None:
    """A new key of the provider is found, but a forger who names unknown keys causes no more requests."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await is_known(keys, own_openid)
    for number in range(50):
        assert await keys.find(f"forged-{number}", "ES256") is None
    assert own_openid.key_reads == 1
    own_openid.rotate()
    assert not await is_known(keys, own_openid)
    clock.ahead_s += REFETCH_AFTER_S
    assert await is_known(keys, own_openid)
    assert own_openid.key_reads == 2


async def test_a_withdrawn_key_is_refused_within_an_hour(own_openid: FakeOpenId, clock: Clock) -> None:
    """A withdrawn key is refused within an hour, because the keys are read every hour."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await is_known(keys, own_openid)
    old = own_openid.keys[0].kid
    own_openid.rotate()
    clock.ahead_s += FRESH_S
    assert await keys.find(old, "ES256") is None


async def test_known_keys_serve_for_a_day_while_the_provider_is_down(own_openid: FakeOpenId, clock: Clock) -> None:
    """Known keys are used for a day without the provider, and refused afterward."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await is_known(keys, own_openid)
    own_openid.keys_down = True
    clock.ahead_s += FRESH_S
    assert await is_known(keys, own_openid)
    clock.ahead_s += STALE_S
    with pytest.raises(IdentityUnavailable):
        await is_known(keys, own_openid)


async def test_an_unreachable_provider_causes_a_retry(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """An unreachable provider does not refuse the answer: the verification is repeated, and the answer counts later."""
    there = installed(tmp_path, own_openid)
    sealed = there.seal(own_openid.token())
    own_openid.keys_down = True
    with pytest.raises(IdentityUnavailable, match="cannot be read right now"):
        await there.verify(sealed)
    own_openid.keys_down = False
    assert (await there.verify(sealed))[0].subject == "dana@example.com"


async def test_a_missing_provider_causes_a_retry(tmp_path: Path, openid: FakeOpenId) -> None:
    """A provider whose address belongs to another server also causes a retry."""
    there = installed(tmp_path / "a", openid, {"jwks": "http://127.0.0.1:9/jwks"})
    with pytest.raises(IdentityUnavailable):
        await there.verify(there.seal(openid.token()))
    there = installed(tmp_path / "b", openid, {"jwks": f"{openid.url}/nowhere"})
    with pytest.raises(IdentityUnavailable):
        await there.verify(there.seal(openid.token()))


async def test_a_provider_with_another_issuer_is_refused(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """The published metadata must name the configured issuer."""
    there = installed(tmp_path, own_openid)
    token = own_openid.token()
    own_openid.issuer = "https://other.example"
    with pytest.raises(IdentityUnavailable, match="a different issuer"):
        await there.verify(there.seal(token))


async def test_a_token_without_a_key_id_needs_an_issuer_with_one_key(own_openid: FakeOpenId, clock: Clock) -> None:
    """A token without a key ID is refused if the issuer has several keys, because any of them may have signed it."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await keys.find(None, "ES256") is not None
    own_openid.keys.append(RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True))
    clock.ahead_s += FRESH_S
    assert await keys.find(None, "ES256") is not None
    own_openid.rotate()
    own_openid.keys += [*own_openid.keys, FakeOpenId().keys[0]]
    clock.ahead_s += FRESH_S
    assert await keys.find(None, "ES256") is None


async def test_tokens_signed_with_rsa_are_accepted(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """Tokens that are signed with RSA, as by most providers, are accepted."""
    own_openid.keys[:] = [RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True)]
    there: Installation = installed(tmp_path, own_openid)
    assert (await there.verify(there.seal(own_openid.token())))[0].subject == "dana@example.com"


async def test_only_configured_algorithms_are_accepted(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """A signature with another algorithm than the configured one is refused."""
    there = installed(tmp_path, own_openid, {"algorithms": '["RS256"]'})
    with pytest.raises(NotAllowed, match="must use one of RS256"):
        await there.verify(there.seal(own_openid.token()))


@pytest.mark.parametrize("claim", ["realm_access.roles", "https://example.com/roles"])
async def test_roles_may_be_nested_or_have_a_name_with_dots(tmp_path: Path, own_openid: FakeOpenId, claim: str) -> None:
    """Roles are found in nested claims and in claims whose name has dots."""
    there = installed(tmp_path, own_openid, {"roles_claim": claim})
    nested = {"realm_access": {"roles": ["audit"]}} if claim.startswith("realm") else {claim: ["audit"]}
    who, _ = await there.verify(there.seal(own_openid.token(roles=None, **nested)))
    assert who.roles == ("audit",)


async def test_an_unverified_email_address_identifies_nobody(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """An unverified address is refused as a name, because many providers let anyone enter any address."""
    there = installed(tmp_path, own_openid, {"subject_claim": "email"})
    good = own_openid.token("17", email="dana@example.com", email_verified=True)
    assert (await there.verify(there.seal(good)))[0].subject == "dana@example.com"
    for claims in ({"email_verified": False}, {"email_verified": "true"}, {}):
        with pytest.raises(NotAllowed, match="without `email_verified`"):
            await there.verify(there.seal(own_openid.token("17", email="boss@example.com", **claims)))


async def test_an_issuer_can_be_trusted_to_verify_every_email_address(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """The setting does not accept an explicit `email_verified: false`."""
    there = installed(tmp_path, own_openid, {"subject_claim": "email", "email_trusted": True})
    unsaid = own_openid.token("17", email="dana@example.com")
    assert (await there.verify(there.seal(unsaid)))[0].subject == "dana@example.com"
    with pytest.raises(NotAllowed, match="without `email_verified`"):
        await there.verify(there.seal(own_openid.token("17", email="boss@example.com", email_verified=False)))


def test_a_claim_that_people_can_change_causes_a_warning(
    tmp_path: Path, own_openid: FakeOpenId, logs: list[MutableMapping[str, Any]]
) -> None:
    """A released name could pass to another person, together with the right to approve."""
    installed(tmp_path, own_openid, {"subject_claim": "preferred_username"})
    assert [(log["event"], log["subject_claim"]) for log in logs] == [("identity.mutable_claim", "preferred_username")]
