"""Verify the tokens that approvers send with their answers, and requesters with their requests."""

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

from waystation.approvers.identity.completions import Completions
from waystation.approvers.identity.identity_file import ClaimsSection, Configuration
from waystation.approvers.identity.keys import IssuerKeys
from waystation.approvers.identity.tokens import BINDING, LEEWAY_S, MAX_JWT_CHARS, SHARED, open_envelope, parse_part
from waystation.core.approval import MACHINE, ROLE, Answer, Request, Verified
from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject, decode

events = structlog.get_logger("waystation.identity")

MAX_SUBJECT_CHARS = 300
MAX_ROLES = 500
MAX_ROLE_CHARS = 300
MUTABLE_CLAIMS = frozenset({"preferred_username", "upn", "unique_name", "nickname", "name"})
"""Claims that users or administrators can change, so that the same value may later belong to someone else. A worker
logs a warning if one is configured as `subject_claim`.
"""
_UNSUPPORTED = {"crit", "b64", "zip", "enc"}
_TOO_EARLY = "The token is not valid yet. Compare the clocks of its issuer and of this machine."
_FAULTS = {
    "aud": "The token was not issued for Waystation: it lacks the configured audience.",
    "exp": (
        "The token has expired or lacks `exp`. Log in again, or compare the clocks of its issuer and of this machine."
    ),
    "iat": _TOO_EARLY,
    "iss": "The token names a different issuer than the one whose key signed it.",
    "nbf": _TOO_EARLY,
}
"""The error messages for registered claims that are missing or invalid (RFC 7519, 4.1)."""


