"""The commands `waystation worker`, `web`, `setup` and `identity`: run and set up workers and the web application."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import AsJson, AsyncCommand, CommandContext, Exit, Problem, create_command_group
from waystation.client import (
    SEARCH_ATTRIBUTE_TYPES,
    AgentClient,
    add_search_attributes,
    fetch_search_attributes,
    find_store_differences,
)
from waystation.core import SEARCH_ATTRIBUTES
from waystation.storage import StoreIds
from waystation.worker_keys import WorkerKeys

worker = typer.Typer(add_completion=False, rich_markup_mode=None)
identity = create_command_group("Set up the keys that approvers use to prove their identity.")


@worker.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_agents(ctx: typer.Context) -> None:
    """Serve agents with `waystation worker --agents DIR`. `waystation worker --help` lists the options."""
    from waystation.worker.main import main as serve  # slow to import, because it loads agents and tools

    target = ctx.obj
    options = {
        "--address": target.address,
        "--namespace": target.namespace,
        "--profile": target.profile,
        "--store": target.store,
        "--task-queue": target.task_queue,
    }
    global_args = [part for name, value in options.items() if value is not None for part in (name, value)]
    raise typer.Exit(serve([*ctx.args, *global_args], program="waystation worker"))


async def web(
    ctx: CommandContext,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, or 0 for any free port.", min=0, max=65_535)] = 8288,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name of the web application. Can be repeated."),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="NAME", help="Name to record for the person who opens the login link. Default: login name."
        ),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="WAYSTATION_IDENTITY", help="Identity file with the keys and the login provider."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Public URL of the web application, for example if it is behind a proxy."),
    ] = None,
    allow_any_account: Annotated[
        bool,
        typer.Option(
            "--allow-any-account", help="Start even if anyone with an account at a public login provider can log in."
        ),
    ] = False,
    temporal_ui: Annotated[
        str | None, typer.Option(metavar="URL", help="URL of the Temporal Web UI, for links to it.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Do not start if --store differs from the store of open invocations.")
    ] = False,
) -> Exit:
    """Serve the web application: the inbox of pending calls, timelines of invocations, and the API.

    Users log in once per browser, with the printed link or through the login provider in the identity file. Programs
    send the header `Authorization: Bearer TOKEN`, where TOKEN is the value of the environment variable
    WAYSTATION_WEB_TOKEN that you set for this process.
    """
    client = await ctx.connect()
    try:
        from waystation.web.access import NotSafeToServe
        from waystation.web.server import CannotServe, serve
    except ModuleNotFoundError as error:
        raise _missing_extra("web", error) from None
    for name, address in (("--url", url), ("--temporal-ui", temporal_ui)):
        if address is not None and not address.startswith(("https://", "http://")):
            raise Problem(Exit.USAGE, f"{name} {address!r} is not a valid URL. It must start with https:// or http://.")
    if url is not None and not _is_origin(url):
        raise Problem(
            Exit.USAGE,
            f"--url {url!r} is not a valid URL here. Use a host without a path, such as https://approvals.example.com.",
        )
    await _compare_store(ctx, client, strict=strict)
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
            allow_any_account=allow_any_account,
        )
    except (CannotServe, NotSafeToServe) as error:
        raise Problem(Exit.USAGE, str(error)) from None
    return Exit.OK


async def _compare_store(ctx: CommandContext, client: AgentClient, *, strict: bool) -> None:
    """Write a remark if the payload store differs from the one that open invocations recorded.

    Raises:
        Problem: The store differs, and `strict` is true.
    """
    ids = StoreIds(payloads=client.blobs.files)
    for problem in await find_store_differences(client.temporal, client.task_queue, ids):
        if strict:
            raise Problem(Exit.USAGE, problem)
        ctx.out.remark(problem)


def _is_origin(url: str) -> bool:
    """Return whether a URL has only a scheme, a host in the form that browsers send, and optionally a port."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    authority = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    is_whole = url.lower().removesuffix("/") == f"{parts.scheme}://{authority}"
    return bool(host) and host.isascii() and " " not in host and is_whole


async def setup(ctx: CommandContext, json: AsJson = False) -> Exit:
    """Create the search attributes that lists of calls and sessions need in a namespace.

    It is safe to run this command more than once.
    """
    client = await ctx.connect()
    namespace = client.temporal.namespace
    try:
        existing = await fetch_search_attributes(client.temporal)
        for name, kind in SEARCH_ATTRIBUTES.items():
            if existing.get(name, SEARCH_ATTRIBUTE_TYPES[name]) != SEARCH_ATTRIBUTE_TYPES[name]:
                raise Problem(
                    Exit.FAILED,
                    f"The search attribute {name!r} in namespace {namespace!r} must have the type {kind}. Remove or "
                    "rename the existing one with `temporal operator search-attribute`.",
                )
        missing = [name for name in SEARCH_ATTRIBUTE_TYPES if name not in existing]
        if missing:
            await add_search_attributes(client.temporal, missing)
    except RPCError as error:
        if error.status not in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED):
            raise
        names = ", ".join(f"{name} ({kind})" for name, kind in SEARCH_ATTRIBUTES.items())
        raise Problem(
            Exit.NOT_ALLOWED,
            f"This server does not let clients create search attributes ({error.message}). Create them with the "
            f"server's own tools (in Temporal Cloud, with `tcld` or the Web UI): {names}.",
        ) from None
    ctx.out.result(
        {
            "namespace": namespace,
            "created": missing,
            "present": [name for name in SEARCH_ATTRIBUTES if name not in missing],
        },
        f"Created in namespace {namespace}: {', '.join(missing)}. Running workers use them after a few seconds."
        if missing
        else f"Namespace {namespace} already has all search attributes.",
    )
    return Exit.OK


@identity.command(cls=AsyncCommand)
async def init(
    ctx: CommandContext,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to create the files in. Existing files are not overwritten.")
    ],
    json: AsJson = False,
) -> Exit:
    """Create keys and example configuration files for workers, `waystation web` and clients."""
    try:
        from waystation.identity import write_examples
    except ModuleNotFoundError as error:
        raise _missing_extra("identity", error) from None
    files = [str(file) for file in write_examples(folder)]
    ctx.out.result({"files": files}, "\n".join(files))
    if not json:
        ctx.out.remark("Each .toml file names the programs that need it. Files with mode 0600 must be kept secret.")
    return Exit.OK


@identity.command(cls=AsyncCommand)
async def keys(
    ctx: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create.")],
    json: AsJson = False,
) -> Exit:
    """Create a file with a new key that all workers of a namespace share."""
    try:
        WorkerKeys.generate().create(file)
    except OSError as error:
        raise Problem(Exit.USAGE, f"{file} cannot be created: {error.strerror}.") from None
    ctx.out.result({"file": str(file)}, str(file))
    if not json:
        ctx.out.remark("Start all workers with --keys, and keep this file secret.")
    return Exit.OK


def _missing_extra(extra: str, error: ModuleNotFoundError) -> Problem:
    return Problem(
        Exit.USAGE,
        f"`waystation {extra}` needs the package {error.name!r}. Install it with: pip install 'waystation[{extra}]'",
    )
