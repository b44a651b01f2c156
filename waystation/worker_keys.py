"""Worker keys: secrets that all workers of a namespace share, and that nobody else has.

Workers authenticate what they decide, because histories and inputs can be forged by anyone who may write to the
namespace. The file is a JSON Web Key Set (RFC 7517) of symmetric keys. Workers sign with the first key and accept all
of them, so that keys can be rotated: add the new key behind the old one, restart all workers, move it to the front,
restart all workers, and remove the old key once no open invocation was approved with it.
"""

import base64
import binascii
import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from waystation.configuration import PREFIX, read_secret
from waystation.core import InvalidConfiguration, JsonObject, Mac, digest

KEYS_VARIABLE = "WAYSTATION_KEYS"
"""Environment variable with the path of the key file, or with `env:NAME` for a variable that has its content."""
MIN_BYTES = 32


class WorkerKeys:
    """The worker keys by key ID. The first one signs."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Store the keys by key ID. There must be at least one."""
        self._keys = dict(keys)
        self._current = next(iter(self._keys))

    @classmethod
    def generate(cls) -> Self:
        """Return a key set with one new, random key, which is not stored anywhere."""
        return cls({secrets.token_hex(4): secrets.token_bytes(MIN_BYTES)})

    @classmethod
    def read(cls, source: str | Path) -> Self:
        """Read a key set from a file, or from an environment variable if `source` is `env:NAME`.

        Raises:
            InvalidConfiguration: There is no such file or variable, or it does not contain usable keys.
        """
        name = str(source)
        place = Path(KEYS_VARIABLE) if name.startswith(PREFIX) else Path(name)
        text = read_secret(place, "", name if name.startswith(PREFIX) else place.name)
        try:
            keys = {key["kid"]: _decode_key(key) for key in json.loads(text)["keys"]}
        except (ValueError, TypeError, KeyError):
            keys = {}
        if not keys or not all(isinstance(kid, str) and len(key) >= MIN_BYTES for kid, key in keys.items()):
            problem = (
                "is not a JSON Web Key Set of symmetric keys (`oct`) with `kid` and at least 32 bytes in `k`. Create "
                "one with `waystation identity keys FILE`."
            )
            raise InvalidConfiguration(name, "", problem)
        return cls(keys)

    @classmethod
    def read_or_create(cls, file: Path) -> Self:
        """Read a key file. If it does not exist, create one with a new key that only the current user can read.

        Raises:
            InvalidConfiguration: The file does not contain usable keys.
            OSError: The file cannot be created.
        """
        with contextlib.suppress(FileExistsError):
            cls.generate().create(file)
        return cls.read(file)

    def create(self, file: Path) -> None:
        """Write the keys to a new file that only the current user can read.

        Raises:
            FileExistsError: The file exists.
            OSError: The file cannot be written.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        keys = [{"kty": "oct", "kid": kid, "alg": "HS256", "k": _to_base64(key)} for kid, key in self._keys.items()]
        # Give the file its final name only when it is complete, so that a worker that starts at the same time never
        # reads a part of it.
        part = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
            json.dump({"keys": keys}, out, indent=2)
        try:
            os.link(part, file)
        finally:
            part.unlink()

    def sign(self, claims: JsonObject) -> Mac:
        """Return a MAC of the claims, made with the first key."""
        return Mac(key=self._current, code=_code(self._keys[self._current], claims))

    def verifies(self, mac: Mac | None, claims: JsonObject) -> bool:
        """Return whether one of the keys made this MAC of these claims."""
        key = self._keys.get(mac.key) if mac else None
        return bool(mac and key and hmac.compare_digest(mac.code.encode(), _code(key, claims).encode()))


def _code(key: bytes, claims: JsonObject) -> str:
    return _to_base64(hmac.digest(key, digest(claims).encode(), "sha256"))


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_key(key: Any) -> bytes:
    if key["kty"] != "oct":
        raise ValueError("not a symmetric key")
    text = key["k"]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("not base64url") from None
