"""The routes of A2A: JSON-RPC, REST and cards, of the protocol's versions 1.0 and 0.3."""

from http import HTTPStatus
from typing import Any, cast

from a2a.server.context import ServerCallContext
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from waystation.interfaces.a2a_server.agent_cards import CARD, PREFIX, make_card
from waystation.interfaces.a2a_server.task_reads import TaskReader
from waystation.interfaces.a2a_server.task_requests import READER, TaskRequests
from waystation.web.http_responses import RequestRefused
from waystation.web.route_table import RouteRow
from waystation.web.web_services import WebServices

PLACE = f"{PREFIX}/{{agent}}"
ACCEPTS = ("application/json", "application/a2a+json")


class A2aRoutes:
    """Passes requests of people who are logged in to the SDK's handlers of the protocol."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        handler = TaskRequests(services)
        options: dict[str, Any] = {"context_builder": _ContextBuilder(), "enable_v0_3_compat": True}
        routes = [
            *create_jsonrpc_routes(handler, PLACE, **options),
            *create_rest_routes(handler, path_prefix=PLACE, **options),
        ]
        # The mount would let a path name a tenant. Ours comes from the login.
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def serve(self, request: Request) -> Response:
        """Serve a request, whose path may end with a slash.

        Raises:
            Refused: No route has this path and method.
        """
        scope = {**request.scope, "path": request.scope["path"].rstrip("/")}
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                inner = Request({**scope, **child}, request.receive)
                agent, base = child["path_params"]["agent"], self._services.find_address(request)
                inner.state.reader = TaskReader(self._services, request.state.login, agent, base)
                return await self._limit(request, await route.endpoint(inner))
        raise RequestRefused(HTTPStatus.NOT_FOUND, "InvalidRequest", "A2A has no method at this path.")

    async def _limit(self, request: Request, response: Response) -> Response:
        """Return a response whose stream counts toward the limits, ends with the login, and waits for its reader."""
        if not isinstance(response, EventSourceResponse):
            if "a2a+json" not in request.headers.get("accept", "") and "content-type" in response.headers:
                response.headers["content-type"] = ACCEPTS[0]  # the SDK sends A2A's own type in any case
            return response
        events: Any = response.body_iterator
        try:
            return self._services.invocations.respond(request.state.login, events)
        except RequestRefused:
            await events.aclose()
            raise

    async def serve_card(self, request: Request) -> Response:
        """Serve the public card of an agent."""
        card = make_card(request.path_params["agent"], self._services.find_address(request))
        [route] = create_agent_card_routes(card)
        return cast(Response, await route.endpoint(request))


def make_rows(services: WebServices) -> list[RouteRow]:
    """Return the rows for the route table."""
    routes = A2aRoutes(services)
    return [
        RouteRow("GET", f"{PLACE}{CARD}", routes.serve_card, "public"),
        *(
            RouteRow(method, path, routes.serve, "login", accepts=() if method == "GET" else ACCEPTS)
            for path in (PLACE, f"{PLACE}/{{rest:path}}")
            for method in ("POST", "DELETE", "GET")
        ),
    ]


class _ContextBuilder(DefaultServerCallContextBuilder):
    """Adds the person to the context of a call."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[READER] = request.state.reader
        return context
