"""The keys of issuers: read from where the configuration says, kept, and read again when a new one may be there."""

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import RSAKey

from tests.fakes.openid import FakeOpenId
from tests.unit.identity.conftest import Clock, Installation, installed
from waystation.core import IdentityUnavailable, NotAllowed
from waystation.identity.keys import FRESH_S, REFETCH_AFTER_S, STALE_S, IssuerKeys


async def found(keys: IssuerKeys, provider: FakeOpenId) -> bool:
    """Whether the key with which the provider signs now is found."""
    return await keys.find(provider.keys[0].kid, "ES256") is not None


@pytest.fixture
def clock() -> Clock:
    """A time to set."""
    return Clock()


@pytest.fixture(params=["discovery", "address", "file"])
def keys(request: pytest.FixtureRequest, own_openid: FakeOpenId, tmp_path: Path, clock: Clock) -> IssuerKeys:
    """The provider's keys, from each place where they may be."""
    if request.param == "file":
        place: str | Path | None = tmp_path / "jwks.json"
        (tmp_path / "jwks.json").write_text(json.dumps({"keys": [own_openid.keys[0].as_dict(private=False)]}))
    else:
        place = f"{own_openid.url}/jwks" if request.param == "address" else None
    return IssuerKeys(own_openid.url, place, clock=clock)


async def test_keys_are_read_once(keys: IssuerKeys, own_openid: FakeOpenId) -> None:
    """However many answers come, and however many at once."""
    assert all(await asyncio.gather(*(found(keys, own_openid) for _ in range(20))))
    assert own_openid.key_reads <= 1


async def test_a_new_key_is_found_and_an_unknown_one_does_not_have_the_provider_asked_all_the_time(
    own_openid: FakeOpenId, clock: Clock
) -> None:
    """A forger may name a key; the provider is asked at most once a minute."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await found(keys, own_openid)
    for number in range(50):
        assert await keys.find(f"forged-{number}", "ES256") is None
    assert own_openid.key_reads == 1
    own_openid.rotate()
    assert not await found(keys, own_openid)
    clock.ahead_s += REFETCH_AFTER_S
    assert await found(keys, own_openid)
    assert own_openid.key_reads == 2


async def test_a_key_that_was_withdrawn_is_not_used_for_long(own_openid: FakeOpenId, clock: Clock) -> None:
    """The provider is asked every hour, in any case."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await found(keys, own_openid)
    old = own_openid.keys[0].kid
    own_openid.rotate()
    clock.ahead_s += FRESH_S
    assert await keys.find(old, "ES256") is None


