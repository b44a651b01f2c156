"""The web application and the server that runs it."""

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from waystation.approvers import Gatekeeper
from waystation.client import AgentClient
from waystation.core.errors import WaystationError
from waystation.web.access import Access
from waystation.web.agent_pages import AgentPages
from waystation.web.api_routes import make_call_rows, make_invocation_rows, make_schedule_rows, make_session_rows
from waystation.web.completion_route import CompletionRoute
from waystation.web.connection_limits import make_protocol
from waystation.web.exposure import NotSafeToServe, check_host, check_provider
from waystation.web.fork_pages import ForkPages
from waystation.web.guard import Guard
from waystation.web.http_responses import STATUSES, RequestRefused, format_refusal, to_refused
from waystation.web.inbox_pages import InboxPages
from waystation.web.invocation_api import InvocationApi
from waystation.web.json_api import JsonApi
from waystation.web.limits import Limits
from waystation.web.openapi_document import make_document_rows
from waystation.web.route_table import METHODS, RouteRow, build_routes, make_table
from waystation.web.schedule_api import ScheduleApi
from waystation.web.session_api import SessionApi
from waystation.web.spending_api import SpendingApi
from waystation.web.trigger_route import TriggerRoute
from waystation.web.web_services import WebServices
from waystation.web.web_settings import WebSettings

PROXIES = "FORWARDED_ALLOW_IPS"  # environment variable of uvicorn
DRAIN_S = 2


class WebUnavailable(WaystationError):
    """The web server could not start.

    Fix what the message names: the address, the port, the certificate or the namespace.
    """


def create_app(client: AgentClient, settings: WebSettings, access: Access | None = None) -> Starlette:
    """Return the web application, which serves by itself or below a path of another application.

    Args:
        client: A client connected to the namespace whose invocations are shown.
        settings: The settings.
        access: The logins, and the pages for logging in. By default, they are made from the settings.

    Raises:
        NotSafeToServe: Nobody could log in, anyone could, or the access token is too short.
        InvalidConfiguration: The identity file is invalid.
    """
    access = access or make_access(settings, _load_gatekeeper(settings.identity, client.temporal.namespace))
    limits, origins = settings.limits, settings.origins
    services = WebServices.of(client, access.gatekeeper, settings)
    client, invocations, approvals = services.client, services.invocations, services.approvals
    starter, sessions = services.starter, services.sessions
    inbox = InboxPages(client, services.pending, invocations, limits)
    api = JsonApi(client, invocations, starter)
    forks, agents = ForkPages(client, invocations, starter), AgentPages(client, starter)
    key = access.gatekeeper.completions
    completions = CompletionRoute(client, key) if key else None
    hooks = TriggerRoute(starter, settings.triggers, limits) if settings.triggers else None
    table = make_table(access, invocations, inbox, approvals, api, forks, agents, sessions, completions, hooks)
    api_services = services.named("api")
    table += make_call_rows(api_services.calls, api_services.approvals.answers)
    table += make_invocation_rows(InvocationApi(client, invocations, starter), invocations)
    table += make_session_rows(SessionApi(sessions, invocations, starter), sessions)
    table += make_schedule_rows(ScheduleApi(client, starter), SpendingApi(settings.usage))
    table += make_document_rows(table)
    for name, interface in settings.interfaces.items():
        table += interface.make_rows(services.named(name))
    before = [make_cors(origins)] if origins else []
    app = build_app(
        table, access, names=settings.names, limits=limits, before=before, origins=origins, with_cookies=False
    )
    app.state.invocations = invocations
    return app


