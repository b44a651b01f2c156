"""The commands that run and set up workers and web servers."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from temporalio.service import RPCError, RPCStatusCode
from typer.core import TyperCommand

from waystation.approvers import Gatekeeper
from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit, missing_extra
from waystation.cli.command_execution import AsyncCommand, create_command_group
from waystation.cli.shell_completion import Completion
from waystation.cli.terminal_input import find_person
from waystation.client import add_search_attributes, check_search_attributes, delete_tenant_keys, wait_until_accepted
from waystation.core.contract import SEARCH_ATTRIBUTES, Stores
from waystation.extensions import load_interfaces
from waystation.key_set import EncryptionKeys, KeySet
from waystation.project_file import TRIGGERS_ENV, WEB_IDENTITY_ENV, find_identity_file, find_setting, read_quotas
from waystation.storage import (
    ENCRYPTION_VARIABLE,
    Blobs,
    ObjectFiles,
    QuotaStore,
    describe_place,
    find_cipher,
    offloading,
    probe_all,
)
from waystation.worker.process import load_worker
from waystation.worker_keys import WorkerKeys

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from waystation.approvers import Gatekeeper
    from waystation.web.access import Access
    from waystation.web.web_settings import WebSettings
    from waystation.worker import StatusServer

TOKEN = "WAYSTATION_WEB_TOKEN"  # environment variable
STORES = Stores()
"""The stores that workers use by default."""

worker = typer.Typer(add_completion=False, rich_markup_mode=None)
identity = create_command_group("Set up the keys that approvers use to prove their identity.")
encryption = create_command_group("Set up the keys that encrypt histories and stores.")


class WorkerCommand(TyperCommand):
    """A command whose options are parsed by the worker's own program, which other programs start, too."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the options that begin with a word of the shell, with their help."""
        from waystation.worker.main import list_options

        return [Completion(name, help=text) for name, text in list_options().items() if name.startswith(incomplete)]


@worker.command(
    cls=WorkerCommand,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve_agents(ctx: typer.Context) -> None:
    """Serve agents with `waystation worker --agents DIR`. `waystation worker --help` lists the options."""
    with load_worker():
        from waystation.worker.main import main as serve  # slow to import, because it loads agents and tools

    target = ctx.obj
    options = {
        "--address": target.address,
        "--namespace": target.namespace,
        "--profile": target.profile,
        "--store": target.store,
        "--task-queue": target.task_queue,
        "--project-file": target.project_file,
    }
    global_args = [part for name, value in options.items() if value is not None for part in (name, value)]
    global_args += ["--strict"] if target.strict else []
    raise typer.Exit(serve([*ctx.args, *global_args], program="waystation worker"))


LOCAL_UIS = ("http://localhost:8233", "http://127.0.0.1:8233")
"""Addresses of the Web UI of a development server."""
_MOUNT = re.compile(r"(?<=[^/:])(/[\w.~-]+)+/?$", re.ASCII)
"""The path at the end of a URL, where a proxy or another application serves this one."""
Host = Annotated[str, typer.Option(help="Address to listen on.")]
AllowHost = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Another host name of the server. Can be repeated.")
]
Interfaces = Annotated[
    list[str] | None,
    typer.Option("--interface", metavar="NAME", help="Another protocol to serve, such as `ag-ui`. Can be repeated."),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="Origin of another site whose pages may send requests with a token. Can be repeated."
    ),
]
PersonOption = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Name to record for the person who opens the login link. Default: login name."
    ),
]
Identity = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"Identity file with the keys and the login provider. Default: ${WEB_IDENTITY_ENV}.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Public URL of the server, with its path if it has one, for example behind a proxy."
    ),
]
AllowAnyAccount = Annotated[
    bool,
    typer.Option(
        "--allow-any-account", help="Start even if anyone with an account at a public login provider can log in."
    ),
]


WebUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the web application, for links to calls that wait.")
]


