"""Tokens prove who sent an answer. Every refusal is a `NotAllowed` without content of the token."""

import base64
import hashlib
import hmac
import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from joserfc import jwe, jws, jwt
from joserfc.jwk import ECKey, RSAKey

from tests.fakes.openid import FakeOpenId
from tests.tiers import drawn_examples
from tests.unit.identity.conftest import APPROVE, CALL, NAMESPACE, Installation, installed
from waystation.approvers.identity import Configuration, answer_digest
from waystation.approvers.identity.verification import WorkerIdentity
from waystation.core.approval import PLAIN_TOKEN, Answer, Request, Verified
from waystation.core.errors import InvalidConfiguration, NotAllowed

JWE = ["ECDH-ES", "A256GCM"]


def part(value: object) -> str:
    """Return one part of a compact token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def workers_key(there: Installation) -> ECKey:
    """Return the public key of the workers."""
    return ECKey.import_key(json.loads((there.folder / "envelope-public.json").read_text()))


def enveloped(there: Installation, header: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return an envelope made by hand; None leaves a field out."""
    content = {
        "token": there.provider.token(),
        "namespace": NAMESPACE,
        "call": CALL,
        "answer": answer_digest(APPROVE),
        "jti": "n1",
        "exp": time.time() + 60,
    } | changes
    content = {name: value for name, value in content.items() if value is not None}
    plain = json.dumps(content)
    return jwe.encrypt_compact(
        {"alg": JWE[0], "enc": JWE[1]} | (header or {}), plain, workers_key(there), algorithms=[*JWE, "DEF", "A128GCM"]
    )


async def refusal(there: Installation, sealed: str, **context: Any) -> str:
    """Return the text of a worker's refusal; no other error and no content of the token may appear."""
    with pytest.raises(NotAllowed) as caught:
        await there.verify(sealed, **context)
    text = str(caught.value)
    assert caught.value.__cause__ is None
    assert not any(piece in text for piece in sealed.split(".") if len(piece) > 8)
    assert not any(secret in text for secret in there.provider.secrets)
    return text


async def test_a_token_of_the_identity_provider_identifies_the_approver(there: Installation) -> None:
    """The identity includes the roles of the token."""
    who, nonce = await there.verify(there.seal(there.provider.token("dana@example.com", roles=["finance", "audit"])))
    assert who == Verified(subject="dana@example.com", roles=("finance", "audit"), issuer=there.provider.url)
    assert len(nonce) >= 16


async def test_a_token_of_the_gateway_identifies_the_approver(there: Installation) -> None:
    """The issuer of the token is the gateway, where the person logged in."""
    signed = there.gateway.sign("eve", ["finance"], namespace=NAMESPACE, approval_id=CALL, answer=APPROVE)
    who, _ = await there.verify(there.seal(signed))
    assert who == Verified(subject="eve", roles=("finance",), issuer="https://approvals.example.com")


async def test_two_envelopes_of_one_token_have_different_nonces(there: Installation) -> None:
    """Each of the two answers is recorded and counts once."""
    token = there.provider.token()
    assert (await there.verify(there.seal(token)))[1] != (await there.verify(there.seal(token)))[1]


async def test_defaults_of_an_answer_may_be_omitted(there: Installation) -> None:
    """An answer with and without its default values has the same digest, to which the token is bound."""
    sealed = there.sealer.seal(
        there.provider.token(), namespace=NAMESPACE, approval_id=CALL, answer=APPROVE | {"wake": True, "by": None}
    )
    assert (await there.verify(sealed, remember=False))[0].subject == "dana@example.com"


# What is sealed


