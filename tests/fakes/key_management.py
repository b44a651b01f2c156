"""A key management service for tests, with the HTTP protocol of AWS KMS.

with FakeKms() as service:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", service.url)
"""

import base64
import json
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from waystation.core.payload import JsonObject


class _Refusal(Exception):
    """An error of the service, by its name in the protocol."""


@dataclass(kw_only=True)
class FakeKms:
    """A service with keys that never leave it. Change the fields at any time."""

    keys: dict[str, AESGCM] = field(default_factory=dict, repr=False)
    """Keys by ID or alias."""
    denied: bool = False
    """Whether each request is refused."""
    requests: list[str] = field(default_factory=list)
    """The operations that were requested, each as `OPERATION REGION`."""

    def __post_init__(self) -> None:
        self.keys.setdefault("alias/waystation", AESGCM(secrets.token_bytes(32)))
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        params = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        operation = request.headers["X-Amz-Target"].removeprefix("TrentService.")
        # "AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/kms/aws4_request, ..."
        region = request.headers["Authorization"].split("/")[2]
        self.requests.append(f"{operation} {region}")
        try:
            status, body = 200, self._perform(operation, params)
        except _Refusal as error:
            status, body = 400, {"__type": str(error), "message": f"Refused: {error}."}
        data = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/x-amz-json-1.1")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _perform(self, operation: str, params: JsonObject) -> JsonObject:
        if self.denied:
            raise _Refusal("AccessDeniedException")
        name = params["KeyId"].split(":")[-1]
        if (key := self.keys.get(name)) is None:
            raise _Refusal("NotFoundException")
        context = json.dumps(params["EncryptionContext"], sort_keys=True).encode()
        if operation == "GenerateDataKeyWithoutPlaintext":
            nonce = secrets.token_bytes(12)
            data_key = secrets.token_bytes(params["NumberOfBytes"])
            wrapped = nonce + key.encrypt(nonce, data_key, context)
            return {"KeyId": name, "CiphertextBlob": base64.b64encode(wrapped).decode()}
        wrapped = base64.b64decode(params["CiphertextBlob"])
        try:
            plain = key.decrypt(wrapped[:12], wrapped[12:], context)
        except (InvalidTag, ValueError):
            raise _Refusal("InvalidCiphertextException") from None
        return {"KeyId": name, "Plaintext": base64.b64encode(plain).decode()}
