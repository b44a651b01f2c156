"""The tokens that Waystation makes: of answers, and of links.

The token of an answer is signed for a person, and travels encrypted for the workers in an envelope. Either is good for
one answer to one call only. A reader of the history finds a ciphertext there, which cannot be used anywhere else.

A link opens one call: for messages to people, who may not have logged in yet. It shows; whether the person for whom it
was made may also answer with it is for the gateway's configuration to say.
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

from waystation.core import (
    MAX_TOKEN_CHARS,
    PLAIN_TOKEN,
    Answer,
    InvalidAnswer,
    JsonObject,
    NotAllowed,
    Signs,
    decode,
    encode,
    is_sealed,
    parse,
)
from waystation.identity.configuration import Configuration

BINDING = "waystation"
"""The claim that names the only answer for which a signed token is good."""
AGREEMENT, ENCRYPTION = "ECDH-ES", "A256GCM"
LIFETIME_S = 86_400.0
"""How long an envelope is good. The token in it has an end of its own; until then the answer may wait for a worker."""
MAX_JWT_CHARS = 16_000
MAX_NONCE_CHARS = 100
LEEWAY_S = 60.0
"""By how much clocks may differ."""
LINK_AUDIENCE = "waystation-link"
MAX_LINK_CHARS = 4_000
_LINK_ALGORITHM = "HS256"
EXACT = 2**53 - 1
"""Integers up to this are the same in every language."""
MAX_TIME = 2**40
_SIGNATURES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}
_HEADER = {"alg", "enc", "epk", "kid", "typ", "cty", "apu", "apv"}


def answer_digest(answer: Answer | Mapping[str, Any]) -> str:
    """Return the digest of what an answer says, its token left out: hex SHA-256 of its canonical JSON (RFC 8785).

    Fields that are null or have their default do not count, so it is the same whoever writes them out. Integers beyond
    2^53, which RFC 8785 leaves open, stand as strings of their digits.

    Raises:
        InvalidAnswer: It is no answer.
    """
    if not isinstance(answer, Answer):
        given = {key: value for key, value in answer.items() if value is not None}
        answer = parse(Answer, encode(given), InvalidAnswer, what="The answer", send="such as the contract shows")
    fields = ((name, getattr(answer, name), field.default) for name, field in Answer.model_fields.items())
    said = {name: value for name, value, default in fields if name != "token" and value not in (None, default)}
    return hashlib.sha256(rfc8785.dumps(_exact(said))).hexdigest()


def _exact(value: Any) -> Any:
    match value:
        case dict():
            return {key: _exact(item) for key, item in value.items()}
        case list():
            return [_exact(item) for item in value]
        case int() if abs(value) > EXACT:
            return str(value)
        case _:
            return value


class Gateway:
    """Signs who answers, for people who have logged in to `waystation web`.

    Nothing but the gateway has its key; workers have the public half.
    """

    def __init__(
        self, key: ECKey | OKPKey, *, issuer: str, audience: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._key, self._issuer, self._audience, self._clock = key, issuer, audience, clock
        key.ensure_kid()

    @classmethod
    def of(cls, configuration: Configuration) -> "Gateway":
        """Return what `[gateway]` allows.

        Raises:
            InvalidConfiguration: There is no key for signatures.
        """
        section = configuration.need(configuration.gateway, "gateway", "its key signs who has logged in")
        key = configuration.asymmetric_key("gateway.signing_key", section.signing_key, use="sig", kind="private")
        return cls(key, issuer=section.issuer, audience=section.audience)

    def sign(
        self, subject: str, roles: Sequence[str] = (), *, namespace: str, approval_id: str, answer: Mapping[str, Any]
    ) -> str:
        """Return a token by which somebody gives one answer to one call."""
        now = int(self._clock())
        claims = {
            "iss": self._issuer,
            "aud": self._audience,
            "sub": subject,
            "roles": list(roles),
            "iat": now,
            "exp": now + int(LIFETIME_S),
            BINDING: {"namespace": namespace, "call": approval_id, "answer": answer_digest(answer)},
        }
        algorithm = _SIGNATURES[self._key.curve_name]
        return jwt.encode({"alg": algorithm, "kid": self._key.kid}, claims, self._key, algorithms=[algorithm])

    def signer(self, subject: str, roles: Sequence[str] = ()) -> Signs:
        """Return what signs any answer of one person; for `token=` of the client."""
        return partial(self.sign, subject, roles)


class Sealer:
    """Encrypts tokens for the workers. It has their public key, and cannot open what it made."""

    def __init__(self, key: ECKey | OKPKey, *, clock: Callable[[], float] = time.time) -> None:
        self._key, self._clock = key, clock

    @classmethod
    def of(cls, configuration: Configuration) -> "Sealer":
        """Return what `[envelope] public_key` allows.

        Raises:
            InvalidConfiguration: There is no such key.
        """
        key = "envelope.public_key"
        name = configuration.envelope.public_key if configuration.envelope else None
        name = configuration.need(name, key, "a token is encrypted with it for the workers")
        return cls(configuration.asymmetric_key(key, name, use="enc", kind="public"))

    def seal(self, token: str, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token encrypted, good only for this answer to this call.

        Args:
            token: The person's, as an identity provider or the gateway signed it.
            namespace: Of Temporal.
            approval_id: Of the call, see `ids.approval`.
            answer: What is sent, with or without a token.

        Raises:
            InvalidAnswer: It is no answer.
            NotAllowed: The token is too long.
        """
        if len(token) > MAX_JWT_CHARS:
            raise NotAllowed(f"The token has {len(token)} characters; at most {MAX_JWT_CHARS} are taken.")
        content = {
            "token": token,
            "namespace": namespace,
            "call": approval_id,
            "answer": answer_digest(answer),
            "jti": secrets.token_urlsafe(16),
            "exp": int(self._clock() + LIFETIME_S),
        }
        algorithms = [AGREEMENT, ENCRYPTION]
        return jwe.encrypt_compact(
            {"alg": AGREEMENT, "enc": ENCRYPTION}, encode(content), self._key, algorithms=algorithms
        )