async def test_a_gateway_names_a_machine_in_requests_only(there: Installation) -> None:
    """The machine is then a requester. It cannot answer, and no other issuer can name one."""
    place, request = {"namespace": NAMESPACE, "approval_id": "hook-1"}, Request({"message": "hi"})
    signed = there.gateway.sign("machine:hook:crm", **place, answer=request)
    who, _ = await there.worker.verify(there.sealer.seal(signed, **place, answer=request), **place, answer=request)
    assert who.subject == "machine:hook:crm"
    unbound = there.sealer.seal(there.provider.token(sub="machine:hook:crm"), **place, answer=request)
    with pytest.raises(NotAllowed, match="reserved for machines"):
        await there.worker.verify(unbound, **place, answer=request)
    answer = there.gateway.sign("machine:hook:crm", namespace=NAMESPACE, approval_id=CALL, answer=APPROVE)
    assert "reserved for machines" in await refusal(there, there.seal(answer))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": "https://other.example"}, "do not trust the token's issuer"),
        ({"iss": None}, "do not trust the token's issuer"),
        ({"iss": ["https://other.example"]}, "do not trust the token's issuer"),
        ({"aud": "another-program"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"waystation-test": 1}}, "audience"),
        ({"aud": ["x"] * 101}, "audience"),
        ({"exp": 1_000}, "expired"),
        ({"exp": None}, "lacks `exp`"),
        ({"exp": True}, "lacks `exp`"),
        ({"exp": "tomorrow"}, "lacks `exp`"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"iat": 4_000_000_000}, "not valid yet"),
        ({"nbf": "now"}, "not valid yet"),
        ({"sub": None}, "not a short printable string"),
        ({"sub": ""}, "not a short printable string"),
        ({"sub": 7}, "not a short printable string"),
        ({"sub": "d" * 301}, "not a short printable string"),
        ({"sub": "dana\u202e"}, "not a short printable string"),
        ({"sub": "role:finance"}, "reserved for roles"),
        ({"sub": "machine:claims"}, "reserved for machines"),
        ({"roles": "finance"}, "not a list"),
        ({"roles": {"finance": True}}, "not a list"),
        ({"roles": [["finance"]]}, "short role names"),
        ({"roles": ["r" * 301]}, "short role names"),
        ({"roles": ["r"] * 501}, "not a list of at most 500"),
    ],
)
async def test_a_signed_token_must_have_all_required_claims(
    there: Installation, changes: dict[str, Any], why: str
) -> None:
    """A missing claim or a wrong type is refused despite a valid signature."""
    assert why in await refusal(there, there.seal(there.provider.token(**changes)))


async def test_a_token_without_roles_identifies_a_person_without_roles(there: Installation) -> None:
    """A token without roles is accepted, because many providers name no roles."""
    assert (await there.verify(there.seal(there.provider.token(roles=()))))[0].roles == ()
    claims = {"iss": there.provider.url, "aud": "waystation-test", "sub": "dana", "exp": time.time() + 60}
    assert (await there.verify(there.seal(there.provider.signed(claims))))[0].roles == ()


async def test_a_small_difference_of_clocks_is_accepted(there: Installation) -> None:
    """Clocks may differ by thirty seconds in either direction."""
    for off in (-30, 30):
        there.clock.ahead_s = off
        token = there.provider.token(exp=int(time.time()) + max(0, off) - 20 + 1, nbf=int(time.time()))
        assert (await there.verify(there.seal(token)))[0].subject


def forged(there: Installation) -> dict[str, str]:
    """Return tokens of a forger who has all public keys."""
    claims = {"iss": there.provider.url, "aud": "waystation-test", "sub": "mallory", "exp": time.time() + 600}
    own = ECKey.generate_key("P-256")
    public = there.provider.keys[0]
    kid = public.kid
    message = f"{part({'alg': 'HS256', 'kid': kid})}.{part(claims)}"
    hashed = hmac.digest(public.as_pem(private=False), message.encode(), "sha256")
    with_public_key = f"{message}.{base64.urlsafe_b64encode(hashed).rstrip(b'=').decode()}"
    head, body, signature = there.provider.token().split(".")
    good = {"alg": "ES256", "kid": kid}
    embedded = own.as_dict(private=False)
    return {
        "no signature": f"{part({'alg': 'none'})}.{part(claims)}.",
        "none in capitals": f"{part({'alg': 'None', 'kid': kid})}.{part(claims)}.AAAA",
        "signature taken off": f"{head}.{body}.",
        "header replaced": f"{part({'alg': 'none', 'kid': kid})}.{body}.{signature}",
        "HMAC with the public key": with_public_key,
        "another's key under the name of the provider's": jwt.encode(good, claims, own, algorithms=["ES256"]),
        "a key that is not published": jwt.encode(good | {"kid": "k9"}, claims, own, algorithms=["ES256"]),
        "a key in the header": jwt.encode({"alg": "ES256", "jwk": embedded}, claims, own, algorithms=["ES256"]),
        "an address of keys in the header": jwt.encode(
            {"alg": "ES256", "jku": "https://mallory.example/jwks"}, claims, own, algorithms=["ES256"]
        ),
        "body changed": f"{head}.{part(claims)}.{signature}",
        "signature changed": f"{head}.{body}.{'A' * len(signature)}",
        "another algorithm with the provider's key": f"{part({'alg': 'RS256', 'kid': kid})}.{body}.{signature}",
        "a name of a key that is not text": f"{part({'alg': 'ES256', 'kid': [kid]})}.{body}.{signature}",
        "an algorithm that is not text": f"{part({'alg': ['ES256'], 'kid': kid})}.{body}.{signature}",
        "not a token": "letmein",
        "empty": "..",
        "no JSON": f"{part(1)}.{part(2)}.AAAA",
        "deep": f"{head}.{base64.urlsafe_b64encode(b'[' * 3_000).rstrip(b'=').decode()}.{signature}",
    }


