"""The tokens that Waystation issues for answers and for links.

An answer's token is signed for the approver and sent to the workers in an encrypted envelope. Both are valid only for
one answer to one call. Histories contain only the encrypted envelope, which cannot be used for any other answer.

A link shows one call, even to people who have not logged in. The gateway's configuration determines whether the person
that the link was made for can also use it to answer the call.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import rfc8785
from joserfc import jwe, jws, jwt
from joserfc.jwk import ECKey, OctKey, OKPKey
from joserfc.util import urlsafe_b64decode

from waystation.approvers.identity.identity_file import Configuration, IssuerKind
from waystation.core.approval import (
    MAX_TOKEN_CHARS,
    PLAIN_TOKEN,
    TOKEN_LIFETIME_S,
    Answer,
    Request,
    TokenSigner,
    is_encrypted,
)
from waystation.core.errors import InvalidAnswer, NotAllowed
from waystation.core.payload import JsonObject, decode, encode, parse

BINDING = "waystation"
"""The claim that binds a signed token to one answer."""
KIND = "waystation_kind"
"""The claim with the kind of the gateway. Workers refuse the token if they list its issuer without that kind."""
AGREEMENT, ENCRYPTION = "ECDH-ES", "A256GCM"
SHARED = "dir"
"""The algorithm of envelopes that are encrypted with a key that sender and workers share."""
LIFETIME_S = TOKEN_LIFETIME_S
"""How long an envelope is valid, in seconds. The answer must reach a worker in this time. The token inside has its own
expiry. Tokens from the gateway are valid for the same time.
"""
SCHEDULE_LIFETIME_S = 10 * 365 * 86_400.0
"""How long the token of a schedule is valid, in seconds. It states who asked for the schedule, which stays true.
Withdrawing the gateway's key ends it.
"""
MAX_JWT_CHARS = 16_000
MAX_NONCE_CHARS = 100
LEEWAY_S = 60.0
"""The tolerated difference between clocks, in seconds."""
LINK_AUDIENCE = "waystation-link"
MAX_LINK_CHARS = 4_000
_LINK_ALGORITHM = "HS256"
EXACT = 2**53 - 1
"""The largest integer that JSON parsers in all languages represent exactly. Larger ones are hashed as strings."""
MAX_TIME = 2**40
_SIGNATURES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}
_HEADER = {"alg", "enc", "epk", "kid", "typ", "cty", "apu", "apv"}


def answer_digest(answer: Answer | Request | Mapping[str, Any]) -> str:
    """Return the digest of an answer or request without its token: hex SHA-256 of the canonical JSON (RFC 8785).

    Fields that are null or have their default value are left out, so the digest does not depend on whether a client
    sends them. Integers with an absolute value of at least 2^53, which RFC 8785 does not define, are converted to
    strings.

    Raises:
        InvalidAnswer: The mapping is not a valid answer.
    """
    if isinstance(answer, Request):
        return hashlib.sha256(rfc8785.dumps(_replace_large_integers(answer.content))).hexdigest()
    if not isinstance(answer, Answer):
        content = {key: value for key, value in answer.items() if value is not None}
        answer = parse(Answer, encode(content), InvalidAnswer, what="The answer", send="such as the contract shows")
    fields = ((name, getattr(answer, name), field.default) for name, field in Answer.model_fields.items())
    values = {name: value for name, value, default in fields if name != "token" and value not in (None, default)}
    return hashlib.sha256(rfc8785.dumps(_replace_large_integers(values))).hexdigest()


def _replace_large_integers(value: Any) -> Any:
    match value:
        case dict():
            return {key: _replace_large_integers(item) for key, item in value.items()}
        case list():
            return [_replace_large_integers(item) for item in value]
        case int() if abs(value) > EXACT:
            return str(value)
        case _:
            return value


class Gateway:
    """Signs the identity of approvers who have logged in to `waystation web`.

    Only the gateway has the private key. Workers have the public key.
    """

    def __init__(
        self,
        key: ECKey | OKPKey,
        *,
        issuer: str,
        audience: str,
        kind: IssuerKind | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key, self._issuer, self._audience, self._kind, self._clock = key, issuer, audience, kind, clock
        key.ensure_kid()

    @classmethod
    def of(cls, configuration: Configuration, *, clock: Callable[[], float] = time.time) -> "Gateway":
        """Create the gateway that is configured in `[gateway]`.

        Raises:
            InvalidConfiguration: The section or its key is missing or invalid.
        """
        section = configuration.need(configuration.gateway, "gateway", "its key signs the identity of approvers")
        key = configuration.asymmetric_key("gateway.signing_key", section.signing_key, use="sig", kind="private")
        return cls(key, issuer=section.issuer, audience=section.audience, kind=section.kind, clock=clock)

    def sign(
        self,
        subject: str,
        roles: Sequence[str] = (),
        *,
        namespace: str,
        approval_id: str,
        answer: Mapping[str, Any] | Request,
    ) -> str:
        """Return a signed token for one answer by one person to one call, or for one request."""
        now = int(self._clock())
        claims = {
            "iss": self._issuer,
            "aud": self._audience,
            "sub": subject,
            "roles": list(roles),
            "iat": now,
            "exp": now + int(lifetime_of(answer)),
            BINDING: {"namespace": namespace, "call": approval_id, "answer": answer_digest(answer)},
            **({KIND: self._kind} if self._kind else {}),
        }
        algorithm = _SIGNATURES[self._key.curve_name]
        return jwt.encode({"alg": algorithm, "kid": self._key.kid}, claims, self._key, algorithms=[algorithm])

    def signer(self, subject: str, roles: Sequence[str] = ()) -> TokenSigner:
        """Return a function that signs any answer by one person. Pass it to the client as `token=`."""
        return partial(self.sign, subject, roles)


class Sealer:
    """Encrypts tokens with the workers' public key, so that only they can decrypt them, or with a shared key."""

    def __init__(self, key: ECKey | OKPKey | OctKey, *, clock: Callable[[], float] = time.time) -> None:
        self._key, self._clock = key, clock

    @classmethod
    def of(cls, configuration: Configuration, *, clock: Callable[[], float] = time.time) -> "Sealer":
        """Create a sealer with the key that is configured in `[envelope] public_key`.

        Raises:
            InvalidConfiguration: The key is missing or invalid.
        """
        key = "envelope.public_key"
        name = configuration.envelope.public_key if configuration.envelope else None
        name = configuration.need(name, key, "it encrypts tokens for the workers")
        return cls(configuration.asymmetric_key(key, name, use="enc", kind="public"), clock=clock)

    def seal(
        self,
        token: str,
        *,
        namespace: str,
        approval_id: str,
        answer: Mapping[str, Any] | Request,
        nonce: str | None = None,
    ) -> str:
        """Encrypt a signed token. The result is valid only for the given answer to the given call, or for one request.

        Args:
            token: The sender's token, signed by an identity provider or the gateway.
            namespace: The Temporal namespace of the call.
            approval_id: The approval ID of the call, as returned by `ids.approval`. For a request, the ID of the
                workflow that receives it.
            answer: The answer, whose token is ignored, or the request.
            nonce: A value for the workers. By default, it is random.

        Raises:
            InvalidAnswer: The answer is invalid.
            NotAllowed: The token is too long.
        """
        if len(token) > MAX_JWT_CHARS:
            raise NotAllowed(f"The token has {len(token)} characters. The limit is {MAX_JWT_CHARS}.")
        content = {
            "token": token,
            "namespace": namespace,
            "call": approval_id,
            "answer": answer_digest(answer),
            "jti": nonce or secrets.token_urlsafe(16),
            "exp": int(self._clock() + lifetime_of(answer)),
        }
        algorithms = [algorithm_of(self._key), ENCRYPTION]
        return jwe.encrypt_compact(
            {"alg": algorithms[0], "enc": ENCRYPTION}, encode(content), self._key, algorithms=algorithms
        )


