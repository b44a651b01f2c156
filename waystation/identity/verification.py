"""Verify who answers: whose token came with an answer, if anybody's."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from joserfc import jws
from joserfc.errors import ClaimError
from joserfc.jwk import ECKey, OKPKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from waystation.core import ROLE, Answer, JsonObject, NotAllowed, Verified, decode
from waystation.identity.configuration import ClaimsSection, Configuration
from waystation.identity.keys import IssuerKeys
from waystation.identity.tokens import BINDING, LEEWAY_S, MAX_JWT_CHARS, open_envelope, part_of

events = structlog.get_logger("waystation.identity")

MAX_SUBJECT_CHARS = 300
MAX_ROLES = 500
MAX_ROLE_CHARS = 300
MUTABLE_CLAIMS = frozenset({"preferred_username", "upn", "unique_name", "nickname", "name"})
"""Claims that people, or whoever administers them, can change: they may come to name somebody else."""
_NOT_TAKEN = {"crit", "b64", "zip", "enc"}
_TOO_EARLY = "The token is not valid yet. Compare the clocks of its issuer and of this machine."
_FAULTS = {
    "aud": "The token was not issued for Waystation: it lacks the audience that is configured.",
    "exp": (
        "The token has expired or lacks `exp`. Log in again, or compare the clocks of its issuer and of this machine."
    ),
    "iat": _TOO_EARLY,
    "iss": "The token is of another issuer than the one whose key signed it.",
    "nbf": _TOO_EARLY,
}
"""Why a token is refused because of one of its registered claims (RFC 7519, 4.1)."""


class Issuer:
    """One issuer, and what its tokens have to say."""

    def __init__(
        self, section: ClaimsSection, audience: Sequence[str], keys: IssuerKeys, *, bound: bool = False
    ) -> None:
        """`bound` is whether each token has to be for one answer only."""
        self.section, self.audience, self.keys, self.bound = section, audience, keys, bound
        # Some providers put a certificate, or fields of their own, into the header. None of it is used.
        self._registry = JWSRegistry(algorithms=section.algorithms, strict_check_header=False)
        self._registry.max_header_length, self._registry.max_payload_length = 8_000, MAX_JWT_CHARS

    async def claims(self, token: str, *, now: float) -> JsonObject:
        """Return what a token says that is of this issuer, for this audience, and good at this time.

        Raises:
            NotAllowed: It is not. The message holds nothing of it.
            IdentityUnavailable: The issuer's keys cannot be had.
        """
        head = part_of(token, 0) or {}
        algorithm, kid = head.get("alg"), head.get("kid")
        if algorithm not in self.section.algorithms:
            raise NotAllowed(
                f"The token is not signed as agreed; its issuer has to use one of {', '.join(self.section.algorithms)}."
            )
        if _NOT_TAKEN & head.keys() or not isinstance(kid, str | None):
            raise NotAllowed("The token's header asks for what is not supported.")
        key = await self.keys.find(kid, str(algorithm))
        if key is None:
            raise NotAllowed(
                "The token is signed with a key that is not among those of its issuer. They are read again at most "
                "once a minute: if the key is new, try again then."
            )
        required = JWTClaimsRegistry(
            now=int(now),
            leeway=int(LEEWAY_S),
            iss={"essential": True, "value": self.section.issuer},
            aud={"essential": True, "values": list(self.audience)},
            exp={"essential": True},
        )
        try:
            claims = decode(jws.deserialize_compact(token, key, registry=self._registry).payload)
            required.validate({name: value for name, value in claims.items() if name in _FAULTS})
        except ClaimError as error:
            raise NotAllowed(_FAULTS[error.claim.partition(",")[0]]) from None
        except Exception:  # noqa: BLE001  # whatever forged bytes make a library of cryptography raise
            raise NotAllowed("The token's signature does not hold.") from None
        return dict(claims)

    def who(self, claims: JsonObject) -> Verified:
        """Return who somebody is by the claims of a token that holds.

        Raises:
            NotAllowed: They name nobody, or in a form that is not taken.
        """
        subject = claims.get(self.section.subject_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
            raise NotAllowed(f"The token names nobody: its claim {self.section.subject_claim!r} is no short text.")
        if subject.startswith(ROLE):
            # It would pass for the role in every policy.
            raise NotAllowed(f"The token's subject begins with {ROLE!r}, as only the names of roles do.")
        if self.section.subject_claim == "email" and not self._has_verified_email(claims):
            raise NotAllowed(
                "The token names an e-mail address without `email_verified`. Use another `subject_claim`, such as "
                "`sub`, or set `email_trusted = true` for an issuer that verifies every address."
            )
        return Verified(subject=subject, roles=self._roles(claims), issuer=self.section.issuer)

    def _has_verified_email(self, claims: JsonObject) -> bool:
        verified = claims.get("email_verified")
        return verified is True or (verified is None and self.section.email_trusted)

    def _roles(self, claims: JsonObject) -> tuple[str, ...]:
        name = self.section.roles_claim
        found: Any = claims.get(name)
        if found is None:
            found = claims
            for step in name.split("."):
                found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            return ()
        if not (
            isinstance(found, list)
            and len(found) <= MAX_ROLES
            and all(isinstance(role, str) and 0 < len(role) <= MAX_ROLE_CHARS and role.isprintable() for role in found)
        ):
            raise NotAllowed(f"The token's claim {name!r} is not a list of at most {MAX_ROLES} short role names.")
        return tuple(dict.fromkeys(found))


class WorkerIdentity:
    """Verifies who answers. It holds no key that could answer: one to open envelopes, and public ones."""

    def __init__(
        self,
        envelope_keys: Sequence[ECKey | OKPKey],
        issuers: Sequence[Issuer],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._envelope_keys, self._clock = envelope_keys, clock
        self._issuers = {issuer.section.issuer: issuer for issuer in issuers}

    @classmethod
    def load(cls, file: str | Path, *, clock: Callable[[], float] = time.time) -> "WorkerIdentity":
        """Return what the configuration of a worker allows.

        Raises:
            InvalidConfiguration: It cannot be used.
        """
        configuration = Configuration.read(file)
        names = configuration.envelope.private_key if configuration.envelope else None
        names = configuration.need(names, "envelope.private_key", "workers open with it what clients encrypt")
        keys = [configuration.asymmetric_key("envelope.private_key", name, use="enc", kind="private") for name in names]
        sections = configuration.need(configuration.issuers, "issuers", "it says whose tokens are taken")
        if len({section.issuer for section in sections}) < len(sections):
            raise configuration.fault("issuers", "two have the same `issuer`; make them one.")
        for section in sections:
            if section.subject_claim in MUTABLE_CLAIMS:
                events.warning("identity.mutable_claim", issuer=section.issuer, subject_claim=section.subject_claim)
        issuers = [
            Issuer(
                section,
                section.audience,
                IssuerKeys.of(configuration, f"issuers.{number}", section.issuer, section.jwks),
                bound=section.bound,
            )
            for number, section in enumerate(sections)
        ]
        return cls(keys, issuers, clock=clock)

    async def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer) -> tuple[Verified, str]:
        """Return who answers, and what makes the token usable once.

        Args:
            token: As it came with the answer: encrypted.
            namespace: In which the answer arrived.
            approval_id: Of the call that is answered, see `ids.approval`.
            answer: As it arrived.

        Raises:
            NotAllowed: The token proves nothing, or was given for something else. The message holds nothing of it.
            IdentityUnavailable: The keys of an issuer cannot be had now.
        """
        now = self._clock()
        opened = open_envelope(
            token, self._envelope_keys, namespace=namespace, approval_id=approval_id, answer=answer, now=now
        )
        if len(opened.token) > MAX_JWT_CHARS or opened.token.count(".") != 2:
            raise NotAllowed("What was sent as a token is no signed token (a compact JWS), as identity providers give.")
        named = (part_of(opened.token, 1) or {}).get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise NotAllowed("The token is of none of the issuers that the workers are configured to trust.")
        claims = await issuer.claims(opened.token, now=now)
        bound_to = {"namespace": namespace, "call": approval_id, "answer": opened.answer}
        if (BINDING in claims or issuer.bound) and claims.get(BINDING) != bound_to:
            raise NotAllowed("The token was signed for another answer than the one with which it came.")
        return issuer.who(claims), opened.nonce
