"""A server with the subset of S3 that artifacts need, to test the real client over real HTTP."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_LISTED = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
    '<ETag>"{tag}"</ETag><Size>{size}</Size></Contents>'
)

PATIENCE_S = 60.0


class ObjectServer(ThreadingHTTPServer):
    """Stores objects by path. Conditional writes create an object only if it does not exist."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.lose_answers_to = ""
        """Part of a path. The first object created there is stored, but its client receives a server error."""
        self.open, self.knocked = threading.Event(), threading.Event()
        """Uploads wait until `open` is set; `knocked` is set when one arrives."""
        self.open.set()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for S3 clients."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }


class _Request(BaseHTTPRequestHandler):
    server: ObjectServer
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Create or replace an object."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.server.open.is_set():
            self.server.knocked.set()
            self.server.open.wait(PATIENCE_S)
        with self.server.lock:
            if self.headers.get("If-None-Match") == "*" and self.key in self.server.objects:
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.server.objects[self.key] = body
            if self.server.lose_answers_to and self.server.lose_answers_to in self.key:
                self.server.lose_answers_to = ""
                return self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        return self.answer(200)

    def do_GET(self) -> None:
        """Return an object, or the objects below a prefix."""
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self.list(query.get("prefix", [""])[0])
        stored = self.server.objects.get(self.key)
        if stored is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self.answer(200, stored)

    def do_POST(self) -> None:
        """Delete several objects; missing ones are ignored."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert urlsplit(self.path).query == "delete"
        keys = [element.text or "" for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Key")]
        with self.server.lock:
            for key in keys:
                self.server.objects.pop(f"{self.key}/{key}", None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def list(self, prefix: str) -> None:
        """Send the names and sizes of objects."""
        with self.server.lock:
            # The key of the path `/bucket/key`.
            keys = {key.split("/", 2)[2]: len(body) for key, body in sorted(self.server.objects.items())}
        listing = [_LISTED.format(key=escape(key), tag=0, size=keys[key]) for key in keys if key.startswith(prefix)]
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(listing)}</ListBucketResult>"
        self.answer(200, text.encode())

    @property
    def key(self) -> str:
        """The path of the object, including the bucket."""
        return unquote(urlsplit(self.path).path)

    def answer(self, status: int, body: bytes = b"") -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
        with contextlib.suppress(ConnectionError):  # the waiting client may have been killed
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the access log, because tests read the output of programs."""


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Serve while the block runs."""
    with ObjectServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
