"""Hazard 16: a token for one answer is not valid for another."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from tests.unit.identity.conftest import APPROVE, CALL, NAMESPACE, Installation
from waystation.approvers.identity.tokens import LIFETIME_S
from waystation.core.errors import NotAllowed

HERE: dict[str, Any] = {"namespace": NAMESPACE, "call": CALL}
# Six different answers.
PLACES: Mapping[str, dict[str, Any]] = {
    "here": HERE,
    "namespace": {**HERE, "namespace": "production"},
    "invocation": {**HERE, "call": "invoice-8/fc-1"},
    "call": {**HERE, "call": "invoice-7/fc-2", "function_call_id": "fc-2"},
    "answer": {**HERE, "action": "edit", "args": {"amount": 1_000_000}},
    "digest": {**HERE, "digest": "d" * 32},
}


def sealed_token(there: Installation, signer: str, place: Mapping[str, Any]) -> str:
    """Return an envelope for one place, with a token of the provider or of the gateway."""
    answer = APPROVE | {name: value for name, value in place.items() if name not in ("namespace", "call")}
    bound = {"namespace": place["namespace"], "approval_id": place["call"], "answer": answer}
    if signer == "gateway":
        return there.sealer.seal(there.gateway.sign("dana@example.com", **bound), **bound)
    return there.sealer.seal(there.provider.token(exp=2**36), **bound)


@pytest.mark.parametrize("signer", ["provider", "gateway"])
@pytest.mark.parametrize("to", PLACES)
@pytest.mark.parametrize("of", PLACES)
async def test_a_token_is_valid_only_in_its_place(there: Installation, of: str, to: str, signer: str) -> None:
    """A token is accepted only for the answer that it was made for: 6 of 36 combinations pass."""
    sealed = sealed_token(there, signer, PLACES[of])
    if of == to:
        who, _ = await there.verify(sealed, **PLACES[to])
        assert who.subject == "dana@example.com"
    else:
        with pytest.raises(NotAllowed, match="The token is for"):
            await there.verify(sealed, **PLACES[to])


@pytest.mark.parametrize("signer", ["provider", "gateway"])
async def test_a_token_expires_after_a_day(there: Installation, signer: str) -> None:
    """An envelope that is older than a day is refused, whatever its content."""
    sealed = sealed_token(there, signer, HERE)
    there.clock.ahead_s = LIFETIME_S + 120
    with pytest.raises(NotAllowed, match="expired"):
        await there.verify(sealed)


@pytest.mark.parametrize("to", PLACES)
async def test_a_token_of_the_gateway_cannot_move_to_another_envelope(there: Installation, to: str) -> None:
    """A token that was taken from an envelope is refused in another one."""
    other = APPROVE | {"comment": "no, this one"}
    token = there.gateway.sign("dana@example.com", namespace=NAMESPACE, approval_id=CALL, answer=other)
    place = PLACES[to]
    answer = APPROVE | {name: value for name, value in place.items() if name not in ("namespace", "call")}
    sealed = there.sealer.seal(token, namespace=place["namespace"], approval_id=place["call"], answer=answer)
    with pytest.raises(NotAllowed, match="signed for another answer"):
        await there.verify(sealed, **place)


async def test_an_unbound_token_of_the_gateway_is_refused(there: Installation) -> None:
    """A token of the gateway that is bound to no answer is refused, because the gateway binds all its tokens."""

    key = ECKey.import_key(json.loads((there.folder / "gateway-signing.json").read_text()))
    claims = {
        "iss": "https://approvals.example.com",
        "aud": "waystation",
        "sub": "dana",
        "roles": [],
        "exp": time.time() + 60,
    }
    token = jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key)
    with pytest.raises(NotAllowed, match="signed for another answer"):
        await there.verify(there.seal(token))


async def test_a_token_used_twice_has_the_same_nonce(there: Installation) -> None:
    """The workflow refuses the second use by its nonce."""
    sealed = sealed_token(there, "provider", HERE)
    assert (await there.verify(sealed))[1] == (await there.verify(sealed))[1]
