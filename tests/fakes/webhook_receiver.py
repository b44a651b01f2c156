"""A receiver of webhooks for tests: real HTTP on a loopback port, with verified signatures.

with WebhookReceiver() as receiver:
    ...
    receiver.received          # what arrived with a good signature, each with its id
"""

import base64
import contextlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from waystation.core.payload import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """One request."""

    id: str | None
    body: JsonObject
    headers: dict[str, str]
    verified: bool
    """Whether its signature is that of Standard Webhooks, with the receiver's secret."""


@dataclass(kw_only=True)
class WebhookReceiver:
    """Takes what is posted to it. Change the fields at any time."""

    statuses: list[int] = field(default_factory=list)
    """The statuses of the next responses; later ones are 204."""
    location: str = "/elsewhere"
    """Where its redirects lead."""
    body_s: float = 0.0
    """How long it sends the bodies of its responses, without a size; none if zero."""
    others: list[str] = field(default_factory=list)
    """The methods and paths of requests that are not posted."""
    secret: str = field(default_factory=lambda: "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())
    requests: list[Received] = field(default_factory=list)
    """All that arrived."""
    taken: list[Received] = field(default_factory=list)
    """Those that it answered with success."""

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._take(self)

            def do_GET(self) -> None:
                receiver.others.append(f"GET {self.path}")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing; the default writes to standard error."""

        self._guard = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    @property
    def apprise_url(self) -> str:
        """As apprise has it: then there is no signature."""
        return f"json://127.0.0.1:{self._server.server_address[1]}/hook"

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0)).decode()
        headers = {name.lower(): value for name, value in handler.headers.items()}
        notification = Received(
            id=headers.get("webhook-id"), body=json.loads(body), headers=headers, verified=self.verifies(body, headers)
        )
        with self._guard:
            status = self.statuses.pop(0) if self.statuses else 204
            self.requests.append(notification)
            if status < 300:
                self.taken.append(notification)
        handler.send_response(status)
        if not self.body_s:
            handler.send_header("Content-Length", "0")
        if 300 <= status < 400:
            handler.send_header("Location", self.location)
        handler.end_headers()
        until = time.monotonic() + self.body_s
        with contextlib.suppress(OSError):  # the sender has closed the connection
            while time.monotonic() < until:
                handler.wfile.write(b" " * 100_000)
                handler.wfile.flush()

    def verifies(self, body: str, headers: dict[str, str]) -> bool:
        """Whether a request has a good signature."""
        from standardwebhooks import Webhook, WebhookVerificationError

        try:
            Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError:
            return False
        return True
