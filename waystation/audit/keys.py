"""Signatures of the end of an audit, which holds the hash of all lines before it.

A key is a JWK in a file: `oct` for HMAC, or `OKP` with the curve Ed25519, of which a public one suffices to verify.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystation.audit.sheet import Fault, Sheet, Signer, canonical
from waystation.core.errors import WaystationError

if TYPE_CHECKING:
    from joserfc.jwk import KeyFlexible

MIN_SECRET_BYTES = 32


class KeyRefused(WaystationError):
    """A file holds no key that can be used here."""


def signer(key_file: Path) -> Signer:
    """Return what signs with a key.

    Raises:
        KeyRefused: The file holds no key with which one can sign.
    """
    key, algorithm = _key(key_file, private=True)

    def sign(data: bytes) -> str:
        from joserfc import jws

        return jws.serialize_compact({"alg": algorithm}, data, key, algorithms=[algorithm])

    return sign


def verify_signature(sheet: Sheet, key_file: Path) -> None:
    """Look whether the end of an audit was signed with a key.

    Raises:
        Fault: It was not.
        KeyRefused: The file holds no key.
    """
    key, algorithm = _key(key_file, private=False)
    from joserfc import jws
    from joserfc.errors import JoseError

    number = int(sheet.end["n"]) + 2
    if sheet.signature is None:
        raise Fault(number, "the file is not signed")
    try:
        signed = jws.deserialize_compact(str(sheet.signature.get("jws")), key, algorithms=[algorithm])
    except (JoseError, ValueError):
        raise Fault(number, f"the signature is not of the key in {str(key_file)!r}") from None
    if signed.payload != canonical(sheet.end).encode():
        raise Fault(number, "the signature is of another file")


def _key(path: Path, *, private: bool) -> "tuple[KeyFlexible, str]":
    try:
        from joserfc.jwk import OctKey, OKPKey
    except ImportError:
        raise KeyRefused("Signatures need the package joserfc; install waystation[identity].") from None
    wanted = 'a JWK as JSON, such as {"kty": "oct", "k": …} or {"kty": "OKP", "crv": "Ed25519", …}'
    try:
        found: Any = json.loads(path.read_bytes())
        if found["kty"] == "oct":
            secret = OctKey.import_key(found)
            if len(secret.raw_value) >= MIN_SECRET_BYTES:
                return secret, "HS256"
            raise KeyRefused(f"The secret in {str(path)!r} is too short; it needs {MIN_SECRET_BYTES} bytes.")
        pair = OKPKey.import_key(found)
        if found.get("crv") == "Ed25519" and (pair.is_private or not private):
            return pair, "Ed25519"
    except OSError as error:
        raise KeyRefused(f"The key {str(path)!r} cannot be read: {error.strerror}.") from None
    except KeyRefused:
        raise
    except Exception:  # noqa: BLE001  # whatever the library says of a file that holds anything
        raise KeyRefused(f"{str(path)!r} holds no key that can be used here; it needs {wanted}.") from None
    raise KeyRefused(f"With the key in {str(path)!r} one cannot {'sign' if private else 'verify'}; it needs {wanted}.")
