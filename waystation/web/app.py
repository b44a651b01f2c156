"""The web application: its paths, and what stands before them."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from temporalio.service import RPCError

from waystation.client import AgentClient
from waystation.core.errors import StoreFailed
from waystation.web.answering import Answering
from waystation.web.call_page import CallPages
from waystation.web.inbox import Inbox
from waystation.web.pages import Pages
from waystation.web.posted import HeardOut, posted
from waystation.web.security import CALLBACK, LINK, LOGIN, LOOPBACK, Access, EscapedPaths, Guard, OwnNames, refusal
from waystation.web.streams import Refused, Streams, unreachable
from waystation.web.timeline_page import TimelinePages

if TYPE_CHECKING:
    from waystation.web.vouching import Gatekeeper

STATIC: list[str | tuple[str, str]] = [("waystation.web", "static"), ("waystation.presentation", "static")]


def create_app(
    client: AgentClient,
    access: Access,
    *,
    names: Sequence[str] = (),
    temporal_ui: str | None = None,
    gatekeeper: "Gatekeeper | None" = None,
    url: str | None = None,
) -> Starlette:
    """Return the application.

    Args:
        client: Connected to the namespace whose invocations are shown.
        access: Who gets in.
        names: Host names, besides this machine's own, under which it is reached. Any other is refused: a page of a
            stranger could let its own name point here.
        temporal_ui: Address of the Temporal Web UI, to which pages link.
        gatekeeper: Says to the workers who answers; without it the name of whoever is logged in is a mere claim.
        url: Address under which people reach it, when that is not the one at which it listens.
    """
    streams, pages = Streams(client), Pages(client)
    answering = Answering(client, gatekeeper.vouches if gatekeeper else None)
    inbox, calls = Inbox(client, answering), CallPages(client, answering, temporal_ui=temporal_ui)
    timelines = TimelinePages(client)
    signing_in, further = None, list[Route]()
    if gatekeeper is not None:
        from waystation.web.sign_in import LinkPages, SignIn

        if gatekeeper.oidc is not None:
            signing_in, access.provider = SignIn(gatekeeper.oidc, access, url=url), True
            further.append(Route(CALLBACK, signing_in.finish))
        if gatekeeper.links is not None:
            access.links = True
            further.append(Route(LINK, LinkPages(gatekeeper.links, access).open, methods=["POST"]))

    async def login(request: Request) -> Response:
        if signing_in is not None and "token" not in request.query_params:
            return await signing_in.begin(request)
        return access.login(request)

    async def logout(request: Request) -> Response:
        await posted(request, request.state.login)
        return access.leave(request)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            text = f"{error.detail}. In a path the id of an invocation is one segment: `/` is written %2F."
            error = Refused(HTTPStatus(error.status_code), "InvalidRequest", text)
        if isinstance(error, RPCError | StoreFailed):
            error = unreachable(error)
        assert isinstance(error, Refused)
        return refusal(request.scope, error)

    app = Starlette(
        routes=[
            Route("/", pages.index),
            Route(LOGIN, login),
            Route("/logout", logout, methods=["POST"]),
            Route("/approvals", inbox.show),
            Route("/approvals/rows", inbox.rows),
            Route("/approvals/several", inbox.several),
            Route("/approvals/several", inbox.answer_several, methods=["POST"]),
            Route("/approvals/{id}", calls.show),
            Route("/approvals/{id}", calls.answer, methods=["POST"]),
            Route("/approvals/{id}/edit", calls.edit, methods=["GET", "POST"]),
            Route("/approvals/{id}/arguments.json", calls.arguments),
            Route("/invocations/{id}", pages.invocation),
            Route("/invocations/{id}/rows", pages.rows),
            Route("/invocations/{id}/timeline", timelines.show),
            Route("/invocations/{id}/events", streams.events),
            Route("/invocations/{id}/events.json", streams.listed),
            Route("/approvals/{id}/viewed", calls.viewed, methods=["POST"]),
            *further,
            Mount("/static", StaticFiles(packages=STATIC)),
        ],
        # The first is the outermost.
        middleware=[
            Middleware(HeardOut),
            Middleware(OwnNames, names=[*LOOPBACK, *names], url=url),
            Middleware(EscapedPaths),
            Middleware(Guard, access=access, url=url),
        ],
        exception_handlers={Refused: refused, HTTPException: refused, RPCError: refused, StoreFailed: refused},
    )
    app.state.streams = streams
    return app
