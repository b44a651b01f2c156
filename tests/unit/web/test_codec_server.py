"""The codec server decrypts payloads only for people and programs that may see everything."""

import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import httpx2 as httpx
import pytest
from google.protobuf.json_format import MessageToJson, Parse
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import DataConverter

from waystation.core.approval import Verified
from waystation.key_set import EncryptionKeys
from waystation.storage import ENCRYPTION_VARIABLE, Blobs
from waystation.storage.driver import offloading
from waystation.web.access import Access
from waystation.web.codec_server import create_codec_server
from waystation.web.logins import Login

UI = "https://temporal.example.com"
EVIL = "https://evil.example.com"
TOKEN = "t" * 32
LARGE = "large " * 100_000


@pytest.fixture
async def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConverter:
    """Return a converter that encrypts."""
    EncryptionKeys.generate().create(tmp_path / "keys.json")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(tmp_path / "keys.json"))
    return offloading(Blobs(tmp_path / "store"))


@pytest.fixture
def access() -> Access:
    """Return the logins of the server: each has a cookie with its name."""
    access = Access(announce=lambda _path: None, token=TOKEN, cookie="c")
    logins = {
        "viewer": Login("dana", roles=frozenset({"viewer"})),
        "author": Login("erin", roles=frozenset({"author", "approver", "operator"})),
        "tenant": Login("ann", verified=Verified(subject="ann", tenant="acme"), roles=frozenset({"viewer"})),
    }
    access._logins.update(logins)
    return access


@pytest.fixture
async def http(access: Access, converter: DataConverter) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the server without a login."""
    app = create_codec_server(access, converter, ui=[UI])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        yield http


async def post(http: httpx.AsyncClient, path: str, payloads: list[Payload], **headers: str) -> httpx.Response:
    """Send payloads as Temporal's Web UI does."""
    body = MessageToJson(Payloads(payloads=payloads))
    sent = {"Content-Type": "application/json", "X-Namespace": "default", "Origin": UI, "Sec-Fetch-Site": "same-site"}
    return await http.post(path, content=body, headers={**sent, **headers})


async def test_a_viewer_decrypts_payloads(http: httpx.AsyncClient, converter: DataConverter) -> None:
    """Large payloads are fetched from the store. The response names the page that may read it."""
    payloads = await converter.encode(["my account is 4711", LARGE])
    response = await post(http, "/decode", payloads, Cookie="c=viewer")
    decoded = Parse(response.content, Payloads())
    assert [json.loads(payload.data) for payload in decoded.payloads] == ["my account is 4711", LARGE]
    assert response.headers["access-control-allow-origin"] == UI
    assert response.headers["access-control-allow-credentials"] == "true"


async def test_payloads_are_encrypted_for_signals_from_the_web_ui(
    http: httpx.AsyncClient, converter: DataConverter
) -> None:
    """Workers read payloads from the Web UI like any others."""
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"yes"')
    response = await post(http, "/encode", [plain], Authorization=f"Bearer {TOKEN}")
    assert await converter.decode(Parse(response.content, Payloads()).payloads) == ["yes"]
    assert b"yes" not in response.content


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, HTTPStatus.UNAUTHORIZED),
        ({"Cookie": "c=unknown"}, HTTPStatus.UNAUTHORIZED),
        ({"Authorization": "Bearer other"}, HTTPStatus.UNAUTHORIZED),
        ({"Cookie": "c=author"}, HTTPStatus.FORBIDDEN),
        ({"Cookie": "c=tenant"}, HTTPStatus.FORBIDDEN),
        ({"Cookie": "c=viewer", "Origin": EVIL}, HTTPStatus.FORBIDDEN),
        ({"Cookie": "c=viewer", "Content-Type": "text/plain"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        ({"Cookie": "c=viewer", "Host": "rebound.example.com"}, HTTPStatus.BAD_REQUEST),
    ],
)
@pytest.mark.parametrize("path", ["/decode", "/encode"])
async def test_nobody_else_decrypts_payloads(
    http: httpx.AsyncClient, converter: DataConverter, path: str, headers: dict[str, str], status: HTTPStatus
) -> None:
    """A login without the role, a person of one tenant, a page of another site, and strangers are refused."""
    payloads = await converter.encode(["my account is 4711"])
    response = await post(http, path, payloads, **headers)
    assert response.status_code == status
    assert b"4711" not in response.content


@pytest.mark.parametrize(
    ("origin", "status"), [(UI, HTTPStatus.OK), ("https://evil.example.com", HTTPStatus.BAD_REQUEST)]
)
async def test_a_browser_may_ask_before_it_sends(http: httpx.AsyncClient, origin: str, status: HTTPStatus) -> None:
    """A browser may send a preflight request without a login. Only the Web UI's pages get a positive response."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    headers["Access-Control-Request-Headers"] = "content-type,x-namespace"
    response = await http.options("/decode", headers=headers)
    assert response.status_code == status
    assert (response.headers.get("access-control-allow-origin") == UI) is (origin == UI)


@pytest.mark.parametrize("body", [b"", b"{", b'{"payloads": 1}', b"\xff"])
async def test_a_request_that_is_not_valid_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    """The error describes the expected format."""
    headers = {"Content-Type": "application/json", "Cookie": "c=viewer", "Accept": "application/json"}
    response = await http.post("/decode", content=body, headers=headers)
    assert response.status_code == HTTPStatus.BAD_REQUEST
    assert "The body must be JSON" in response.text


async def test_the_page_after_the_login_names_the_web_ui(http: httpx.AsyncClient) -> None:
    """The page tells a person who lacks the role right after the login."""
    assert UI in (await http.get("/", headers={"Cookie": "c=viewer"})).text
    refused = await http.get("/", headers={"Cookie": "c=author"})
    assert (refused.status_code, "'viewer'" in refused.text) == (HTTPStatus.FORBIDDEN, True)
