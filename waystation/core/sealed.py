"""Tokens that prove who answers: how they are made, and whether one is encrypted, as far as can be seen from outside.

One that is not encrypted can be read in the history of the workflow that it is sent to.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Protocol

from waystation.core.payload import decode

IDENTITY_ENV = "WAYSTATION_IDENTITY"
"""Name of the variable that names the file which says how tokens are sealed, or opened and verified."""
MAX_TOKEN_CHARS = 32_000
"""Of a sealed token."""
PLAIN_TOKEN = (
    "The token is not encrypted; whoever may read the namespace could use it, so revoke it. Clients encrypt tokens "
    "when WAYSTATION_IDENTITY names a file with the workers' public key."
)


class Signs(Protocol):
    """Makes the token for one answer, as `waystation.identity.Gateway.signer` does."""

    def __call__(self, *, namespace: str, approval_id: str, answer: Mapping[str, Any]) -> str:
        """Return a signed token."""


def is_sealed(token: str) -> bool:
    """Whether a token has the form of a compact JWE, and is not too large for one that holds a token."""
    parts = token.split(".")
    if len(token) > MAX_TOKEN_CHARS or len(parts) != 5:
        return False
    try:
        head = decode(base64.b64decode(parts[0] + "=" * (-len(parts[0]) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        return False
    return isinstance(head, dict) and isinstance(head.get("enc"), str) and all(parts[2:])
