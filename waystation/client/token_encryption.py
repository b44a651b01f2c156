"""Encrypt approvers' identity tokens for the workers before they leave the process."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from waystation.core import IDENTITY_ENV, InvalidConfiguration, JsonObject, TokenSigner, is_encrypted


class TokenEncrypter(Protocol):
    """Encrypts tokens for the workers, such as `waystation.identity.Sealer`."""

    def seal(self, token: str, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Encrypt a signed token. The result is valid only for this answer to this call."""


Token: TypeAlias = str | TokenSigner
"""An approver's token, or a function that makes one for an answer."""


class TokenEncryption:
    """Encrypts with the configured key, which is read on first use."""

    def __init__(self, identity: str | Path | TokenEncrypter | None) -> None:
        """`identity` is an encrypter or a configuration file; by default the environment names the file."""
        self._encrypter = identity

    def encrypt(self, token: Token, *, namespace: str, approval_id: str, answer: JsonObject) -> str:
        """Encrypt a token for the answer, so that histories may contain it. An encrypted token is returned unchanged.

        Raises:
            InvalidConfiguration: No key is configured.
            NotAllowed: The token is too long.
        """
        if not isinstance(token, str):
            token = token(namespace=namespace, approval_id=approval_id, answer=answer)
        if is_encrypted(token):
            return token
        if self._encrypter is None or isinstance(self._encrypter, str | Path):
            self._encrypter = _load_encrypter(self._encrypter or os.environ.get(IDENTITY_ENV))
        return self._encrypter.seal(token, namespace=namespace, approval_id=approval_id, answer=answer)


def _load_encrypter(file: str | Path | None) -> TokenEncrypter:
    if not file:
        problem = (
            "is not set. Tokens are only sent encrypted. Name a file with the workers' public key, such as the "
            "clients.toml from `waystation identity init`."
        )
        raise InvalidConfiguration(IDENTITY_ENV, "", problem)
    try:
        from waystation.identity import Configuration, Sealer
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise InvalidConfiguration(file, "", problem) from None
    return Sealer.of(Configuration.read(file))
