"""The cipher writes the format that the reference describes to other languages."""

import base64
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from temporalio.api.common.v1 import Payload

from tests.documents import blocks, section
from tests.paths import ROOT
from waystation.storage.cipher import Cipher

PAGE = (ROOT / "docs" / "reference" / "encryption-format.md").read_text()
VECTORS = json.loads(blocks(section(PAGE, "## Test vectors"), "json")[0])


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_cipher_encrypts_and_decrypts_a_test_vector(
    vector: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the vector's nonce and its key as the first one, the encrypted bytes are those of the reference."""
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": sorted(VECTORS["keys"], key=lambda key: key["kid"] != vector["key"])}))
    file.chmod(0o600)
    cipher = Cipher(str(file))
    nonce, data, serialized = (base64.b64decode(vector[name]) for name in ("nonce", "data", "serialized"))
    monkeypatch.setattr(secrets, "token_bytes", lambda _: nonce)
    assert cipher.encrypt(serialized) == data
    assert cipher.decrypt(vector["key"].encode(), data) == serialized
    assert Payload.FromString(serialized) == ParseDict(vector["payload"], Payload())
