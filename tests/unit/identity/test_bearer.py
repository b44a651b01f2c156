"""Access tokens of the provider: which ones identify a person or a machine, and for how long."""

import base64
import hmac
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from joserfc.jws import JWSRegistry

from tests.fakes.openid import FakeOpenId
from tests.unit.identity.conftest import APPROVE, CALL, NAMESPACE, Clock, installed
from waystation.approvers import Gatekeeper, Person, why_not
from waystation.approvers.identity import BearerTokens, Configuration, ScopesMissing
from waystation.approvers.identity import admission as rules
from waystation.approvers.identity.admission import Admission
from waystation.approvers.identity.keys import REFETCH_AFTER_S, STALE_S, IssuerKeys
from waystation.core.approval import ApprovalPolicy, PendingCall, Verified
from waystation.core.errors import AuthorizationFailed, IdentityUnavailable, InvalidConfiguration, NotAllowed
from waystation.core.payload import JsonObject

RESOURCE = "https://approvals.example.com"
LAX = JWSRegistry(strict_check_header=False)
GRANT = '[oidc.grant]\napprover = ["role:finance", "robot"]\noperator = ["robot"]\n'


def write(file: Path, openid: FakeOpenId, *lines: str, tables: str = GRANT) -> Path:
    """Write an identity file with the provider, whose access tokens are for this server."""
    section = [f'issuer = "{openid.url}"', 'client_id = "inbox"', f'resource = "{RESOURCE}"', *lines]
    file.write_text("\n".join(["[oidc]", *section, tables]), encoding="utf-8")
    return file


@pytest.fixture
def openid(own_openid: FakeOpenId) -> FakeOpenId:
    """Return a provider whose tokens are for this server."""
    own_openid.audience = RESOURCE
    return own_openid


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens_of(tmp_path: Path, openid: FakeOpenId, clock: Clock) -> Callable[..., BearerTokens]:
    """Return a function that returns the verifier for further lines of the section."""

    def make(*lines: str, tables: str = GRANT) -> BearerTokens:
        configuration = Configuration.read(write(tmp_path / "identity.toml", openid, *lines, tables=tables))
        assert configuration.oidc is not None
        keys = IssuerKeys(openid.url, None, clock=clock)
        return BearerTokens(configuration.oidc, keys, Admission(configuration.oidc, configuration.file, clock=clock))

    return make


async def test_a_token_has_the_subject_the_tenant_and_the_roles_of_a_login(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId
) -> None:
    """The same section decides about logins and tokens."""
    found = await tokens_of('tenant_claim = "org"').identify(openid.token(org="acme", name="Dana"))
    assert (found.who.subject, found.who.roles, found.who.tenant) == ("dana@example.com", ("finance",), "acme")
    assert (found.name, {*found.roles}, found.is_machine) == ("Dana", {"approver"}, False)
    assert found.until == pytest.approx(time.time() + openid.lifetime_s, abs=60)


