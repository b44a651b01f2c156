"""The web application: its paths, and what stands before them."""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from temporalio.service import RPCError

from waystation.client.agent_client import AgentClient
from waystation.core.errors import StoreFailed
from waystation.web.pages import Pages
from waystation.web.rendering import HERE, problem
from waystation.web.security import LOGIN, LOOPBACK, Access, EscapedPaths, Guard
from waystation.web.streams import Refused, Streams


def create_app(client: AgentClient, access: Access, *, names: Sequence[str] = ()) -> Starlette:
    """Return the application.

    Args:
        client: Connected to the namespace whose invocations are shown.
        access: Who gets in.
        names: Host names, besides this machine's own, under which it is reached. Any other is refused: a page of a
            stranger could let its own name point here.
    """
    streams, pages = Streams(client), Pages(client)

    async def login(request: Request) -> Response:
        return access.login(request)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            text = f"{error.detail}. In a path the id of an invocation is one segment: `/` is written %2F."
            error = Refused(HTTPStatus(error.status_code), "InvalidRequest", text)
        if isinstance(error, RPCError):
            error = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "NoServer", f"Temporal: {error.status.name}.")
        if isinstance(error, StoreFailed):
            error = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "StoreFailed", str(error))
        assert isinstance(error, Refused)
        by_person = "text/html" in request.headers.get("accept", "")
        return problem(error.status, error.message) if by_person else error.response()

    app = Starlette(
        routes=[
            Route("/", pages.index),
            Route(LOGIN, login),
            Route("/invocations/{id}", pages.invocation),
            Route("/invocations/{id}/rows", pages.rows),
            Route("/invocations/{id}/events", streams.events),
            Route("/invocations/{id}/events.json", streams.listed),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        # The first is the outermost.
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, *names], www_redirect=False),
            Middleware(EscapedPaths),
            Middleware(Guard, access=access),
        ],
        exception_handlers={Refused: refused, HTTPException: refused, RPCError: refused, StoreFailed: refused},
    )
    app.state.streams = streams
    return app
