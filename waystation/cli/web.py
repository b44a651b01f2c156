"""`waystation web`: its options. What it serves is in `waystation.web`, for which the extra `web` is needed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from waystation.cli.command import run_command

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient


def web(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65_535)] = 8288,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further name under which it is reached.")
    ] = None,
    person: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Who opens the login link. Default: your login name.")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="WAYSTATION_IDENTITY", help="With which keys it vouches for people."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Under which address people reach it, such as behind a proxy.")
    ] = None,
    temporal_ui: Annotated[
        str | None, typer.Option(metavar="URL", help="The Temporal Web UI, to which pages link.")
    ] = None,
) -> None:
    """Serve what happens in invocations, and the inbox of what waits for people, over HTTP.

    Browsers log in once with the link that is printed, or at the provider that the identity file names.
    Programs send `Authorization: Bearer TOKEN`, with the token that is in WAYSTATION_WEB_TOKEN here.
    """
    from waystation.cli.exits import Exit, Problem

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        try:
            from waystation.web.security import NotSafeToServe
            from waystation.web.server import CannotServe, serve
        except ModuleNotFoundError as error:
            text = f"`waystation web` needs {error.name!r}; install it with: pip install 'waystation[web]'"
            raise Problem(Exit.USAGE, text) from None
        for name, address in (("--url", url), ("--temporal-ui", temporal_ui)):
            if address is not None and not address.startswith(("https://", "http://")):
                raise Problem(Exit.USAGE, f"{name} is {address!r}; give an address that begins with https://.")
        if url is not None and not _is_place(url):
            text = f"--url is {url!r}; give a host and no path, such as https://approvals.example.com."
            raise Problem(Exit.USAGE, text)
        try:
            await serve(
                client,
                announce=out.line,
                remark=out.remark,
                host=host,
                port=port,
                names=allow_host or (),
                person=person,
                temporal_ui=temporal_ui,
                identity=identity,
                url=url,
            )
        except (CannotServe, NotSafeToServe) as error:
            raise Problem(Exit.USAGE, str(error)) from None
        return Exit.OK

    run_command(ctx, action, json=False)


def _is_place(url: str) -> bool:
    """Whether an address names a host as browsers send it, perhaps a port, and nothing else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    named = f"[{host}]" if ":" in host else host
    whole = f"{parts.scheme}://{named}{'' if port is None else f':{port}'}"
    return bool(host) and host.isascii() and " " not in host and url.lower().removesuffix("/") == whole