@pytest.mark.parametrize(
    "name",
    [
        "no signature",
        "none in capitals",
        "signature taken off",
        "header replaced",
        "HMAC with the public key",
        "another's key under the name of the provider's",
        "a key that is not published",
        "a key in the header",
        "an address of keys in the header",
        "body changed",
        "signature changed",
        "another algorithm with the provider's key",
        "a name of a key that is not text",
        "an algorithm that is not text",
        "not a token",
        "empty",
        "no JSON",
        "deep",
    ],
)
async def test_a_forged_identity_proves_nothing(there: Installation, name: str) -> None:
    """Hazard 15: only signatures of trusted issuers are accepted."""
    await refusal(there, there.seal(forged(there)[name]))


async def test_every_forgery_is_tried(there: Installation) -> None:
    """The list of forgeries above is complete."""
    assert len(forged(there)) == 18


@pytest.mark.parametrize("name", ["crit", "b64", "zip"])
async def test_an_unknown_critical_header_is_refused(there: Installation, name: str) -> None:
    """A token with an unknown critical header is refused, because the header could change its meaning."""
    key = there.provider.keys[0]
    value: Any = {"crit": ["exp"], "b64": True, "zip": "DEF"}[name]
    claims = {"iss": there.provider.url, "aud": "waystation-test", "sub": "dana", "exp": time.time() + 600}
    head = part({"alg": "ES256", "kid": key.kid, name: value})
    message = f"{head}.{part(claims)}"
    signature = jws.JWSRegistry.algorithms["ES256"].sign(message.encode(), key)
    token = f"{message}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    assert "unsupported extension" in await refusal(there, there.seal(token))


async def test_a_token_of_a_program_has_no_roles(there: Installation) -> None:
    """A client's own token, which it may send without any interface, must not count as that of a person."""
    who, _ = await there.verify(there.seal(there.provider.token("robot", roles=["finance"], azp="robot")))
    assert (who.subject, who.roles, who.is_program) == ("robot", (), True)
    assert "is_program" not in who.model_dump()
    for claims in ({"azp": "inbox"}, {"client_id": "inbox"}, {}):
        person, _ = await there.verify(
            there.seal(there.provider.token("dana@example.com", roles=["finance"], **claims))
        )
        assert (person.roles, person.is_program) == (("finance",), False)


