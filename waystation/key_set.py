"""Key sets: secret keys by key ID, in a file or an environment variable."""

import base64
import binascii
import contextlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from waystation.configuration import PREFIX, check_private, describe_source, read_secret
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import JsonObject
from waystation.kms import generate_data_key, unwrap_data_key
from waystation.private_files import create_file, create_folder

MIN_BYTES = 32


class KeySet:
    """Keys by key ID. The first key is used for new data, and all keys for existing data.

    The file is a JSON Web Key Set (RFC 7517) of symmetric keys. Instead of `k`, a key may have `kms`, the URI of a key
    in a key management service, and `wrapped`, the key as that service wrapped it.
    """

    algorithm: ClassVar[str]
    """The `alg` of new keys, as in RFC 7518."""
    variable: ClassVar[str]
    """Environment variable with the path of the key file, or with `env:NAME` for a variable that has its content."""
    create_command: ClassVar[str]
    """The command that creates a key file."""
    remedy: ClassVar[str]
    """One sentence for error messages: how to make the keys readable."""

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
        name, shown = str(source), describe_source(source)
        place = Path(cls.variable) if name.startswith(PREFIX) else Path(name)
        try:
            text = read_secret(place, "", name if name.startswith(PREFIX) else place.name, is_private=False)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(shown, "", f"{error.problem} {cls.remedy}") from None
        try:
            entries = json.loads(text)["keys"]
            keys = {key["kid"]: _decode_key(key) for key in entries}
        except InvalidConfiguration as error:
            raise InvalidConfiguration(shown, "", str(error)) from None
        except (ValueError, TypeError, KeyError):
            entries, keys = (), {}
        if not keys or not all(isinstance(kid, str) and len(key) >= MIN_BYTES for kid, key in keys.items()):
            problem = (
                "is not a JSON Web Key Set of symmetric keys (`oct`) with `kid` and at least 32 bytes in `k`. "
                f"{cls.remedy}"
            )
            raise InvalidConfiguration(shown, "", problem)
        if len(keys) < len(entries):
            raise InvalidConfiguration(shown, "", "two keys have the same `kid`. Give each key a `kid` of its own.")
        if not name.startswith(PREFIX) and any("k" in key for key in entries):  # wrapped keys are not secret
            check_private(place, shown)
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
        self._write(file, [{"kid": kid, "k": to_base64(key)} for kid, key in self._keys.items()])

    @classmethod
    def create_wrapped(cls, file: Path, uri: str) -> None:
        """Write a new key to a new file. A KMS creates and wraps it, so the file contains nothing secret.

        Raises:
            InvalidConfiguration: The KMS cannot be used; see `waystation.kms`.
            FileExistsError: The file exists.
            OSError: The file cannot be written.
        """
        kid = secrets.token_hex(4)
        cls._write(file, [{"kid": kid, "kms": uri, "wrapped": generate_data_key(uri, kid)}])

    @classmethod
    def _write(cls, file: Path, keys: Sequence[JsonObject]) -> None:
        create_folder(file.parent)
        content = {"keys": [{"kty": "oct", "alg": cls.algorithm, **key} for key in keys]}
        create_file(file, json.dumps(content, indent=2).encode())


class EncryptionKeys(KeySet):
    """The keys that encrypt data. The first one encrypts."""

    algorithm: ClassVar[str] = "A256GCM"
    variable: ClassVar[str] = "WAYSTATION_ENCRYPTION_KEYS"
    create_command: ClassVar[str] = "waystation encryption keys FILE"
    remedy: ClassVar[str] = f"Use the key file of all programs, or create the first one with `{create_command}`."

    @classmethod
    def read(cls, source: str | Path) -> Self:
        """Read the keys from a file, or from an environment variable if `source` is `env:NAME`.

        Raises:
            InvalidConfiguration: The keys cannot be read. The message ends with the variable that has `source`.
        """
        try:
            return super().read(source)
        except InvalidConfiguration as error:
            problem = f"{error.problem} `{cls.variable}` has this value."
            raise InvalidConfiguration(error.file, error.key, problem) from None

    def derive(self, purpose: bytes) -> dict[bytes, bytes]:
        """Return a key of 32 bytes for a single purpose for each key ID, the one for new data first."""
        return {id.encode(): hmac.digest(key, b"waystation " + purpose, "sha256") for id, key in self._keys.items()}


def to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_key(key: Any) -> bytes:
    if key["kty"] != "oct":
        raise ValueError("not a symmetric key")
    if "wrapped" in key:
        return unwrap_data_key(key["kms"], key["kid"], key["wrapped"])
    text = key["k"]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("not base64url") from None
