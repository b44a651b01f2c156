"""A web server on its own port, and browsers that are logged in to it."""

import asyncio
import contextlib
import html
import re
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx2 as httpx
import uvicorn

from waystation.approvers import Gatekeeper
from waystation.client.agent_client import AgentClient, Invocation
from waystation.web.access import Access
from waystation.web.invocation_pages import InvocationPages
from waystation.web.route_table import RouteRow
from waystation.web.server import configure, create_app
from waystation.web.web_settings import WebSettings

TOKEN = "a-token-of-a-test-that-is-long-enough"


class Site:
    """A web server on its own port."""

    def __init__(self, url: str, links: list[str], invocations: InvocationPages, table: list[RouteRow]) -> None:
        self.url, self.links, self.invocations, self.table = url, links, invocations, table

    def program(self, **headers: str) -> httpx.AsyncClient:
        """Return a program with the token."""
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}", **headers})

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator["Browser"]:
        """Return a browser that is logged in."""
        async with httpx.AsyncClient(base_url=self.url, headers={"Accept": "text/html"}, timeout=30) as http:
            await http.get(self.links[-1])
            yield Browser(http)


class Browser:
    """A client that opens pages and sends their forms, like a browser."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def page(self, path: str) -> httpx.Response:
        """Open a page."""
        return await self.http.get(path)

    async def fields(self, path: str) -> dict[str, str]:
        """Return the hidden fields of the first form of answers on a page."""
        return hidden((await self.page(path)).text)

    async def send(
        self, path: str, fields: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a form and follow to the page that it leads to."""
        body = urlencode(fields, doseq=True)
        sent = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self.http.post(path, content=body, headers=sent, follow_redirects=True)


def hidden(page: str) -> dict[str, str]:
    """Return the hidden fields of a page. Of several with one name, the last is in the answer form."""
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in fields}


def path_of(approval_id: str) -> str:
    """Return the path of a call's page."""
    return f"/approvals/{quote(approval_id, safe='')}"


def page_of(invocation: Invocation) -> str:
    """Return the path of an invocation's page."""
    return f"/invocations/{quote(invocation.id, safe='')}"


@contextlib.asynccontextmanager
async def site(
    client: AgentClient,
    *,
    person: str = "dana",
    url: str | None = None,
    gatekeeper: Gatekeeper | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    """Serve the web application."""
    links: list[str] = []
    is_local = not options.get("names")
    access = Access(
        announce=links.append, token=TOKEN, person=person, url=url, gatekeeper=gatekeeper, is_local=is_local
    )
    hosts = options.pop("names", ())
    app = create_app(client, WebSettings(url=url, hosts=hosts, **options), access)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(configure(app, limits=options.get("limits")))
        serving = asyncio.create_task(server._serve([listening]))
        try:
            yield Site(f"http://127.0.0.1:{listening.getsockname()[1]}", links, app.state.invocations, app.state.table)
        finally:
            server.should_exit = True
            await serving
