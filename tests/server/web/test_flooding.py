"""Many connections, slow requests and many streams shut nobody out. The requests are sent over raw sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.server.web.sites import TOKEN, Site, page_of, site
from waystation.agents import Agent
from waystation.testing import ScriptedModel
from waystation.web.limits import Limits

HALF_HEAD = "GET /approvals HTTP/1.1\r\nHost: {host}\r\nX-Slow: "
HALF_BODY = (
    "POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    "Content-Length: 1000\r\n\r\nhalf="
)
WHOLE = "GET /approvals HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer " + TOKEN + "\r\n\r\n"
FLOOD = 1_010
LIMIT_S = 10.0


class Sockets:
    """Raw connections to a site, which are all closed at the end."""

    def __init__(self, web: Site) -> None:
        self._place = urlsplit(web.url)
        self._writers: list[asyncio.StreamWriter] = []

    async def send(self, text: str, address: str = "127.0.0.1") -> asyncio.StreamReader:
        """Connect from an address of this machine, and send the beginning of a request."""
        reader, writer = await asyncio.open_connection(self._place.hostname, self._place.port, local_addr=(address, 0))
        self._writers.append(writer)
        writer.write(text.format(host=self._place.netloc).encode())
        return reader

    def drip(self) -> None:
        """Send one more byte on the newest connection."""
        self._writers[-1].write(b"x")

    async def status(self, address: str = "127.0.0.1") -> int:
        """Return the status with which a whole request is answered."""
        reader = await self.send(WHOLE, address)
        async with asyncio.timeout(LIMIT_S):
            return int((await reader.readline()).split()[1])

    def close(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def attacked(serve: Serve, limits: Limits) -> AsyncIterator[Sockets]:
    """Serve a site with these limits."""
    agent = Agent(name="speaker", model=ScriptedModel())
    async with serve(agent) as env, site(env.client, limits=limits) as web:
        sockets = Sockets(web)
        try:
            yield sockets
        finally:
            sockets.close()


@pytest.mark.parametrize("half", [HALF_HEAD, HALF_BODY, ""])
async def test_half_sent_requests_shut_nobody_out(serve: Serve, half: str) -> None:
    """1,010 connections that never finish a request leave the server to others, even from the same address."""
    async with attacked(serve, Limits()) as sockets:
        for _ in range(FLOOD):
            await sockets.send(half)
        assert await sockets.status() == 200
        assert await sockets.status("127.0.0.2") == 200


async def test_half_sent_requests_of_many_addresses_shut_nobody_out(serve: Serve) -> None:
    """The limit of all connections replaces the oldest half-sent request, too."""
    async with attacked(serve, Limits(connections=20)) as sockets:
        readers = [await sockets.send(HALF_HEAD, f"127.0.1.{number}") for number in range(1, 31)]
        assert await sockets.status("127.0.2.1") == 200
        async with asyncio.timeout(LIMIT_S):
            assert await readers[0].read() == b""  # closed


async def test_headers_have_a_deadline_that_more_bytes_do_not_extend(serve: Serve) -> None:
    """The connection is closed without an answer."""
    async with attacked(serve, Limits(headers_s=0.2)) as sockets:
        reader = await sockets.send(HALF_HEAD)

        async def drip() -> None:
            while True:
                sockets.drip()
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(LIMIT_S):
                with contextlib.suppress(ConnectionResetError):  # a byte arrived after the end
                    assert await reader.read() == b""
        finally:
            dripping.cancel()


async def test_a_body_has_a_deadline(serve: Serve) -> None:
    """The response asks the client to send the request again, and closes the connection."""
    async with attacked(serve, Limits(body_s=0.2)) as sockets:
        reader = await sockets.send(HALF_BODY.replace("/login", "/logout"))
        async with asyncio.timeout(LIMIT_S):
            head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
        assert head.split()[1] == b"401"
        assert b"connection: close" in head.lower()


async def test_active_connections_of_one_address_are_limited_and_never_interrupted(serve: Serve) -> None:
    """A new connection over the limit is closed if all others are being answered."""
    model = Held("late")
    limits = Limits(connections_per_address=3)
    async with serve(Agent(name="speaker", model=model)) as env, site(env.client, limits=limits) as web:
        invocation = await env.client.start("speaker", "go")
        sockets = Sockets(web)
        stream = WHOLE.replace("/approvals", f"{page_of(invocation)}/events")
        stream = stream.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        try:
            readers = [await sockets.send(stream) for _ in range(3)]
            assert [(await reader.readline()).split()[1] for reader in readers] == [b"200"] * 3
            with pytest.raises((ConnectionResetError, IndexError)):
                await sockets.status()
            assert await sockets.status("127.0.0.2") == 200
            assert web.invocations.open_streams == 3
            model.go_on.set()
            async with asyncio.timeout(LIMIT_S):
                assert b"event: end" in await readers[0].read()
        finally:
            model.go_on.set()
            sockets.close()
            await invocation.result()


async def test_one_login_cannot_hold_all_streams(serve: Serve) -> None:
    """Streams are limited per login, and another browser still gets one."""
    model = Held("late")
    limits = Limits(streams_per_login=2)
    async with (
        serve(Agent(name="speaker", model=model)) as env,
        site(env.client, limits=limits) as web,
        web.browser() as greedy,
        web.browser() as other,
        contextlib.AsyncExitStack() as streams,
    ):
        invocation = await env.client.start("speaker", "go")
        path = f"{page_of(invocation)}/events"
        statuses = []
        for me in (greedy, greedy, greedy, other):
            response = await streams.enter_async_context(me.http.stream("GET", path))
            statuses.append(response.status_code)
        model.go_on.set()
        assert statuses == [200, 200, 429, 200]
        await invocation.result()
        await streams.aclose()
        async with asyncio.timeout(30):
            while web.invocations.open_streams:
                await asyncio.sleep(0.01)