def make_cors(origins: Sequence[str]) -> Middleware:
    """Return the middleware that lets pages of other sites read responses. Browsers then send no cookies."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=METHODS,
        # Any header: protocols have their own, such as `MCP-Protocol-Version`, and without cookies none is dangerous.
        allow_headers=["*"],
        expose_headers=["WWW-Authenticate"],
    )


def build_app(
    table: Sequence[RouteRow],
    access: Access,
    *,
    names: Sequence[str],
    limits: Limits,
    before: Sequence[Middleware] = (),
    origins: Sequence[str] = (),
    with_cookies: bool = True,
) -> Starlette:
    """Return an application with the routes of a table, whose requests pass `before` and the `Guard`."""
    public = {row.path for row in table if row.role == "public"}
    bodies = {row.path.partition("{")[0]: row.accepts for row in table if row.accepts}
    guard = Middleware(
        Guard,
        access=access,
        names=names,
        limits=limits,
        public=public,
        bodies=bodies,
        origins=origins,
        with_cookies=with_cookies,
    )
    app = Starlette(
        routes=build_routes(table),
        middleware=[*before, guard],
        exception_handlers=dict.fromkeys((RequestRefused, HTTPException, RPCError, *STATUSES), _refuse),
    )
    app.state.table = table
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    return format_refusal(request.scope, to_refused(error))


def make_access(
    settings: WebSettings,
    gatekeeper: Gatekeeper,
    *,
    announce: Callable[[str], None] | None = None,
    cookie: str = "waystation",
) -> Access:
    """Return the logins of an application. With `announce`, which gets login links, people need no login elsewhere.

    Raises:
        NotSafeToServe: Nobody could log in, anyone could, or the access token is too short.
    """
    if settings.find_person is None:
        check_provider(gatekeeper, allow_any_account=settings.allow_any_account)
        if announce is None and gatekeeper.oidc is None:
            raise NotSafeToServe(
                "Nobody could log in. Set `find_person` in the settings, which returns the person that your "
                "application has logged in, or `identity`, with a file that has the section [oidc]."
            )
    return Access(
        announce=announce or (lambda _link: None),
        token=settings.token,
        cookie=cookie,
        person=settings.person or "",
        secure=(settings.url or "").startswith("https://"),
        url=settings.url,
        gatekeeper=gatekeeper,
        limits=settings.limits,
        is_local=announce is not None and not settings.names,
        find_person=settings.find_person,
        login_url=settings.login_url,
        logout_url=settings.logout_url,
    )


async def serve(
    create: Callable[[Access], Starlette],
    settings: WebSettings,
    *,
    namespace: str,
    announce: Callable[[str], None],
    remark: Callable[[str], None],
    host: str,
    port: int,
    gatekeeper: Gatekeeper | None = None,
) -> None:
    """Run a web server until the process receives SIGINT or SIGTERM.

    Args:
        create: Returns the application with these logins.
        settings: The settings. Those of the host of an application do not count here.
        namespace: The Temporal namespace that links to calls must name.
        announce: Called with a phrase that contains each new login link. With a provider, only called if
            `settings.person` is set.
        remark: Called with a sentence that contains the address that the server listens on.
        host: Address to listen on.
        port: Port to listen on, or 0 for any free port.
        gatekeeper: Identifies people. By default, the one of the identity file in the settings.

    Raises:
        CannotServe: The port is taken, or a library is missing.
        NotSafeToServe: Other machines could reach the server without a login, anyone could log in, or the access token
            is too short.
        InvalidConfiguration: The identity file is invalid.
    """
    gatekeeper = gatekeeper or _load_gatekeeper(settings.identity, namespace)
    has_provider = gatekeeper.oidc is not None
    check_host(host, names=settings.names, provider=has_provider)
    check_provider(gatekeeper, allow_any_account=settings.allow_any_account)
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{number}"

    def announce_path(path: str) -> None:
        # With a provider, do not print a link: its readers would get an identity that the provider never checked.
        if settings.person or not has_provider:
            announce(f"log in a browser once with {(settings.url or address).rstrip('/')}{path}")

    access = make_access(settings, gatekeeper, announce=announce_path, cookie=f"waystation-{number}")
    await _run(
        create(access),
        listening,
        behind_proxy=settings.url is not None,
        ready=lambda: remark(f"Serving at {address}; Ctrl-C ends it."),
    )


def _load_gatekeeper(identity: str | Path | None, namespace: str) -> Gatekeeper:
    try:
        return Gatekeeper.from_file(identity, namespace, interface="web") if identity else Gatekeeper(interface="web")
    except ModuleNotFoundError as error:
        text = f"The identity file needs {error.name!r}. Install it with: pip install 'waystation[identity]'"
        raise WebUnavailable(text) from None


def _listen(host: str, port: int) -> socket.socket:
    family, dual = (socket.AF_INET6, socket.has_dualstack_ipv6()) if ":" in host else (socket.AF_INET, False)
    try:
        return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=dual)
    except OSError as error:
        remedy = "choose another with --port, or --port 0"
        raise WebUnavailable(f"Cannot listen at {host}:{port}: {error.strerror or error}; {remedy}.") from None


class _Server(uvicorn.Server):
    """A server that reports that it is ready only once it handles signals, because an earlier SIGTERM would be lost."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving, and report that the server is ready."""
        await super().startup(sockets)
        self._ready()


async def _run(app: Starlette, listening: socket.socket, *, behind_proxy: bool, ready: Callable[[], None]) -> None:
    # At level DEBUG, sse_starlette would log the events that it sends.
    logging.getLogger("sse_starlette").setLevel(logging.INFO)
    # The SDK logs what it cannot parse, or, at level DEBUG, everything: texts, arguments and the tokens of programs.
    logging.getLogger("a2a").setLevel(logging.CRITICAL + 1)
    # After shutting down, uvicorn raises the signal again for the previous handler. Install one that does nothing.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with listening:
        await _Server(configure(app, behind_proxy=behind_proxy), ready).serve(sockets=[listening])


def configure(app: Starlette, *, behind_proxy: bool = False, limits: Limits | None = None) -> uvicorn.Config:
    """Return uvicorn's configuration. Behind a proxy, connections are not limited by address."""
    return uvicorn.Config(
        app,
        http=make_protocol(limits or Limits(), per_address=not behind_proxy),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # Behind a proxy, rate limits have to use the client addresses that the proxy reports.
        proxy_headers=behind_proxy,
        forwarded_allow_ips=os.environ.get(PROXIES, "127.0.0.1,::1"),
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_S,
        limit_concurrency=1_000,
    )