async def test_known_keys_serve_while_the_provider_is_down_but_not_for_ever(
    own_openid: FakeOpenId, clock: Clock
) -> None:
    """A day at most."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await found(keys, own_openid)
    own_openid.keys_down = True
    clock.ahead_s += FRESH_S
    assert await found(keys, own_openid)
    clock.ahead_s += STALE_S
    with pytest.raises(IdentityUnavailable):
        await found(keys, own_openid)


async def test_a_provider_that_is_down_refuses_nobody(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """That is another error, so the look at the answer is repeated; once it is up, the answer counts."""
    there = installed(tmp_path, own_openid)
    sealed = there.seal(own_openid.token())
    own_openid.keys_down = True
    with pytest.raises(IdentityUnavailable, match="cannot be read right now"):
        await there.verify(sealed)
    own_openid.keys_down = False
    assert (await there.verify(sealed))[0].subject == "dana@example.com"


async def test_a_provider_that_is_not_there_refuses_nobody(tmp_path: Path, openid: FakeOpenId) -> None:
    """Nor does one whose address leads elsewhere."""
    there = installed(tmp_path / "a", openid, {"jwks": "http://127.0.0.1:9/jwks"})
    with pytest.raises(IdentityUnavailable):
        await there.verify(there.seal(openid.token()))
    there = installed(tmp_path / "b", openid, {"jwks": f"{openid.url}/nowhere"})
    with pytest.raises(IdentityUnavailable):
        await there.verify(there.seal(openid.token()))


async def test_a_provider_that_says_to_be_another_is_not_believed(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """What it publishes has to name the issuer that is configured."""
    there = installed(tmp_path, own_openid)
    token = own_openid.token()
    own_openid.issuer = "https://other.example"
    with pytest.raises(IdentityUnavailable, match="a different issuer"):
        await there.verify(there.seal(token))


async def test_a_token_that_names_no_key_is_of_an_issuer_with_one(own_openid: FakeOpenId, clock: Clock) -> None:
    """Otherwise it is not clear which one is meant."""
    keys = IssuerKeys(own_openid.url, None, clock=clock)
    assert await keys.find(None, "ES256") is not None
    own_openid.keys.append(RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True))
    clock.ahead_s += FRESH_S
    assert await keys.find(None, "ES256") is not None
    own_openid.rotate()
    own_openid.keys += [*own_openid.keys, FakeOpenId().keys[0]]
    clock.ahead_s += FRESH_S
    assert await keys.find(None, "ES256") is None


async def test_tokens_signed_with_rsa_are_taken(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """As most providers do."""
    own_openid.keys[:] = [RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True)]
    there: Installation = installed(tmp_path, own_openid)
    assert (await there.verify(there.seal(own_openid.token())))[0].subject == "dana@example.com"


async def test_only_the_algorithms_that_are_configured_are_taken(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """A provider of which RSA is expected signs with nothing else."""
    there = installed(tmp_path, own_openid, {"algorithms": '["RS256"]'})
    with pytest.raises(NotAllowed, match="must use one of RS256"):
        await there.verify(there.seal(own_openid.token()))


@pytest.mark.parametrize("claim", ["realm_access.roles", "https://example.com/roles"])
async def test_roles_may_stand_deeper_or_under_a_name_with_dots(
    tmp_path: Path, own_openid: FakeOpenId, claim: str
) -> None:
    """As providers differ."""
    there = installed(tmp_path, own_openid, {"roles_claim": claim})
    nested = {"realm_access": {"roles": ["audit"]}} if claim.startswith("realm") else {claim: ["audit"]}
    who, _ = await there.verify(there.seal(own_openid.token(roles=None, **nested)))
    assert who.roles == ("audit",)


async def test_an_e_mail_address_that_is_not_verified_names_nobody(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """Anybody can enter one with many providers."""
    there = installed(tmp_path, own_openid, {"subject_claim": "email"})
    good = own_openid.token("17", email="dana@example.com", email_verified=True)
    assert (await there.verify(there.seal(good)))[0].subject == "dana@example.com"
    for claims in ({"email_verified": False}, {"email_verified": "true"}, {}):
        with pytest.raises(NotAllowed, match="without `email_verified`"):
            await there.verify(there.seal(own_openid.token("17", email="boss@example.com", **claims)))


async def test_an_issuer_can_be_trusted_to_verify_every_e_mail_address(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """Some verify, and do not say so; one that says the opposite is believed."""
    there = installed(tmp_path, own_openid, {"subject_claim": "email", "email_trusted": True})
    unsaid = own_openid.token("17", email="dana@example.com")
    assert (await there.verify(there.seal(unsaid)))[0].subject == "dana@example.com"
    with pytest.raises(NotAllowed, match="without `email_verified`"):
        await there.verify(there.seal(own_openid.token("17", email="boss@example.com", email_verified=False)))


def test_a_claim_that_people_can_change_is_warned_of(
    tmp_path: Path, own_openid: FakeOpenId, logs: list[MutableMapping[str, Any]]
) -> None:
    """A name that is given up may come to be somebody else's, and so would the right to approve."""
    installed(tmp_path, own_openid, {"subject_claim": "preferred_username"})
    assert [(log["event"], log["subject_claim"]) for log in logs] == [("identity.mutable_claim", "preferred_username")]
