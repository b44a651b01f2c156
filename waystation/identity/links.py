"""Links that open one call: for messages to people, who may not have logged in yet.

A link shows. Whether the person for whom it was made may also answer with it is for the gateway's configuration to say.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from joserfc import jws, jwt
from joserfc.jwk import OctKey

from waystation.core.errors import NotAllowed
from waystation.core.payload import decode
from waystation.identity.answer_token import is_time
from waystation.identity.configuration import Configuration

AUDIENCE = "waystation-link"
MAX_CHARS = 4_000
_ALGORITHM = "HS256"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
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
        key = configuration.hmac_key("links.key", section.key)
        lifetime = timedelta(days=section.lifetime_days)
        return cls(key, namespace=namespace, lifetime=lifetime, decide=section.decide)

    def sign(self, approval_id: str, person: str | None = None, lifetime: timedelta | None = None) -> str:
        """Return the token of a link, which has no characters that an address would have to escape."""
        until = int(self._clock() + (lifetime or self._lifetime).total_seconds())
        claims = {"aud": AUDIENCE, "ns": self._namespace, "call": approval_id, "sub": person, "exp": until}
        return jwt.encode({"alg": _ALGORITHM}, claims, self._key, algorithms=[_ALGORITHM])

    def read(self, token: str) -> Link:
        """Return what a link says.

        Raises:
            NotAllowed: It was not signed here, is for something else, or has expired.
        """
        try:
            if len(token) > MAX_CHARS:
                raise ValueError(token)
            claims = decode(jws.deserialize_compact(token, self._key, algorithms=[_ALGORITHM]).payload)
            claims = claims if isinstance(claims, dict) else {}
        except Exception:  # noqa: BLE001  # whatever forged bytes make a library of cryptography raise
            claims = {}
        call, person, until = claims.get("call"), claims.get("sub"), claims.get("exp")
        here = claims.get("aud") == AUDIENCE and claims.get("ns") == self._namespace
        if not (here and isinstance(call, str) and isinstance(person, str | None) and is_time(until)):
            raise NotAllowed("The link does not hold: it is damaged, or was made for another place.")
        if until <= self._clock():
            raise NotAllowed("The link has expired; log in to see the call.")
        return Link(approval_id=call, person=person, until=until)
