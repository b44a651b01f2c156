"""Encrypt the tokens that prove who answers, for the workers, before they leave the process."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from waystation.core import IDENTITY_ENV, InvalidConfiguration, JsonObject, Signs, is_sealed


class TokenEncrypter(Protocol):
    """Encrypts tokens for the workers, as `waystation.identity.Sealer` does."""

    def seal(self, token: str, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token encrypted, good only for this answer to this call."""


Token: TypeAlias = str | Signs
"""A person's token, or what makes one for an answer."""


class TokenEncryption:
    """Encrypts with the configured key, which is read for the first token."""

    def __init__(self, identity: str | Path | TokenEncrypter | None) -> None:
        """`identity` is an encrypter or a file; by default the environment names a file."""
        self._encrypter = identity

    def encrypt(self, token: Token, *, namespace: str, approval_id: str, answer: JsonObject) -> str:
        """Return a token that a history may contain. An encrypted one is returned unchanged.

        Raises:
            InvalidConfiguration: No key is configured.
            NotAllowed: It is too long.
        """
        if not isinstance(token, str):
            token = token(namespace=namespace, approval_id=approval_id, answer=answer)
        if is_sealed(token):
            return token
        if self._encrypter is None or isinstance(self._encrypter, str | Path):
            self._encrypter = _sealer(self._encrypter or os.environ.get(IDENTITY_ENV))
        return self._encrypter.seal(token, namespace=namespace, approval_id=approval_id, answer=answer)


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
