"""Worker keys: secrets that all workers of a namespace share, and that nobody else has.

Workers authenticate what they decide, because histories and inputs can be forged by anyone who may write to the
namespace. The file is a JSON Web Key Set (RFC 7517) of symmetric keys. Workers sign with the first key and accept all
of them, so that keys can be rotated: add the new key behind the old one, restart all workers, move it to the front,
restart all workers, and remove the old key once no open invocation was approved with it.
"""

import hmac
from typing import ClassVar

from waystation.core.approval import Mac
from waystation.core.payload import JsonObject, digest
from waystation.key_set import KeySet, to_base64


class WorkerKeys(KeySet):
    """The worker keys. The first one signs."""

    algorithm: ClassVar[str] = "HS256"
    variable: ClassVar[str] = "WAYSTATION_KEYS"
    create_command: ClassVar[str] = "waystation identity keys FILE"
    remedy: ClassVar[str] = f"Create one with `{create_command}`."

    def sign(self, claims: JsonObject) -> Mac:
        """Return a MAC of the claims, made with the first key."""
        return Mac(key=self._current, code=_code(self._keys[self._current], claims))

    def verifies(self, mac: Mac | None, claims: JsonObject) -> bool:
        """Return whether one of the keys made this MAC of these claims."""
        key = self._keys.get(mac.key) if mac else None
        return bool(mac and key and hmac.compare_digest(mac.code.encode(), _code(key, claims).encode()))


def _code(key: bytes, claims: JsonObject) -> str:
    return to_base64(hmac.digest(key, digest(claims).encode(), "sha256"))