async def test_a_short_rsa_key_of_a_provider_is_refused(tmp_path: Path, own_openid: FakeOpenId) -> None:
    """A key that is too short is refused, because its signatures can be forged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joserfc warns of the short key
        own_openid.keys[:] = [RSAKey.generate_key(1024, {"use": "sig"}, auto_kid=True)]
        token = own_openid.token()
    there = installed(tmp_path, own_openid)
    assert "unknown key of its issuer" in await refusal(there, there.seal(token))


# The envelope


async def test_a_plaintext_token_is_refused_with_a_request_to_revoke_it(there: Installation) -> None:
    """Hazard 16: the token is refused, because it is readable in every place where it was sent."""
    assert "Revoke it" in await refusal(there, there.provider.token())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"namespace": "other"}, "another namespace"),
        ({"call": "invoice-8/fc-1"}, "another call"),
        ({"answer": answer_digest(APPROVE | {"action": "reject"})}, "another answer"),
        ({"answer": None}, "another answer"),
        ({"exp": 1_000}, "expired"),
        ({"exp": int(time.time()) + 100_000}, "more than a day from now"),
        ({"exp": None}, "lacks `exp`"),
        ({"jti": None}, "lacks `token` or `jti`"),
        ({"jti": ""}, "lacks `token` or `jti`"),
        ({"jti": "n" * 101}, "lacks `token` or `jti`"),
        ({"token": None}, "lacks `token` or `jti`"),
        ({"token": {"sub": "dana"}}, "lacks `token` or `jti`"),
    ],
)
async def test_an_envelope_must_be_for_this_answer(there: Installation, changes: dict[str, Any], why: str) -> None:
    """Each field of the envelope is compared with the answer."""
    assert why in await refusal(there, enveloped(there, **changes))


async def test_an_envelope_made_by_another_program_is_accepted(there: Installation) -> None:
    """An envelope that follows the contract is accepted, whatever the language of the program."""
    who, nonce = await there.verify(enveloped(there))
    assert (who.subject, nonce) == ("dana@example.com", "n1")


@pytest.mark.parametrize("header", [{"zip": "DEF"}, {"enc": "A128GCM"}, {"cty": "JWT", "jku": "https://x.example"}])
async def test_an_envelope_must_have_the_agreed_header(there: Installation, header: dict[str, str]) -> None:
    """An envelope with another header is refused.

    Compression, for example, could turn a small text into a large one.
    """
    assert "header of the token's envelope" in await refusal(there, enveloped(there, header))


async def test_an_envelope_for_other_workers_does_not_open(
    there: Installation, tmp_path: Path, openid: FakeOpenId
) -> None:
    """An envelope for other workers or with a changed character does not open."""
    assert "cannot be decrypted" in await refusal(there, installed(tmp_path / "other", openid).seal(openid.token()))
    head, key, iv, text, tag = there.seal(openid.token()).split(".")
    text = ("B" if text[0] == "A" else "A") + text[1:]
    assert "cannot be decrypted" in await refusal(there, ".".join([head, key, iv, text, tag]))


async def test_an_old_key_opens_earlier_envelopes(there: Installation, tmp_path: Path, openid: FakeOpenId) -> None:
    """An old key opens earlier envelopes, because both keys are configured during a rotation."""
    new = installed(tmp_path / "new", openid)
    file = new.folder / "workers.toml"
    names = f'["envelope-private.json", "{there.folder}/envelope-private.json"]'
    file.write_text(file.read_text().replace('"envelope-private.json"', names, 1))
    new.worker = WorkerIdentity.load(file)
    assert (await new.verify(there.seal(openid.token())))[0].subject == "dana@example.com"


async def test_a_huge_token_is_refused_before_it_is_parsed(there: Installation) -> None:
    """Envelopes have a limit, and so do the tokens inside them."""
    assert "The limit is 32000" in await refusal(there, "e30." * 10_000)
    with pytest.raises(NotAllowed, match="The limit is 16000"):
        there.seal("e" * 16_001)
    assert "not a signed token" in await refusal(there, enveloped(there, token="e30.e30." + "A" * 17_000))


# Arbitrary values

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
claim_sets = st.dictionaries(
    st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "roles", "waystation", "x"]), json_values, max_size=8
)
quietly = settings(
    max_examples=drawn_examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quietly
@given(st.text() | st.lists(st.text(max_size=30), min_size=5, max_size=5).map(".".join))
async def test_any_text_sent_as_a_token_is_refused(there: Installation, text: str) -> None:
    """Any text raises only `NotAllowed`, even with five parts."""
    assume(
        not any(piece in PLAIN_TOKEN for piece in text.split(".") if piece)
    )  # Hypothesis also draws words from our code
    await refusal(there, text)


@quietly
@given(json_values | st.fixed_dictionaries({"token": json_values, "jti": json_values, "exp": json_values}))
async def test_any_sealed_value_is_refused(there: Installation, value: object) -> None:
    """Any sealed value raises only `NotAllowed`, because anyone can seal with the public key."""
    sealed = jwe.encrypt_compact(
        {"alg": JWE[0], "enc": JWE[1]}, json.dumps(value), workers_key(there), algorithms=list(JWE)
    )
    await refusal(there, sealed)


@quietly
@given(claim_sets, st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "x"]), json_values, max_size=4))
async def test_any_signed_value_without_an_identity_is_refused(
    there: Installation, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    """A signed value without an identity is refused, even with the provider's own key."""
    key = there.provider.keys[0]
    message = f"{part({'alg': 'ES256', 'kid': key.kid} | header)}.{part({'iss': there.provider.url} | claims)}"
    signature = jws.JWSRegistry.algorithms["ES256"].sign(message.encode(), key)
    token = f"{message}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    await refusal(there, there.seal(token))


async def test_the_example_of_the_contract_has_the_documented_digest(there: Installation) -> None:
    """Programs in other languages can compare their digest with it."""
    answer = {
        "function_call_id": "fc-1",
        "action": "edit",
        "args": {"amount": 12.5, "note": "größer\n", "id": 9007199254740993, "small": 1e-7, "list": [1.0, None, True]},
        "wake": True,
    }
    # The canonical form omits the default of `wake`.
    text = (
        '{"action":"edit","args":{"amount":12.5,"id":"9007199254740993","list":[1,null,true],'
        '"note":"größer\\n","small":1e-7},"function_call_id":"fc-1"}'
    )
    assert answer_digest(answer) == hashlib.sha256(text.encode()).hexdigest()
    assert answer_digest(Answer.model_validate(answer)) == answer_digest(answer)


def test_workers_need_an_issuer_and_a_key(tmp_path: Path) -> None:
    """The error names the file, the missing key and its purpose."""
    file = tmp_path / "workers.toml"
    file.write_text("")
    with pytest.raises(InvalidConfiguration, match=r"workers\.toml, envelope\.private_key: is missing; workers"):
        WorkerIdentity.load(file)
    assert Configuration.read(file).issuers == ()
