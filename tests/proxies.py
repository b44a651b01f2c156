"""Forward connections of tests, to direct, observe and lose them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

from waystation.embedded import HOST


async def forward_all(data: bytes) -> bytes:
    """Change nothing."""
    return data


@asynccontextmanager
async def forwarding(
    connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
    take: Callable[[bytes], Awaitable[bytes]] = forward_all,
) -> AsyncIterator[str]:
    """Forward connections to those that `connect` opens. Yield the address to use, as host and port.

    `take` transforms the data of either side. At the end, it receives an empty value. If it raises an `OSError`, the
    connection is lost.
    """

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while not reader.at_eof():
                writer.write(await take(await reader.read(1 << 16)))
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            upstream_reader, upstream_writer = await connect()
            with closing(upstream_writer):
                pipes = [pipe(reader, upstream_writer), pipe(upstream_reader, writer)]
                _, open_pipes = await asyncio.wait(
                    [asyncio.ensure_future(pipe) for pipe in pipes], return_when=asyncio.FIRST_COMPLETED
                )
                for each in open_pipes:
                    each.cancel()

    listener = await asyncio.start_server(serve, HOST, 0)
    try:
        yield f"{HOST}:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
