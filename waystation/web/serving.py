"""Listen, and serve the web application until the process is asked to end."""

import logging
import os
import signal
import socket
from collections.abc import Sequence

import uvicorn

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.client.agent_client import AgentClient
from waystation.web.app import create_app
from waystation.web.security import Access, NotSafeToServe, check_place

TOKEN = "WAYSTATION_WEB_TOKEN"  # the name of a variable
DRAIN_S = 2


async def serve(client: AgentClient, *, host: str, port: int, names: Sequence[str]) -> Exit:
    """Serve until the process is asked to end.

    Raises:
        Problem: The port is taken, or it would not be safe.
    """
    out = Output()
    token = os.environ.get(TOKEN) or None
    try:
        check_place(host, token=token, names=names)
        listening = _listening(host, port)
        number = listening.getsockname()[1]
        shown = f"http://{f'[{host}]' if ':' in host else host}:{number}"
        access = Access(
            token=token,
            cookie=f"waystation-{number}",
            told=lambda path: out.line(f"log in a browser once with {shown}{path}"),
        )
    except NotSafeToServe as error:
        raise Problem(Exit.USAGE, str(error)) from None
    # At its lowest level it would log what is sent.
    logging.getLogger("sse_starlette").setLevel(logging.INFO)
    config = uvicorn.Config(
        create_app(client, access, names=names),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_S,
        limit_concurrency=1_000,
    )
    out.remark(f"Serving at {shown}; Ctrl-C ends it.")
    # Once it has ended, uvicorn gives each signal to whoever had it before. For this program, to end was all it asked.
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, lambda *_: None)
    with listening:
        await uvicorn.Server(config).serve(sockets=[listening])
    return Exit.OK


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        result = socket.socket(family, socket.SOCK_STREAM)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        result.bind(address)
        result.listen(128)
    except OSError as error:
        remedy = "choose another with --port, or --port 0"
        raise Problem(Exit.USAGE, f"Cannot listen at {host}:{port}: {error.strerror or error}; {remedy}.") from None
    return result
