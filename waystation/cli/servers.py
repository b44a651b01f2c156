"""`waystation worker`, `web`, `setup` and `identity`: run and set up what serves agents and the people who answer."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import AsJson, AsyncCommand, CommandContext, Exit, Problem, command_group
from waystation.client import SEARCH_ATTRIBUTE_TYPES, add_search_attributes, fetch_search_attributes
from waystation.core import SEARCH_ATTRIBUTES

worker = typer.Typer(add_completion=False, rich_markup_mode=None)
identity = command_group("Set up who may answer, and how they prove it.")


@identity.callback()
def _identity() -> None:
    """Keeps the group a group while it has one command."""


@worker.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_agents(ctx: typer.Context) -> None:
    """Serve agents: `waystation worker --agents DIR`; `waystation worker --help` lists the options."""
    from waystation.worker.main import main as serve  # loads agents and tools

    target = ctx.obj
    passed = {
        "--address": target.address,
        "--namespace": target.namespace,
        "--profile": target.profile,
        "--store": target.store,
        "--task-queue": target.task_queue,
    }
    options = [part for name, value in passed.items() if value is not None for part in (name, value)]
    raise typer.Exit(serve([*ctx.args, *options], program="waystation worker"))


async def web(
    ctx: CommandContext,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65_535)] = 8288,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name under which people reach it.")
    ] = None,
    person: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Who opens the login link. Default: your login name.")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="WAYSTATION_IDENTITY", help="With which keys it vouches for people."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address under which people reach it, such as behind a proxy.")
    ] = None,
    temporal_ui: Annotated[
        str | None, typer.Option(metavar="URL", help="The Temporal Web UI, to which pages link.")
    ] = None,
) -> Exit:
    """Serve what happens in invocations, and the inbox of what waits for people, over HTTP.

    Browsers log in once with the link that is printed, or at the provider that the identity file names.
    Programs send `Authorization: Bearer TOKEN`, with the token that is in WAYSTATION_WEB_TOKEN here.
    """
    client = await ctx.connect()
    try:
        from waystation.web.security import NotSafeToServe
        from waystation.web.server import CannotServe, serve
    except ModuleNotFoundError as error:
        raise _missing_extra("web", error) from None
    for name, address in (("--url", url), ("--temporal-ui", temporal_ui)):
        if address is not None and not address.startswith(("https://", "http://")):
            raise Problem(Exit.USAGE, f"{name} is {address!r}; give an address that begins with https://.")
    if url is not None and not _is_origin(url):
        text = f"--url is {url!r}; give a host and no path, such as https://approvals.example.com."
        raise Problem(Exit.USAGE, text)
    try:
        await serve(
            client,
            announce=ctx.out.line,
            remark=ctx.out.remark,
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


def _is_origin(url: str) -> bool:
    """Whether an address names a host as browsers send it, perhaps a port, and nothing else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    named = f"[{host}]" if ":" in host else host
    whole = f"{parts.scheme}://{named}{'' if port is None else f':{port}'}"
    return bool(host) and host.isascii() and " " not in host and url.lower().removesuffix("/") == whole


async def setup(ctx: CommandContext, json: AsJson = False) -> Exit:
    """Create the search attributes by which invocations are found. May be repeated."""
    client = await ctx.connect()
    namespace = client.temporal.namespace
    try:
        existing = await fetch_search_attributes(client.temporal)
        for name, kind in SEARCH_ATTRIBUTES.items():
            if existing.get(name, SEARCH_ATTRIBUTE_TYPES[name]) != SEARCH_ATTRIBUTE_TYPES[name]:
                raise Problem(
                    Exit.FAILED,
                    f"The search attribute {name!r} of namespace {namespace!r} is of another type than {kind}; "
                    "remove or rename it with `temporal operator search-attribute`.",
                )
        missing = [name for name in SEARCH_ATTRIBUTE_TYPES if name not in existing]
        if missing:
            await add_search_attributes(client.temporal, missing)
    except RPCError as error:
        if error.status not in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED):
            raise
        needed = ", ".join(f"{name} ({kind})" for name, kind in SEARCH_ATTRIBUTES.items())
        raise Problem(
            Exit.NOT_ALLOWED,
            f"This server does not let clients create search attributes ({error.message}). Create them as its "
            f"operator does, in Temporal Cloud with `tcld` or the Web UI: {needed}.",
        ) from None
    present = [name for name in SEARCH_ATTRIBUTES if name not in missing]
    created = f"Created in namespace {namespace}: {', '.join(missing)}. Restart workers that run already."
    ctx.out.result(
        {"namespace": namespace, "created": missing, "present": present},
        created if missing else f"Namespace {namespace} has all search attributes already.",
    )
    return Exit.OK


@identity.command(cls=AsyncCommand)
async def init(
    ctx: CommandContext,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are put; nothing is overwritten.")],
    json: AsJson = False,
) -> Exit:
    """Make keys, and examples of the configurations of workers, of `waystation web` and of clients."""
    try:
        from waystation.identity import write_examples
    except ModuleNotFoundError as error:
        raise _missing_extra("identity", error) from None
    files = [str(file) for file in write_examples(folder)]
    ctx.out.result({"files": files}, "\n".join(files))
    if not json:
        ctx.out.remark("Each .toml says who needs it. Keep what only you may read (0600) where only they can.")
    return Exit.OK


def _missing_extra(extra: str, error: ModuleNotFoundError) -> Problem:
    text = f"`waystation {extra}` needs {error.name!r}; install it with: pip install 'waystation[{extra}]'"
    return Problem(Exit.USAGE, text)
