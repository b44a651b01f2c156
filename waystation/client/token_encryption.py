"""Proof of who answers, on the client's side: a token is sealed for the workers before it leaves the process."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import JsonObject
from waystation.core.sealed import IDENTITY_ENV, is_sealed


class AnswerSigner(Protocol):
    """Makes the token for one answer, as `waystation.identity.Gateway.signer` does."""

    def __call__(self, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token."""


class TokenEncrypter(Protocol):
    """Encrypts tokens for the workers, as `waystation.identity.Sealer` does."""

    def seal(self, token: str, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token encrypted, good only for this answer to this call."""


Token: TypeAlias = str | AnswerSigner
"""A person's token, or what makes one for an answer."""


class TokenEncryption:
    """Seals with the key that is configured, which is read when the first token is to be sealed."""

    def __init__(self, identity: str | Path | TokenEncrypter | None) -> None:
        """Read `identity`, a file, or else the one that the environment names."""
        self._given = identity

    def encrypt(self, token: Token, *, namespace: str, approval_id: str, answer: JsonObject) -> str:
        """Return a token as it may stand in a history. One that is sealed already stays as it is.

        Raises:
            InvalidConfiguration: It is not configured with which key.
            NotAllowed: It is too long.
        """
        if not isinstance(token, str):
            token = token(namespace=namespace, approval_id=approval_id, answer=answer)
        if is_sealed(token):
            return token
        if self._given is None or isinstance(self._given, str | Path):
            self._given = _sealer(self._given or os.environ.get(IDENTITY_ENV))
        return self._given.seal(token, namespace=namespace, approval_id=approval_id, answer=answer)


def _sealer(file: str | Path | None) -> TokenEncrypter:
    if not file:
        problem = (
            "is not set. A token is sent encrypted only: name a file with the workers' public key, such as the "
            "clients.toml that `waystation identity init` wrote for them."
        )
        raise InvalidConfiguration(IDENTITY_ENV, "", problem)
    try:
        from waystation.identity import Configuration, Sealer
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise InvalidConfiguration(file, "", problem) from None
    return Sealer.of(Configuration.read(file))