async def web(
    ctx: CommandContext,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, or 0 for any free port.", min=0, max=65_535)] = 8288,
    allow_host: AllowHost = None,
    person: PersonOption = None,
    identity: Identity = None,
    url: Url = None,
    allow_any_account: AllowAnyAccount = False,
    allow_origin: AllowOrigin = None,
    interface: Interfaces = None,
    adk: Annotated[
        bool, typer.Option("--adk", help="Also serve ADK's `api_server` routes and, at /dev-ui/, its front end.")
    ] = False,
    triggers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the webhooks that start agents. Default: ${TRIGGERS_ENV}."),
    ] = None,
    temporal_ui: Annotated[
        str | None, typer.Option(metavar="URL", help="URL of the Temporal Web UI, for links to it.")
    ] = None,
    artifacts: Annotated[
        str, typer.Option(metavar="URL", help="Folder or object store where workers store artifacts.")
    ] = str(STORES.artifacts),
    visibility_rate: Annotated[
        int,
        typer.Option(metavar="N", help="Maximum number of visibility requests per second, for all pages.", min=1),
    ] = 10,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the metrics of the namespace and health checks at this address. Default host: 127.0.0.1.",
        ),
    ] = None,
) -> Exit:
    """Serve the web application: chats with agents, the inbox of pending calls, timelines, and the API.

    Users log in once per browser, with the printed link or through the login provider in the identity file. Programs
    send the header `Authorization: Bearer TOKEN`, where TOKEN is the value of the environment variable
    WAYSTATION_WEB_TOKEN that you set for this process.
    """
    with ExitStack() as stack:
        status = stack.enter_context(_create_status_server(metrics)) if metrics else None
        client = await ctx.connect()
        with _import_web():
            from waystation.web.limits import Limits
            from waystation.web.server import create_app
            from waystation.web.triggers import read_triggers
            from waystation.web.web_settings import WebSettings
        settings = WebSettings(
            url=url,
            hosts=allow_host or (),
            identity=identity or find_identity_file(WEB_IDENTITY_ENV),
            person=person,
            token=os.environ.get(TOKEN) or None,
            allow_any_account=allow_any_account,
            origins=[origin.rstrip("/") for origin in allow_origin or ()],
            temporal_ui=temporal_ui,
            artifacts=artifacts,
            limits=Limits(visibility_per_s=visibility_rate),
            usage=QuotaStore(quotas.store) if (quotas := read_quotas(None)) else None,
            interfaces=load_interfaces([*(interface or ()), *(["adk"] if adk else [])]),
            triggers=read_triggers(Path(hooks)) if (hooks := triggers or find_setting(TRIGGERS_ENV)) else {},
        )
        _check_urls(url, **{"--temporal-ui": temporal_ui})
        for origin in settings.origins:
            _check_origin("--allow-origin", origin)
        places = f"{client.blobs.files.place}, and artifacts from {describe_place(artifacts)}"
        ctx.out.remark(f"Large values are read from {places}.")
        await ctx.compare_stores(payloads=client.blobs.files)
        if status:
            files = ObjectFiles(artifacts)
            status.watch({"stores": partial(probe_all, write=(client.blobs.files,), read=(files,))})
            status.serve(client.temporal, client.task_queue)
            ctx.out.remark(f"Metrics and health checks are at {status.url}.")
        create = partial(create_app, client, settings)
        return await _serve(ctx, create, settings, client.temporal.namespace, host=host, port=port)


async def mcp(ctx: CommandContext, url: WebUrl = None) -> Exit:
    """Serve agents to one MCP client over standard input and output, in the name of the operating system user.

    Clients start this command. It proves nobody's identity, so it cannot answer calls whose policy requires one.
    """
    client = await ctx.connect()
    with _import_web():
        from waystation.web.web_services import WebServices
        from waystation.web.web_settings import WebSettings
    try:
        from waystation.interfaces.mcp_server import serve_stdio
    except ModuleNotFoundError as error:
        raise missing_extra("mcp", error) from None
    _check_urls(url)
    services = WebServices.of(client, Gatekeeper(interface="mcp", command="web"), WebSettings(url=url))
    await serve_stdio(services)
    return Exit.OK


def _create_status_server(address: str) -> "StatusServer":
    from waystation.worker import StatusServer, parse_address  # slow to import

    try:
        return StatusServer(parse_address(address))
    except ValueError as error:
        raise CommandProblem(Exit.USAGE, f"--metrics: {error}.") from None