def lifetime_of(answer: Answer | Request | Mapping[str, Any]) -> float:
    """Return how long the token of an answer or request is valid, in seconds."""
    return SCHEDULE_LIFETIME_S if isinstance(answer, Request) and answer.lasting else LIFETIME_S


def algorithm_of(key: ECKey | OKPKey | OctKey) -> str:
    """Return the algorithm of envelopes that are encrypted with a key."""
    return SHARED if isinstance(key, OctKey) else AGREEMENT


class Opened(NamedTuple):
    """The content of a verified envelope."""

    token: str
    nonce: str
    answer: str
    """The digest of the answer or request."""


def open_envelope(
    encrypted: str,
    keys: Sequence[ECKey | OKPKey | OctKey],
    *,
    namespace: str,
    approval_id: str,
    answer: Answer | Request,
    now: float,
) -> Opened:
    """Decrypt an envelope, and check that it belongs to the answer or request.

    Raises:
        NotAllowed: The envelope cannot be decrypted, has expired, or belongs to a different answer. The message does
            not quote the envelope.
    """
    content = _decrypt(encrypted, keys)
    token, nonce, until = content.get("token"), content.get("jti"), content.get("exp")
    if not isinstance(token, str) or not isinstance(nonce, str) or not 0 < len(nonce) <= MAX_NONCE_CHARS:
        raise NotAllowed("The token's envelope lacks `token` or `jti`, or one is not a valid string. See the contract.")
    if not is_time(until):
        raise NotAllowed("The token's envelope lacks `exp`, a number of seconds since 1970. See the contract.")
    if until > now + lifetime_of(answer) + LEEWAY_S:
        raise NotAllowed("The token's envelope expires more than a day from now (`exp`). See the contract.")
    bound = answer_digest(answer)
    kind, place = ("a request", "invocation") if isinstance(answer, Request) else ("an answer", "call")
    for name, expected, other in (
        ("namespace", namespace, f"{kind} in another namespace"),
        ("call", approval_id, f"{kind} to another {place}"),
        ("answer", bound, f"another {kind.split()[1]}"),
    ):
        if content.get(name) != expected:
            raise NotAllowed(f"The token is for {other}.")
    if until + LEEWAY_S <= now:
        raise NotAllowed(f"The token's envelope has expired. Send the {kind.split()[1]} again.")
    return Opened(token, nonce, bound)