def encode(part: JsonObject) -> str:
    """Return JSON in the form in which tokens contain it."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def claims_for(openid: FakeOpenId) -> JsonObject:
    """Return claims that a token would be accepted with."""
    return {"iss": openid.url, "aud": RESOURCE, "sub": "dana@example.com", "exp": int(time.time()) + 600}


def forge(openid: FakeOpenId, header: JsonObject, sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """Return a token with this header and a signature of its own."""
    signed = f"{encode(header)}.{encode(claims_for(openid))}"
    return f"{signed}.{base64.urlsafe_b64encode(sign(signed.encode())).rstrip(b'=').decode()}"


async def test_tokens_that_the_provider_did_not_sign_are_refused(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId
) -> None:
    """A token without a signature, with a key of its own, or with the public key as a shared secret is forged."""
    tokens, own, key, signed = tokens_of(), ECKey.generate_key("P-256"), openid.keys[0], openid.token()
    head, _, signature = signed.split(".")
    forged = [
        forge(openid, {"alg": "none"}),
        jwt.encode({"alg": "ES256", "kid": key.kid}, claims_for(openid), own),
        jwt.encode({"alg": "ES256", "jwk": own.as_dict(private=False)}, claims_for(openid), own, registry=LAX),
        forge(openid, {"alg": "HS256", "kid": key.kid}, lambda data: hmac.digest(key.as_pem(False), data, "sha256")),
        f"{head}.{encode(claims_for(openid))}.{signature}",
        "x.y.z",
        "a" * 20_000,
    ]
    for token in forged:
        with pytest.raises(NotAllowed) as caught:
            await tokens.identify(token)
        assert token not in str(caught.value)
    assert (await tokens.identify(signed)).who.subject == "dana@example.com"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1_700_000_000},
        {"exp": None},
        {"nbf": 4_000_000_000},
        {"aud": "another-server"},
        {"aud": "inbox"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"sub": "role:finance"},
        {"sub": None},
        {"cnf": {"jkt": "key"}},
        {"azp": "dana@example.com"},
        {"gty": "client-credentials"},
    ],
    ids=str,
)
async def test_tokens_for_others_or_another_time_are_refused(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId, claims: dict[str, Any]
) -> None:
    """ID tokens, tokens for other servers, expired tokens, and those of unlisted programs identify nobody."""
    with pytest.raises(NotAllowed):
        await tokens_of().identify(openid.token(**claims))


async def test_another_kind_of_token_is_refused(tokens_of: Callable[..., BearerTokens], openid: FakeOpenId) -> None:
    """A logout token of the provider has the same issuer, key and perhaps audience."""
    assert await tokens_of().identify(openid.signed(claims_for(openid), typ="at+JWT"))
    with pytest.raises(NotAllowed, match="not an access token"):
        await tokens_of().identify(openid.signed(claims_for(openid), typ="logout+jwt"))


async def test_the_keys_rotate_and_survive_an_outage_for_a_while(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId, clock: Clock
) -> None:
    """Unknown keys are fetched at a limited rate, and known keys serve for a day without the provider."""
    tokens, old = tokens_of(), openid.token()
    await tokens.identify(old)
    reads = openid.key_reads
    openid.rotate()
    for _ in range(3):  # so soon after the first fetch, nothing is fetched
        with pytest.raises(NotAllowed, match="at most once a minute"):
            await tokens.identify(openid.token())
    assert openid.key_reads == reads
    clock.ahead_s += REFETCH_AFTER_S
    await tokens.identify(openid.token())
    with pytest.raises(NotAllowed):
        await tokens.identify(old)
    assert openid.key_reads == reads + 1
    openid.keys_down = True
    clock.ahead_s += STALE_S - 60
    await tokens.identify(openid.token())
    clock.ahead_s += 120
    with pytest.raises(IdentityUnavailable):
        await tokens.identify(openid.token())


@pytest.mark.parametrize("claim", [{"scope": "openid answers"}, {"scp": ["answers"]}])
async def test_a_required_scope_is_read_from_either_claim(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId, claim: dict[str, Any]
) -> None:
    """A token without it has an error of its own, so that programs can request the scope."""
    tokens = tokens_of('token_scopes = ["answers"]')
    assert await tokens.identify(openid.token(**claim))
    with pytest.raises(ScopesMissing, match="'answers'"):
        await tokens.identify(openid.token(scope="openid"))


async def test_a_machine_has_roles_by_subject_and_counts_only_where_a_policy_names_it(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId
) -> None:
    """Roles that the provider gives to a machine neither grant anything nor match a policy."""
    tokens = tokens_of('machines = ["robot"]')
    found = await tokens.identify(openid.token("robot", roles=["finance"], azp="robot"))
    assert (found.is_machine, {*found.roles}, *found.who.roles) == (True, {"approver", "operator"})
    robot = Person("robot", found.who, roles=found.roles, is_machine=True)
    fields: dict[str, Any] = {"function_call_id": "fc-1", "invocation_id": "i", "agent": "a", "tool": "t", "args": {}}
    call = PendingCall(**fields, kind="confirmation", digest="d", requested_at=0, deadline=9, user_id="u")
    for policy in (None, ApprovalPolicy(quorum=2), ApprovalPolicy(approvers=("role:finance",))):
        unnamed = call.model_copy(update={"policy": policy})
        assert "is a machine" in why_not(robot, unnamed, "approve")
        assert "is a machine" in why_not(robot, unnamed, "waive")
    named = call.model_copy(update={"policy": ApprovalPolicy(approvers=("robot",), operators=("robot",))})
    assert [why_not(robot, named, action) for action in ("approve", "waive")] == ["", ""]


async def test_a_token_ends_when_the_identity_file_no_longer_admits_its_subject(
    tokens_of: Callable[..., BearerTokens], openid: FakeOpenId, clock: Clock, tmp_path: Path
) -> None:
    """The file is read again after a change. While it is invalid, the last rules apply."""
    tokens = tokens_of()
    found = await tokens.identify(openid.token())
    file = tmp_path / "identity.toml"
    os.utime(write(file, openid, tables="[oidc.grant]\napprover = 7"), ns=(1, 1))
    clock.ahead_s += rules.REREAD_S
    assert found.is_admitted()
    os.utime(write(file, openid, tables='[oidc.require]\nroles = ["board"]'), ns=(2, 2))
    clock.ahead_s += rules.REREAD_S
    assert not found.is_admitted()
    with pytest.raises(AuthorizationFailed, match=r"require\.roles"):
        await tokens.identify(openid.token())


def test_a_changed_file_cannot_open_a_public_provider_to_anyone(tmp_path: Path, clock: Clock) -> None:
    """The server would not have started with these rules."""
    lines = '[oidc]\nissuer = "https://accounts.google.com"\nclient_id = "inbox"\n'
    file = tmp_path / "identity.toml"
    file.write_text(f'{lines}[oidc.require]\nroles = ["staff"]\n')
    configuration = Configuration.read(file)
    assert configuration.oidc is not None
    admission = Admission(configuration.oidc, file, clock=clock)
    file.write_text(lines)
    clock.ahead_s += rules.REREAD_S
    found = Configuration.read(file).oidc
    assert found is not None
    assert Admission(found).is_open
    with pytest.raises(AuthorizationFailed):
        admission.check({}, Verified(subject="dana"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('resource = "inbox"', "ID tokens would count"),
        ('machines = ["robot"]', "needs `resource`"),
        ('token_scopes = ["answers"]', "needs `resource`"),
    ],
)
def test_a_section_that_would_mix_up_tokens_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    """The audience keeps access tokens apart from the ID tokens of logins."""
    file = tmp_path / "identity.toml"
    file.write_text(f'[oidc]\nissuer = "https://login.example.com"\nclient_id = "inbox"\n{line}\n')
    with pytest.raises(InvalidConfiguration, match=problem):
        Configuration.read(file)


async def test_a_program_verifies_tokens_with_the_identity_file_of_its_project(
    tmp_path: Path, openid: FakeOpenId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front end needs no settings of its own, and refuses a section that accepts no access tokens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WAYSTATION_WEB_IDENTITY", raising=False)
    with pytest.raises(InvalidConfiguration, match=r"waystation.toml, identity.web: is not set"):
        BearerTokens.load()
    write(tmp_path / "gateway.toml", openid)
    (tmp_path / "waystation.toml").write_text('[identity]\nweb = "gateway.toml"\n')
    assert (await BearerTokens.load().identify(openid.token())).who.subject == "dana@example.com"
    (tmp_path / "gateway.toml").write_text(f'[oidc]\nissuer = "{openid.url}"\nclient_id = "inbox"\n')
    with pytest.raises(InvalidConfiguration, match=r"oidc.resource: is missing"):
        BearerTokens.load()


async def test_a_proof_needs_no_gateway_key(tmp_path: Path, openid: FakeOpenId) -> None:
    """Workers that trust the provider verify the token itself; without a proof, nothing is signed."""
    there = installed(tmp_path / "identity", openid, {"audience": RESOURCE})
    file = write(there.folder / "tokens.toml", openid, tables='[envelope]\npublic_key = "envelope-public.json"')
    keeper = Gatekeeper.from_file(file, NAMESPACE, interface="chat")
    assert keeper.tokens is not None
    token = openid.token()
    found = await keeper.tokens.identify(token)
    sign = keeper.make_signer(Person("Dana", found.who, proof=token))
    assert sign is not None
    who, _ = await there.verify(sign(namespace=NAMESPACE, approval_id=CALL, answer=APPROVE))
    assert (who.subject, who.issuer) == ("dana@example.com", openid.url)
    assert keeper.make_signer(Person("Dana", found.who)) is None
    assert keeper.identify(Person("Dana", found.who)) is None