class Opened(NamedTuple):
    """The content of an envelope that is good for the answer with which it came."""

    token: str
    nonce: str
    answer: str
    """Digest of the answer."""


def open_envelope(
    encrypted: str,
    keys: Sequence[ECKey | OKPKey],
    *,
    namespace: str,
    approval_id: str,
    answer: Answer,
    now: float,
) -> Opened:
    """Decrypt what was encrypted for the workers, and check that it belongs to the answer with which it came.

    Raises:
        NotAllowed: It cannot be opened, or is for something else. The message holds nothing of it.
    """
    content = _decrypt(encrypted, keys)
    token, nonce, until = content.get("token"), content.get("jti"), content.get("exp")
    if not isinstance(token, str) or not isinstance(nonce, str) or not 0 < len(nonce) <= MAX_NONCE_CHARS:
        raise NotAllowed("The token's envelope lacks `token` or `jti`, or they are no texts; see the contract.")
    if not is_time(until):
        raise NotAllowed("The token's envelope lacks `exp`, a number of seconds since 1970; see the contract.")
    bound = answer_digest(answer)
    for name, expected, other in (
        ("namespace", namespace, "an answer in another namespace"),
        ("call", approval_id, "an answer to another call"),
        ("answer", bound, "another answer than the one with which it came"),
    ):
        if content.get(name) != expected:
            raise NotAllowed(f"The token was given for {other}.")
    if until + LEEWAY_S <= now:
        raise NotAllowed("The token's envelope has expired; answer again.")
    return Opened(token, nonce, bound)