async def chat_approvals(
    ctx: CommandContext,
    settings: Annotated[
        Path, typer.Option("--slack", metavar="FILE", help="File with the workspace, the secrets and the channels.")
    ],
    url: Annotated[
        str, typer.Option(metavar="URL", help="URL at which Slack and people's browsers reach this server.")
    ],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, or 0 for any free port.", min=0, max=65_535)] = 8290,
    allow_host: AllowHost = None,
    identity: Identity = None,
    allow_any_account: AllowAnyAccount = False,
) -> Exit:
    """Post pending calls to Slack, where people answer them with buttons.

    Each person links the Slack account once, by logging in through the provider in the identity file. Run one process
    per workspace.
    """
    try:
        from waystation.approvers.gatekeeper import CHAT, Gatekeeper
        from waystation.interfaces.slack.slack_app import SlackApp, create_server
        from waystation.interfaces.slack.slack_settings import SlackSettings
        from waystation.web.web_settings import WebSettings
    except ModuleNotFoundError as error:
        text = f"`waystation chat-approvals` needs {error.name!r}. Install it with: pip install 'waystation[slack]'"
        raise CommandProblem(Exit.USAGE, text) from None
    _check_urls(url)
    client = await ctx.connect()
    namespace = client.temporal.namespace
    file = identity or find_identity_file(WEB_IDENTITY_ENV)
    if file is None:
        raise CommandProblem(Exit.USAGE, "Pass --identity with the file for chats: `waystation identity init DIR`.")
    gatekeeper = Gatekeeper.from_file(file, namespace, interface="slack", command=CHAT)
    if gatekeeper.oidc is None:
        raise CommandProblem(Exit.USAGE, f"{file} has no section [oidc], with which people prove who they are.")
    web = WebSettings(url=url, hosts=allow_host or (), allow_any_account=allow_any_account)
    app = SlackApp(client, gatekeeper, SlackSettings.read(settings), web, url)
    board = asyncio.create_task(app.board.run())
    try:
        create = partial(create_server, app, names=web.names)
        return await _serve(ctx, create, web, namespace, host=host, port=port, gatekeeper=gatekeeper)
    finally:
        board.cancel()


async def codec_server(
    ctx: CommandContext,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, or 0 for any free port.", min=0, max=65_535)] = 8289,
    allow_host: AllowHost = None,
    person: PersonOption = None,
    identity: Identity = None,
    url: Url = None,
    allow_any_account: AllowAnyAccount = False,
    ui: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="URL of a Temporal Web UI whose pages may use this server. Can be repeated. "
            "Default: the development server's.",
        ),
    ] = None,
) -> Exit:
    """Decrypt payloads for Temporal's Web UI and CLI.

    Only people with the role `viewer` can decrypt payloads. They log in as in `waystation web`. Programs send the
    token in WAYSTATION_WEB_TOKEN.
    """
    with _import_web():
        from waystation.web.codec_server import create_codec_server
        from waystation.web.web_settings import WebSettings
    origins = [address.rstrip("/") for address in ui or LOCAL_UIS]
    _check_urls(url)
    for origin in origins:
        _check_origin("--ui", origin)
    if find_cipher() is None:
        text = f"There are no encryption keys. Set {ENCRYPTION_VARIABLE} to the key file of the workers."
        raise CommandProblem(Exit.USAGE, text)
    converter = offloading(Blobs(ctx.target.store))
    settings = WebSettings(
        url=url,
        hosts=allow_host or (),
        identity=identity or find_identity_file(WEB_IDENTITY_ENV),
        person=person,
        token=os.environ.get(TOKEN) or None,
        allow_any_account=allow_any_account,
    )
    create = partial(create_codec_server, converter=converter, ui=origins, names=settings.names)
    return await _serve(ctx, create, settings, ctx.target.namespace or "", host=host, port=port)


async def _serve(
    ctx: CommandContext,
    create: "Callable[[Access], Starlette]",
    settings: "WebSettings",
    namespace: str,
    *,
    host: str,
    port: int,
    gatekeeper: "Gatekeeper | None" = None,
) -> Exit:
    from waystation.web.exposure import NotSafeToServe
    from waystation.web.server import WebUnavailable, serve

    out = ctx.out
    try:
        await serve(
            create,
            settings,
            namespace=namespace,
            announce=out.line,
            remark=out.remark,
            host=host,
            port=port,
            gatekeeper=gatekeeper,
        )
    except (WebUnavailable, NotSafeToServe) as error:
        raise CommandProblem(Exit.USAGE, str(error)) from None
    return Exit.OK


@contextmanager
def _import_web() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_extra("web", error) from None


def _check_urls(url: str | None, **others: str | None) -> None:
    for name, address in {"--url": url, **others}.items():
        if address is not None and not address.startswith(("https://", "http://")):
            raise CommandProblem(
                Exit.USAGE, f"{name} {address!r} is not a valid URL. It must start with https:// or http://."
            )
    if url is not None:
        _check_origin("--url", _MOUNT.sub("", url))


def _check_origin(option: str, url: str) -> None:
    if not _is_origin(url):
        raise CommandProblem(
            Exit.USAGE,
            f"{option} {url!r} is not a valid URL here. Use a host without a path, such as "
            "https://approvals.example.com.",
        )


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


