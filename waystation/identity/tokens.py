"""Signed tokens: whose they are, if anybody's."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from joserfc import jws
from joserfc.jws import JWSRegistry

from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject, decode
from waystation.core.policy import ROLE, Verified
from waystation.identity.configuration import Configuration, IssuerSection
from waystation.identity.envelope import LEEWAY_S, MAX_JWT_CHARS, is_time, part_of
from waystation.identity.keys import IssuerKeys

MAX_SUBJECT_CHARS = 300
MAX_ROLES = 500
MAX_ROLE_CHARS = 300
MAX_AUDIENCES = 100
BINDING = "waystation"
"""The claim that says for which answer alone a token is."""
_NOT_TAKEN = {"crit", "b64", "zip", "enc"}


class _Registry(JWSRegistry):
    # Some providers put a certificate, or fields of their own, into the header. None of it is used.
    max_header_length = 8_000
    max_payload_length = MAX_JWT_CHARS

    def __init__(self, algorithms: Sequence[str]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)


class Issuer:
    """One issuer, and what its tokens have to say."""

    def __init__(self, section: IssuerSection, keys: IssuerKeys) -> None:
        self.section, self.keys = section, keys
        self._registry = _Registry(section.algorithms)

    async def claims(self, token: str, *, now: float) -> JsonObject:
        """Return what a token says that is of this issuer, for this audience, and good at this time.

        Raises:
            NotAllowed: It is not. The message holds nothing of it.
            IdentityUnavailable: The issuer's keys cannot be had.
        """
        head = part_of(token, 0) or {}
        algorithm, kid = head.get("alg"), head.get("kid")
        if algorithm not in self.section.algorithms:
            raise NotAllowed(f"The token is not signed as agreed; its issuer has to use one of {self._signatures()}.")
        if _NOT_TAKEN & head.keys() or not isinstance(kid, str | None):
            raise NotAllowed("The token's header asks for what is not supported.")
        key = await self.keys.find(kid, str(algorithm))
        if key is None:
            raise NotAllowed(
                "The token is signed with a key that is not among those of its issuer. They are read again at most "
                "once a minute: if the key is new, try again then."
            )
        try:
            claims = decode(jws.deserialize_compact(token, key, registry=self._registry).payload)
        except Exception:  # noqa: BLE001  # whatever forged bytes make a library of cryptography raise
            raise NotAllowed("The token's signature does not hold.") from None
        if not isinstance(claims, dict) or claims.get("iss") != self.section.issuer:
            raise NotAllowed("The token is of another issuer than the one whose key signed it.")
        self._check_audience(claims.get("aud"))
        _check_times(claims, now)
        return claims

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
        if self.section.subject_claim == "email" and claims.get("email_verified", True) is not True:
            raise NotAllowed("The token names an e-mail address that its issuer has not verified.")
        return Verified(subject=subject, roles=self._roles(claims), issuer=self.section.issuer)

    def _roles(self, claims: JsonObject) -> tuple[str, ...]:
        name = self.section.roles_claim
        found: Any = claims.get(name)
        if found is None:
            found = claims
            for step in name.split("."):
                found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            return ()
        if not isinstance(found, list) or len(found) > MAX_ROLES:
            raise NotAllowed(f"The token's claim {name!r} is no list of at most {MAX_ROLES} roles.")
        if not all(isinstance(role, str) and 0 < len(role) <= MAX_ROLE_CHARS and role.isprintable() for role in found):
            raise NotAllowed(f"The token's claim {name!r} holds something else than short texts.")
        return tuple(dict.fromkeys(found))

    def _check_audience(self, given: object) -> None:
        audiences = [given] if isinstance(given, str) else given
        if not isinstance(audiences, list) or len(audiences) > MAX_AUDIENCES:
            raise NotAllowed("The token lacks an audience.")
        if not any(audience in self.section.audience for audience in audiences if isinstance(audience, str)):
            raise NotAllowed("The token was not issued for Waystation: it has another audience than is configured.")

    def _signatures(self) -> str:
        return ", ".join(self.section.algorithms)


class Issuers:
    """All issuers whose word is taken."""

    def __init__(self, issuers: Sequence[Issuer], *, clock: Callable[[], float] = time.time) -> None:
        self._issuers, self._clock = issuers, clock

    @classmethod
    def of(cls, configuration: Configuration) -> "Issuers":
        """Return those that `[[issuers]]` names.

        Raises:
            InvalidConfiguration: There is none, or its keys cannot be used.
        """
        if not configuration.issuers:
            raise configuration.lacks("issuers", "it says whose tokens are taken")
        names = [(each.issuer, each.audience) for each in configuration.issuers]
        if len({issuer for issuer, _ in names}) < len(names):
            raise configuration.fault("issuers", "two have the same `issuer`; make them one.")
        return cls(
            [
                Issuer(each, IssuerKeys.of(configuration, f"issuers.{number}", each.issuer, each.jwks))
                for number, each in enumerate(configuration.issuers)
            ]
        )

    async def who(self, token: str, *, binding: JsonObject, now: float) -> Verified:
        """Return who somebody is by a signed token.

        Args:
            token: The token.
            binding: For which answer it came: `namespace`, `call` and `answer`.
            now: Seconds since 1970.

        Raises:
            NotAllowed: It proves nothing. The message holds nothing of it.
            IdentityUnavailable: The keys of its issuer cannot be had.
        """
        if len(token) > MAX_JWT_CHARS or token.count(".") != 2:
            raise NotAllowed("What was sent as a token is no signed token (a compact JWS), as identity providers give.")
        named = (part_of(token, 1) or {}).get("iss")
        issuer = next((each for each in self._issuers if each.section.issuer == named), None)
        if issuer is None:
            raise NotAllowed("The token is of none of the issuers that the workers are configured to trust.")
        claims = await issuer.claims(token, now=now)
        if (BINDING in claims or issuer.section.bound) and claims.get(BINDING) != binding:
            raise NotAllowed("The token was signed for another answer than the one with which it came.")
        return issuer.who(claims)


def _check_times(claims: JsonObject, now: float) -> None:
    until, since, issued = claims.get("exp"), claims.get("nbf", 0), claims.get("iat", 0)
    if not (is_time(until) and is_time(since) and is_time(issued)):
        raise NotAllowed("The token lacks `exp`, or one of its times is no number.")
    if until + LEEWAY_S <= now:
        raise NotAllowed(
            "The token has expired; log in again, or compare the clocks of its issuer and of this machine."
        )
    if max(since, issued) - LEEWAY_S > now:
        raise NotAllowed("The token is not valid yet; compare the clocks of its issuer and of this machine.")
