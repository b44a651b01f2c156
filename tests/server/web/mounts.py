"""The web application below a path of another application, which has a login of its own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.server.web.sites import Site
from waystation.approvers import ROLES
from waystation.client.agent_client import AgentClient
from waystation.core.approval import Verified
from waystation.web import HostPerson, WebSettings, create_app
from waystation.web.server import configure

ROOT = "/tools/desk"
PEOPLE: Mapping[str, HostPerson] = {
    "dana": HostPerson("Dana", Verified(subject="dana"), roles=ROLES),
    "ivan": HostPerson("Ivan", Verified(subject="ivan")),
    "erin": HostPerson("Erin", Verified(subject="erin")),
    "name-only": HostPerson("dana", roles=ROLES),
}
"""The people by the host's cookie. Nobody has proved that the last one is Dana."""


async def find_person(request: Request) -> HostPerson | None:
    """Return the person whose name is in the host's cookie."""
    return PEOPLE.get(request.cookies.get("host", ""))


def in_fastapi(app: ASGIApp) -> ASGIApp:
    """Mount an application in one of FastAPI."""
    host = FastAPI()
    host.mount(ROOT, app)
    return host


def in_starlette(app: ASGIApp) -> ASGIApp:
    """Mount an application in one of Starlette, which another one contains."""
    return Starlette(routes=[Mount("/tools", Starlette(routes=[Mount("/desk", app)]))])


def in_django(app: ASGIApp) -> ASGIApp:
    """Mount an application beside one of Django, as `asgi.py` does."""
    conf = pytest.importorskip("django.conf")
    if not conf.settings.configured:
        conf.settings.configure(DEFAULT_CHARSET="utf-8")
    django = pytest.importorskip("django.core.handlers.asgi").ASGIHandler()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{ROOT}/"):
            return await app({**scope, "root_path": ROOT}, receive, send)
        await django(scope, receive, send)

    return application


HOSTS = {"fastapi": in_fastapi, "starlette": in_starlette, "django": in_django}


@contextlib.asynccontextmanager
async def mounted(client: AgentClient, host: str = "fastapi", **settings: Any) -> AsyncIterator[Site]:
    """Serve the web application in another one. The URL of the site contains the path."""
    app = create_app(client, WebSettings(**{"find_person": find_person, **settings}))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(configure(HOSTS[host](app)))  # type: ignore[arg-type]  # any application
        serving = asyncio.create_task(server._serve([listening]))
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}{ROOT}"
            yield Site(url, ["/"], app.state.invocations, app.state.table)
        finally:
            server.should_exit = True
            await serving
