"""Data keys that are wrapped by AWS Key Management Service (KMS), so that a key file contains nothing secret."""

from __future__ import annotations

import base64
import functools
import os
import re
from typing import Any

from waystation.core.errors import InvalidConfiguration

SCHEME = "awskms://"
_URI = re.compile(rf"{SCHEME}(?P<key>(?:arn:[\w-]+:kms:(?P<region>[\w-]+):\d*:)?[\w/:-]+)", re.ASCII)
_CONTEXT = "waystation-key-id"
"""The encryption context of a data key. KMS unwraps it only for the key ID that it was created for."""
_DATA_KEY_BYTES = 32
_TIMEOUT_S = 5
_ATTEMPTS = 3


def generate_data_key(uri: str, key_id: str) -> str:
    """Let KMS create a data key, and return it wrapped, in Base64.

    `uri` is `awskms://` followed by the ARN, the ID or the alias of a KMS key.

    Raises:
        InvalidConfiguration: KMS cannot be used with this URI.
    """
    created = _call(uri, "generate_data_key_without_plaintext", key_id, NumberOfBytes=_DATA_KEY_BYTES)
    return base64.b64encode(created["CiphertextBlob"]).decode()


@functools.lru_cache(maxsize=1_000)  # a key file may be read often, and KMS charges for each call
def unwrap_data_key(uri: str, key_id: str, wrapped: str) -> bytes:
    """Return a data key that KMS has wrapped.

    Raises:
        InvalidConfiguration: KMS cannot be used with this URI, or did not wrap the key.
    """
    try:
        data = base64.b64decode(wrapped, validate=True)
    except ValueError:
        raise InvalidConfiguration(uri, "", f"the wrapped key {key_id!r} is not in Base64.") from None
    plaintext = _call(uri, "decrypt", key_id, CiphertextBlob=data)["Plaintext"]
    return bytes(plaintext)


def _call(uri: str, operation: str, key_id: str, **params: Any) -> dict[str, Any]:
    if not (match := _URI.fullmatch(uri)):
        problem = f"is not a valid URI of a KMS key. Use {SCHEME} and the ARN, the ID or the alias of a key."
        raise InvalidConfiguration(uri, "", problem)
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import get_session
    except ImportError:
        problem = "needs the extra `kms`. Install it with: pip install 'waystation[kms]'"
        raise InvalidConfiguration(uri, "", problem) from None
    retries = {"max_attempts": _ATTEMPTS, "mode": "standard"}
    config = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries=retries)
    try:
        region = match["region"] or os.environ.get("AWS_REGION")  # botocore reads only AWS_DEFAULT_REGION
        client = get_session().create_client("kms", region_name=region, config=config)
        context = {_CONTEXT: key_id}
        return dict(getattr(client, operation)(KeyId=match["key"], EncryptionContext=context, **params))
    except ClientError as error:
        detail = error.response.get("Error", {})
        cause = f"{detail.get('Code', 'Unknown')}: {detail.get('Message') or 'no reason given'}"
    except BotoCoreError as error:
        cause = str(error).rstrip(".")
    action = "unwrap" if operation == "decrypt" else "create"
    remedy = "Check the region, the credentials (AWS_*) and the permissions of this process."
    raise InvalidConfiguration(uri, "", f"KMS did not {action} the key {key_id!r} ({cause}). {remedy}")
