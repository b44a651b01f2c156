"""The gateway, `waystation web`, vouches for people who have logged in to it.

Its key signs for one answer at a time, so a token that leaks is good for nothing else.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey

from waystation.core.sealed import Signs
from waystation.identity.configuration import Configuration
from waystation.identity.envelope import LIFETIME_S, answer_digest
from waystation.identity.tokens import BINDING

_ALGORITHMS = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}


class Gateway:
    """Signs who answers. Nothing but the gateway has its key; workers have the public half."""

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
        section = configuration.gateway
        if section is None:
            raise configuration.lacks("gateway", "its key signs who has logged in")
        key = configuration.signing_key("gateway.signing_key", section.signing_key)
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
        algorithm = _ALGORITHMS[self._key.curve_name]
        return jwt.encode({"alg": algorithm, "kid": self._key.kid}, claims, self._key, algorithms=[algorithm])

    def signer(self, subject: str, roles: Sequence[str] = ()) -> Signs:
        """Return what signs any answer of one person; for `token=` of the client."""

        def sign(*, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
            return self.sign(subject, roles, namespace=namespace, approval_id=approval_id, answer=answer)

        return sign
