"""A codec server, with which Temporal's Web UI and CLI decrypt payloads for people who may see everything."""

from collections.abc import Sequence
from http import HTTPStatus

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from temporalio.api.common.v1 import Payloads
from temporalio.converter import DataConverter

from waystation.approvers import check_role, sees_everything
from waystation.storage import retrieve_payloads
from waystation.web.access import Access
from waystation.web.guard import JSON
from waystation.web.http_responses import RequestRefused
from waystation.web.limits import Limits
from waystation.web.paths import DECODE, ENCODE
from waystation.web.route_table import RouteRow, make_login_rows
from waystation.web.server import build_app

LIMITS = Limits(body_bytes=20_000_000, posts=20_000, posts_of_address=60_000)
"""For each history that it shows, the Web UI sends a request per event, and its payloads in Base64."""


def create_codec_server(
    access: Access, converter: DataConverter, *, ui: Sequence[str], names: Sequence[str] = ()
) -> Starlette:
    """Return the codec server.

    Args:
        access: The logins and the pages for logging in.
        converter: Encrypts and decrypts payloads.
        ui: Origins of the Web UIs whose pages may use the server, such as `https://temporal.example.com`.
        names: Host names of the server in addition to localhost.
    """
    codec = converter.payload_codec
    assert codec is not None

    async def encode(request: Request) -> Response:
        payloads = await _read(request)
        return _respond(Payloads(payloads=await codec.encode(payloads.payloads)))

    async def decode(request: Request) -> Response:
        payloads = await _read(request)
        return _respond(Payloads(payloads=await codec.decode(await retrieve_payloads(payloads.payloads, converter))))

    async def index(request: Request) -> Response:
        check = "You are logged in, and may decrypt payloads."
        await _check_sees_everything(request)
        return PlainTextResponse(f"{check} Temporal's Web UI now shows them; use it at {', '.join(ui)}.")

    rows = [
        RouteRow("GET", "/", index, "login"),
        RouteRow("POST", ENCODE, encode, "viewer", _check_sees_everything),
        RouteRow("POST", DECODE, decode, "viewer", _check_sees_everything),
        *make_login_rows(access),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=ui,
        allow_credentials=True,
        allow_methods=["POST"],
        allow_headers=["Authorization", "Content-Type", "X-Namespace"],
    )
    return build_app(rows, access, names=names, limits=LIMITS, before=[cors], origins=ui)


async def _check_sees_everything(request: Request) -> None:
    """Check that the person is a viewer of all tenants: a payload does not show which tenant it belongs to."""
    check_role(request.state.login, "viewer")
    if not sees_everything(request.state.login):
        text = "Your account is limited to a tenant, and encrypted payloads do not show their tenant."
        raise RequestRefused(HTTPStatus.FORBIDDEN, "NotAllowed", text)


async def _read(request: Request) -> Payloads:
    try:
        return Parse(await request.body(), Payloads())
    except (ParseError, UnicodeDecodeError):
        text = 'The body must be JSON like {"payloads": [{"metadata": {"encoding": "…"}, "data": "…"}]}, in Base64.'
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", text) from None


def _respond(payloads: Payloads) -> Response:
    return Response(MessageToJson(payloads), media_type=JSON)