def _decrypt(encrypted: str, keys: Sequence[ECKey | OKPKey]) -> JsonObject:
    if len(encrypted) > MAX_TOKEN_CHARS:
        raise NotAllowed(f"The token has {len(encrypted)} characters; at most {MAX_TOKEN_CHARS} are taken.")
    if not is_sealed(encrypted):
        raise NotAllowed(PLAIN_TOKEN)
    head = part_of(encrypted, 0)
    # `zip` is refused with the rest: a small text may become a large one.
    if head is None or set(head) - _HEADER or (head["alg"], head["enc"]) != (AGREEMENT, ENCRYPTION):
        raise NotAllowed(f"The token's envelope is not made as agreed: {AGREEMENT} and {ENCRYPTION}, nothing else.")
    for key in keys:
        try:
            opened = jwe.decrypt_compact(encrypted, key, algorithms=[AGREEMENT, ENCRYPTION])
            content = decode(opened.plaintext or b"")
        except Exception:  # noqa: BLE001  # whatever forged bytes make a library of cryptography raise
            continue
        if isinstance(content, dict):
            return content
    raise NotAllowed("The token's envelope cannot be opened: it is damaged, or was made for other workers.")


class Link(NamedTuple):
    """What a link that holds says."""

    approval_id: str
    person: str | None
    """For whom it was made; None for whoever has it."""
    until: float
    """Seconds since 1970."""


class Links:
    """Signs and reads links, in one namespace."""

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
        """Whether the person for whom a link was made may answer with it."""

    @classmethod
    def of(cls, configuration: Configuration, *, namespace: str) -> "Links":
        """Return what `[links]` allows.

        Raises:
            InvalidConfiguration: There is no such section, or its key can be guessed.
        """
        section = configuration.need(configuration.links, "links", "its key signs links")
        return cls(
            configuration.hmac_key("links.key", section.key),
            namespace=namespace,
            lifetime=timedelta(days=section.lifetime_days),
            decide=section.decide,
        )

    def sign(self, approval_id: str, person: str | None = None, lifetime: timedelta | None = None) -> str:
        """Return the token of a link, which has no characters that an address would have to escape."""
        claims = {
            "aud": LINK_AUDIENCE,
            "ns": self._namespace,
            "call": approval_id,
            "sub": person,
            "exp": int(self._clock() + (lifetime or self._lifetime).total_seconds()),
        }
        return jwt.encode({"alg": _LINK_ALGORITHM}, claims, self._key, algorithms=[_LINK_ALGORITHM])

    def read(self, token: str) -> Link:
        """Return what a link says.

        Raises:
            NotAllowed: It was not signed here, is for something else, or has expired.
        """
        try:
            if len(token) > MAX_LINK_CHARS:
                raise ValueError(token)
            claims = decode(jws.deserialize_compact(token, self._key, algorithms=[_LINK_ALGORITHM]).payload)
            claims = claims if isinstance(claims, dict) else {}
        except Exception:  # noqa: BLE001  # whatever forged bytes make a library of cryptography raise
            claims = {}
        call, person, until = claims.get("call"), claims.get("sub"), claims.get("exp")
        here = claims.get("aud") == LINK_AUDIENCE and claims.get("ns") == self._namespace
        if not (here and isinstance(call, str) and isinstance(person, str | None) and is_time(until)):
            raise NotAllowed("The link does not hold: it is damaged, or was made for another place.")
        if until <= self._clock():
            raise NotAllowed("The link has expired; log in to see the call.")
        return Link(approval_id=call, person=person, until=until)


def part_of(token: str, number: int) -> JsonObject | None:
    """Return a part of a compact token, not verified; None when it is no JSON object."""
    try:
        found = decode(urlsafe_b64decode(token.split(".")[number].encode()))
    except (ValueError, IndexError):
        return None
    return found if isinstance(found, dict) else None


def is_time(value: object) -> TypeGuard[float]:
    """Whether a value is a time, in seconds since 1970."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME
