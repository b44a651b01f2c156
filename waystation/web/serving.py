"""Listen, and serve the web application until the process is asked to end."""

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn

from waystation.client import AgentClient
from waystation.core.errors import WaystationError
from waystation.web.app import create_app
from waystation.web.security import Access, check_place

if TYPE_CHECKING:
    from waystation.web.vouching import Gatekeeper

TOKEN = "WAYSTATION_WEB_TOKEN"  # the name of a variable
PROXIES = "FORWARDED_ALLOW_IPS"  # uvicorn's name for it
DRAIN_S = 2


class CannotServe(WaystationError):
    """The server did not start."""


async def serve(
    client: AgentClient,
    *,
    announce: Callable[[str], None],
    remark: Callable[[str], None],
    host: str,
    port: int,
    names: Sequence[str],
    person: str | None = None,
    temporal_ui: str | None = None,
    identity: Path | None = None,
    url: str | None = None,
) -> None:
    """Serve until the process is asked to end.

    Args:
        client: Connected to the namespace.
        announce: Receives the login link.
        remark: Receives the address at which it serves.
        host: Where to listen.
        port: 0 for any that is free.
        names: Further names under which it is reached.
        person: Who opens the login link; the user of the operating system unless given.
        temporal_ui: Address of the Temporal Web UI.
        identity: Configuration by which it vouches for people.
        url: Address under which people reach it.

    Raises:
        CannotServe: The port is taken, or a library is missing.
        NotSafeToServe: Others could use it.
        InvalidConfiguration: The identity file has a mistake.
    """
    token = os.environ.get(TOKEN) or None
    gatekeeper = _gatekeeper(identity, client.temporal.namespace)
    names = [*names, *([urlsplit(url).hostname or ""] if url else [])]
    check_place(host, token=token, names=names, provider=bool(gatekeeper and gatekeeper.oidc))
    listening = _listening(host, port)
    number = listening.getsockname()[1]
    shown = f"http://{f'[{host}]' if ':' in host else host}:{number}"
    access = Access(
        token=token,
        cookie=f"waystation-{number}",
        person=person or "",
        secure=bool(url and url.startswith("https://")),
        told=(lambda path: announce(f"log in a browser once with {(url or shown).rstrip('/')}{path}"))
        # Who reads what a server writes would have an identity besides the one at the provider.
        if person or not (gatekeeper and gatekeeper.oidc)
        else lambda _: None,
    )
    # At its lowest level it would log what is sent.
    logging.getLogger("sse_starlette").setLevel(logging.INFO)
    config = uvicorn.Config(
        create_app(client, access, names=names, temporal_ui=temporal_ui, gatekeeper=gatekeeper, url=url),
        log_config=None,
        access_log=False,
        server_header=False,
        # Behind a proxy the addresses of clients are what it says; each is slowed by itself when it comes too often.
        proxy_headers=url is not None,
        forwarded_allow_ips=os.environ.get(PROXIES, "127.0.0.1,::1"),
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_S,
        limit_concurrency=1_000,
    )
    remark(f"Serving at {shown}; Ctrl-C ends it.")
    # Once it has ended, uvicorn gives each signal to whoever had it before. For this program, to end was all it asked.
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, lambda *_: None)
    with listening:
        await uvicorn.Server(config).serve(sockets=[listening])


def _gatekeeper(identity: Path | None, namespace: str) -> "Gatekeeper | None":
    if identity is None:
        return None
    try:
        from waystation.web.vouching import Gatekeeper
    except ModuleNotFoundError as error:
        text = f"--identity needs {error.name!r}; install it with: pip install 'waystation[identity]'"
        raise CannotServe(text) from None
    return Gatekeeper.of(identity, namespace)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        result = socket.socket(family, socket.SOCK_STREAM)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        result.bind(address)
        result.listen(128)
    except OSError as error:
        remedy = "choose another with --port, or --port 0"
        raise CannotServe(f"Cannot listen at {host}:{port}: {error.strerror or error}; {remedy}.") from None
    return result