class Issuer:
    """A trusted issuer and the requirements for its tokens."""

    def __init__(
        self,
        section: ClaimsSection,
        audience: Sequence[str],
        keys: IssuerKeys,
        *,
        bound: bool = False,
        kind: str | None = None,
    ) -> None:
        """Create an issuer. If `bound` is true, each of its tokens must be bound to one answer."""
        self.section, self.audience, self.keys, self.bound, self.kind = section, audience, keys, bound, kind
        # Ignore unknown header fields, because some providers add a certificate or custom fields.
        self._registry = JWSRegistry(algorithms=section.algorithms, strict_check_header=False)
        self._registry.max_header_length, self._registry.max_payload_length = 8_000, MAX_JWT_CHARS

    async def verify(self, token: str, *, now: float) -> JsonObject:
        """Verify a token's signature, issuer, audience and times. Return its claims.

        Raises:
            NotAllowed: The token is not valid. The message does not quote the token.
            IdentityUnavailable: The issuer's keys cannot be fetched.
        """
        head = parse_part(token, 0) or {}
        algorithm, kid = head.get("alg"), head.get("kid")
        if algorithm not in self.section.algorithms:
            raise NotAllowed(
                "The token's signature algorithm is not allowed. Its issuer must use one of "
                f"{', '.join(self.section.algorithms)}."
            )
        if _UNSUPPORTED & head.keys() or not isinstance(kid, str | None):
            raise NotAllowed("The token's header requires an unsupported extension.")
        key = await self.keys.find(kid, str(algorithm))
        if key is None:
            raise NotAllowed(
                "The token is signed with an unknown key of its issuer. Keys are fetched at most once a minute. If the "
                "key is new, try again then."
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
        except Exception:  # noqa: BLE001  # forged bytes may raise anything
            raise NotAllowed("The token's signature is not valid.") from None
        return dict(claims)

    def identify(self, claims: JsonObject, *, may_be_machine: bool = False) -> Verified:
        """Return the person, or the machine if that is allowed, that is identified by verified claims.

        Raises:
            NotAllowed: The subject is missing, invalid or an unverified email address, or the claim for roles is
                invalid.
        """
        subject = claims.get(self.section.subject_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
            raise NotAllowed(f"The token's claim {self.section.subject_claim!r} is not a short printable string.")
        for prefix, others in ((ROLE, "roles"), (MACHINE, "machines")):
            if subject.startswith(prefix) and not (may_be_machine and prefix == MACHINE):
                # Approval policies would treat such a subject as a role or a machine.
                raise NotAllowed(f"The token's subject starts with {prefix!r}, which is reserved for {others}.")
        if self.section.subject_claim == "email" and not self._has_verified_email(claims):
            raise NotAllowed(
                "The token names an e-mail address without `email_verified`. Use another `subject_claim`, such as "
                "`sub`, or set `email_trusted = true` for an issuer that verifies every address."
            )
        return Verified(
            subject=subject,
            roles=parse_names(claims, self.section.roles_claim),
            issuer=self.section.issuer,
            tenant=self._tenant(claims),
            kind=self.kind,
        )

    def _tenant(self, claims: JsonObject) -> str | None:
        if self.section.tenant_claim is None:
            return None
        tenant = claims.get(self.section.tenant_claim, "")
        if not isinstance(tenant, str):
            raise NotAllowed(f"The token's claim {self.section.tenant_claim!r} is not a string.")
        return tenant

    def _has_verified_email(self, claims: JsonObject) -> bool:
        verified = claims.get("email_verified")
        return verified is True or (verified is None and self.section.email_trusted)


def parse_names(claims: JsonObject, claim: str) -> tuple[str, ...]:
    """Return the role or group names in a claim, or an empty tuple if there is no such claim.

    `claim` is the name of the claim, or a path to it such as `realm_access.roles`.

    Raises:
        NotAllowed: The claim is not a list of at most `MAX_ROLES` short names.
    """
    names: Any = claims.get(claim)
    if names is None:
        names = claims
        for key in claim.split("."):
            names = names.get(key) if isinstance(names, dict) else None
    if names is None:
        return ()
    if not (
        isinstance(names, list)
        and len(names) <= MAX_ROLES
        and all(isinstance(name, str) and 0 < len(name) <= MAX_ROLE_CHARS and name.isprintable() for name in names)
    ):
        raise NotAllowed(f"The token's claim {claim!r} is not a list of at most {MAX_ROLES} short role names.")
    return tuple(dict.fromkeys(names))


def is_of_client(claims: JsonObject) -> bool:
    """Return whether a token was evidently issued to a client itself, as by the grant `client_credentials`.

    RFC 9068 makes the client the subject; Auth0, Microsoft and Keycloak have marks of their own.
    """
    clients = [claims.get(name) for name in ("client_id", "azp", "appid")]
    return (
        claims.get("sub") in [client for client in clients if client is not None]
        or claims.get("gty") == "client-credentials"
        or claims.get("idtyp") == "app"
        or str(claims.get("preferred_username", "")).startswith("service-account-")
    )


class WorkerIdentity:
    """Verifies the identity of approvers. It has keys that decrypt envelopes, but no key that can sign answers."""

    def __init__(
        self,
        envelope_keys: Sequence[ECKey | OKPKey],
        issuers: Sequence[Issuer],
        *,
        completions: Completions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._envelope_keys, self._clock = envelope_keys, clock
        self.completions = completions
        """Makes the completion URLs of machines, and verifies their answers. None if there is no key for them."""
        self._issuers = {issuer.section.issuer: issuer for issuer in issuers}

    @classmethod
    def load(cls, file: str | Path, *, clock: Callable[[], float] = time.time) -> "WorkerIdentity":
        """Load a worker's configuration.

        Raises:
            InvalidConfiguration: The configuration is invalid.
        """
        configuration = Configuration.read(file)
        names = configuration.envelope.private_key if configuration.envelope else None
        names = configuration.need(names, "envelope.private_key", "workers decrypt tokens with it")
        keys = [configuration.asymmetric_key("envelope.private_key", name, use="enc", kind="private") for name in names]
        sections = configuration.need(configuration.issuers, "issuers", "it names the trusted identity providers")
        if len({section.issuer for section in sections}) < len(sections):
            raise configuration.fault("issuers", "two sections have the same `issuer`. Merge them.")
        for section in sections:
            if section.subject_claim in MUTABLE_CLAIMS:
                events.warning("identity.mutable_claim", issuer=section.issuer, subject_claim=section.subject_claim)
        issuers = [
            Issuer(
                section,
                section.audience,
                IssuerKeys.of(configuration, f"issuers.{number}", section.issuer, section.jwks),
                bound=section.bound,
                kind=section.kind,
            )
            for number, section in enumerate(sections)
        ]
        return cls(keys, issuers, completions=Completions.of(configuration, clock=clock), clock=clock)

    def unseal(self, sealed: str, *, namespace: str, place: str, request: Request) -> str:
        """Return a secret that was encrypted for the workers, for this request at this place.

        Raises:
            NotAllowed: It cannot be decrypted, or is for something else.
        """
        opened = open_envelope(
            sealed, self._envelope_keys, namespace=namespace, approval_id=place, answer=request, now=self._clock()
        )
        return opened.token

    async def verify(
        self, token: str, *, namespace: str, approval_id: str, answer: Answer | Request
    ) -> tuple[Verified, str]:
        """Verify the token of an answer or request. Return the sender, and a nonce.

        The nonce prevents the token of an answer from being used twice. For a machine, it is the number of times that
        its completion URLs had been revoked when its URL was made.

        Args:
            token: The encrypted token.
            namespace: The Temporal namespace where the answer or request arrived.
            approval_id: The approval ID of the call, as returned by `ids.approval`. For a request, the ID of the
                workflow that received it.
            answer: The answer or request as it was received.

        Raises:
            NotAllowed: The token is not valid for this answer or request. The message does not quote the token.
            IdentityUnavailable: The keys of an issuer cannot be fetched.
        """
        if self.completions is not None and (parse_part(token, 0) or {}).get("alg") == SHARED:
            return self.completions.verify(token, namespace=namespace, approval_id=approval_id, answer=answer)
        now = self._clock()
        envelope = open_envelope(
            token, self._envelope_keys, namespace=namespace, approval_id=approval_id, answer=answer, now=now
        )
        if len(envelope.token) > MAX_JWT_CHARS or envelope.token.count(".") != 2:
            raise NotAllowed("The token is not a signed token of an identity provider (a compact JWS).")
        name = (parse_part(envelope.token, 1) or {}).get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise NotAllowed("The workers do not trust the token's issuer. Add it to `issuers` in their configuration.")
        claims = await issuer.verify(envelope.token, now=now)
        binding = {"namespace": namespace, "call": approval_id, "answer": envelope.answer}
        if (BINDING in claims or issuer.bound) and claims.get(BINDING) != binding:
            raise NotAllowed("The token was signed for another answer or request.")
        # A gateway names the trigger that requests an invocation. No token lets a machine answer.
        is_signed_request = BINDING in claims and isinstance(answer, Request)
        who = issuer.identify(claims, may_be_machine=is_signed_request)
        if is_of_client(claims):  # its roles are not those of a person, so that a policy has to name its subject
            who = who.model_copy(update={"roles": (), "is_program": True})
        return who, envelope.nonce