async def setup(
    ctx: CommandContext,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be created.")] = False,
    json: AsJson = False,
) -> Exit:
    """Create the search attributes that lists of calls and sessions need in a namespace.

    The command ends once the server accepts them, which takes a few seconds.
    It is safe to run this command more than once.
    """
    client = await ctx.connect()
    namespace = client.temporal.namespace
    missing = [*SEARCH_ATTRIBUTES]
    try:
        existing = await check_search_attributes(client.temporal)
        for name, kind in SEARCH_ATTRIBUTES.items():
            if not existing.get(name, True):
                raise CommandProblem(
                    Exit.FAILED,
                    f"The search attribute {name!r} in namespace {namespace!r} must have the type {kind}. Remove or "
                    "rename the existing one with `temporal operator search-attribute`, or in Temporal Cloud with "
                    "`tcld namespace search-attributes`.",
                )
        missing = [name for name in missing if name not in existing]
        if missing and not dry_run:
            await add_search_attributes(client.temporal, missing)
    except RPCError as error:
        if error.status not in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED):
            raise
        names = " ".join(f"--search-attribute {name}={SEARCH_ATTRIBUTES[name]}" for name in missing)
        raise CommandProblem(
            Exit.NOT_ALLOWED,
            f"The server does not let this client create search attributes ({error.message}). In Temporal Cloud, an "
            f"admin of the namespace runs: tcld namespace search-attributes add --namespace {namespace} {names}",
        ) from None
    if not dry_run and not await wait_until_accepted(client.temporal, SEARCH_ATTRIBUTES):
        raise CommandProblem(
            Exit.FAILED,
            f"The search attributes of namespace {namespace!r} exist, but the server does not accept them yet. Run "
            "`waystation setup` again in a minute.",
        )
    ctx.out.result(
        {
            "namespace": namespace,
            "missing" if dry_run else "created": missing,
            "present": [name for name in SEARCH_ATTRIBUTES if name not in missing],
        },
        f"Namespace {namespace} already has all search attributes."
        if not missing
        else f"Would create in namespace {namespace}: {', '.join(missing)}. Nothing was changed."
        if dry_run
        else f"Created in namespace {namespace}: {', '.join(missing)}. Running workers use them within 75 s.",
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
        from waystation.approvers.identity import write_examples
    except ModuleNotFoundError as error:
        raise missing_extra("identity", error) from None
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
    return _create_keys(ctx, WorkerKeys, file, "Start all workers with --keys, and keep this file secret.")


@encryption.command("keys", cls=AsyncCommand)
async def encryption_keys(
    ctx: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create.")],
    kms: Annotated[
        str | None,
        typer.Option(metavar="URI", help="KMS key that wraps the new key, such as awskms://alias/waystation."),
    ] = None,
    json: AsJson = False,
) -> Exit:
    """Create a file with a new key that encrypts histories and stores."""
    remark = f"Set {ENCRYPTION_VARIABLE} to this file for all programs. Without it, encrypted data cannot be read."
    return _create_keys(ctx, EncryptionKeys, file, remark, kms=kms)


@encryption.command("delete-keys", cls=AsyncCommand)
async def delete_keys(
    ctx: CommandContext,
    tenant: Annotated[str, typer.Option(help="The tenant whose data becomes unreadable.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: AsJson = False,
) -> Exit:
    """Delete the keys of a tenant and of all its users, so that nobody can read their data, nor copies of it.

    Open invocations and sessions of the tenant are terminated. This cannot be undone.
    """
    client = await ctx.connect()
    text = f"This makes the data of the tenant {tenant!r} and of all its users unreadable. It cannot be undone."
    if not (dry_run or yes or ((person := find_person()) and person.agrees(f"{text} Continue?"))):
        raise CommandProblem(Exit.USAGE, f"{text} Nothing was deleted. Pass --yes to delete the keys.")
    try:
        deleted = await delete_tenant_keys(client.temporal, tenant, dry_run=dry_run)
    except ValueError as error:
        raise CommandProblem(Exit.USAGE, str(error)) from None
    verb, stopping = ("would delete", "would terminate") if dry_run else ("deleted", "terminated")
    counts = f"{verb} {deleted.keys} keys of tenant {tenant}, and {stopping} {len(deleted.stopped)} workflows"
    ctx.out.result(deleted.to_json(), counts)
    return Exit.OK


def _create_keys(ctx: CommandContext, kind: type[KeySet], file: Path, remark: str, *, kms: str | None = None) -> Exit:
    try:
        kind.create_wrapped(file, kms) if kms else kind.generate().create(file)
    except OSError as error:
        raise CommandProblem(Exit.USAGE, f"{file} cannot be created: {error.strerror}.") from None
    ctx.out.result({"file": str(file)}, str(file))
    if not ctx.out.json:
        ctx.out.remark(remark)
    return Exit.OK
