"""Encrypt identity tokens, so that they leave the process only in a form that the workers can decrypt."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from waystation.core.approval import CLIENT_IDENTITY_ENV, Request, TokenSigner, is_encrypted
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import JsonObject
from waystation.project_file import find_identity_file


class TokenEncrypter(Protocol):
    """An object that encrypts tokens for the workers, such as `waystation.approvers.identity.Sealer`."""

    def seal(self, token: str, *, namespace: str, approval_id: str, answer: Mapping[str, Any] | Request) -> str:
        """Encrypt a signed token so that it is valid only for this answer to this call, or for this request."""


Token: TypeAlias = str | TokenSigner
"""A person's token, or a function that creates a token for an answer or request."""


class TokenEncryption:
    """Encrypts tokens with the configured key, which is loaded on first use."""

    def __init__(self, identity: str | Path | TokenEncrypter | None) -> None:
        """Accept an encrypter or a configuration file. By default, WAYSTATION_CLIENT_IDENTITY names the file."""
        self._encrypter = identity

    def encrypt(self, token: Token, *, namespace: str, approval_id: str, answer: JsonObject | Request) -> str:
        """Encrypt a token for an answer or request so that it is safe to record in histories.

        For a request, `approval_id` is the ID of the workflow that receives it. A token that is already encrypted is
        returned unchanged.

        Raises:
            InvalidConfiguration: No key is configured.
            NotAllowed: The token is too long.
        """
        if not isinstance(token, str):
            token = token(namespace=namespace, approval_id=approval_id, answer=answer)
        if is_encrypted(token):
            return token
        if self._encrypter is None or isinstance(self._encrypter, str | Path):
            self._encrypter = load_encrypter(self._encrypter or find_identity_file(CLIENT_IDENTITY_ENV))
        return self._encrypter.seal(token, namespace=namespace, approval_id=approval_id, answer=answer)


def load_encrypter(file: str | Path | None) -> TokenEncrypter:
    """Return the encrypter that an identity file of clients or of `waystation web` configures.

    Raises:
        InvalidConfiguration: There is no file, it has no key for encrypting tokens, or a package is not installed.
    """
    if not file:
        problem = (
            "set it to a file with the workers' public key, such as the clients.toml from `waystation identity init`, "
            "because tokens are sent only in encrypted form."
        )
        raise InvalidConfiguration(CLIENT_IDENTITY_ENV, "", problem)
    try:
        from waystation.approvers.identity import Configuration, Sealer
    except ModuleNotFoundError as error:
        problem = f"needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise InvalidConfiguration(file, "", problem) from None
    return Sealer.of(Configuration.read(file))