def _decrypt(encrypted: str, keys: Sequence[ECKey | OKPKey | OctKey]) -> JsonObject:
    if len(encrypted) > MAX_TOKEN_CHARS:
        raise NotAllowed(f"The token has {len(encrypted)} characters. The limit is {MAX_TOKEN_CHARS}.")
    if not is_encrypted(encrypted):
        raise NotAllowed(PLAIN_TOKEN)
    head, algorithm = parse_part(encrypted, 0), algorithm_of(keys[0])
    # This also rejects `zip`, because a short compressed text may expand to a huge one.
    if head is None or set(head) - _HEADER or (head["alg"], head["enc"]) != (algorithm, ENCRYPTION):
        raise NotAllowed(f"The header of the token's envelope must be {algorithm} with {ENCRYPTION}. See the contract.")
    for key in keys:
        try:
            decrypted = jwe.decrypt_compact(encrypted, key, algorithms=[algorithm, ENCRYPTION])
            content = decode(decrypted.plaintext or b"")
        except Exception:  # noqa: BLE001  # forged bytes may raise anything
            continue
        if isinstance(content, dict):
            return content
    raise NotAllowed("The token's envelope cannot be decrypted: it is damaged, or was made for other workers.")


class Link(NamedTuple):
    """The content of a verified link."""

    approval_id: str
    person: str | None
    """The person that the link was made for, or None if the link was made for anyone who has it."""
    until: float
    """When the link expires, in seconds since 1970."""


class Links:
    """Signs and reads the links of one namespace."""

    def __init__(
        self,
        key: OctKey,
        *,
        namespace: str,
        lifetime: timedelta,
        decide: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key, self._namespace, self._lifetime, self._clock = key, namespace, lifetime, clock
        self.decide = decide
        """Whether the person that a link was made for can use it to answer the call."""

    @classmethod
    def of(cls, configuration: Configuration, *, namespace: str, clock: Callable[[], float] = time.time) -> "Links":
        """Create a signer with the key that is configured in `[links]`.

        Raises:
            InvalidConfiguration: The section is missing, or its key is too short.
        """
        section = configuration.need(configuration.links, "links", "its key signs links")
        return cls(
            configuration.hmac_key("links.key", section.key),
            namespace=namespace,
            lifetime=timedelta(days=section.lifetime_days),
            decide=section.decide,
            clock=clock,
        )

    def sign(self, approval_id: str, person: str | None = None, lifetime: timedelta | None = None) -> str:
        """Return the token for a link to a call, either for `person` or for anyone who has the link.

        The token contains only characters that are valid in URLs without escaping. By default, the lifetime is the
        configured one.
        """
        claims = {
            "aud": LINK_AUDIENCE,
            "ns": self._namespace,
            "call": approval_id,
            "sub": person,
            "exp": int(self._clock() + (lifetime or self._lifetime).total_seconds()),
        }
        return sign_claims(claims, self._key)

    def read(self, token: str) -> Link:
        """Verify a link's token and return its content.

        Raises:
            NotAllowed: The token is damaged, was signed with a different key, for a different purpose or for a
                different namespace, or has expired.
        """
        claims = read_claims(token, self._key)
        call, person, until = claims.get("call"), claims.get("sub"), claims.get("exp")
        here = claims.get("aud") == LINK_AUDIENCE and claims.get("ns") == self._namespace
        if not (here and isinstance(call, str) and isinstance(person, str | None) and is_time(until)):
            raise NotAllowed("The link is not valid: it is damaged, or was made for another namespace or installation.")
        if until <= self._clock():
            raise NotAllowed("The link has expired. Log in to see the call.")
        return Link(approval_id=call, person=person, until=until)


def sign_claims(claims: JsonObject, key: OctKey) -> str:
    """Return a signed token with these claims. It is always the same for the same claims."""
    return jwt.encode({"alg": _LINK_ALGORITHM}, claims, key, algorithms=[_LINK_ALGORITHM])


def read_claims(token: str, key: OctKey) -> JsonObject:
    """Return the claims of a signed token, or an empty object if the token was not signed with this key."""
    try:
        if len(token) > MAX_LINK_CHARS:
            raise ValueError(token)
        claims = decode(jws.deserialize_compact(token, key, algorithms=[_LINK_ALGORITHM]).payload)
        return claims if isinstance(claims, dict) else {}
    except Exception:  # noqa: BLE001  # forged bytes may raise anything
        return {}


def parse_part(token: str, number: int) -> JsonObject | None:
    """Return a part of a compact token without verifying it, or None if the part is not a JSON object."""
    try:
        part = decode(urlsafe_b64decode(token.split(".")[number].encode()))
    except (ValueError, IndexError):
        return None
    return part if isinstance(part, dict) else None


def is_time(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that is small enough to be a time in seconds since 1970."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME
