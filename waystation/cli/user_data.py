"""The command `waystation forget`: delete everything that is stored for a user."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit
from waystation.cli.output import Output
from waystation.cli.terminal_input import find_person
from waystation.client import DeletedUser
from waystation.core import errors
from waystation.core.contract import Stores
from waystation.presentation import terminal
from waystation.project_file import read_quotas
from waystation.storage.quota_store import QuotaStore

STORES = Stores()
"""The stores that workers use by default."""


async def forget(
    ctx: CommandContext,
    user: Annotated[str, typer.Option(help="The user whose data is deleted.")],
    app: Annotated[str | None, typer.Option(help="Only data in this app. Default: in all apps.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The user's tenant. Default: only data without a tenant.")] = None,
    artifacts: Annotated[
        str, typer.Option(metavar="URL", help="Folder or object store where workers store artifacts.")
    ] = str(STORES.artifacts),
    memory: Annotated[str, typer.Option(metavar="STORE", help="Where workers store memories.")] = str(STORES.memory),
    credentials: Annotated[str, typer.Option(metavar="STORE", help="The workers' credential store.")] = str(
        STORES.credentials
    ),
    quotas: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The workers' quota file, to delete what the user used.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: AsJson = False,
) -> Exit:
    """Delete everything that is stored for a user, and print what was deleted and what could not be.

    Schedules of the user are deleted and open invocations are canceled first. This cannot be undone. The command does
    not require a running worker. If it is interrupted, run it again.
    """
    # Imported here because object stores are slow to import.
    from waystation.artifacts import ObjectStoreArtifactService
    from waystation.auth import open_store
    from waystation.memory import open_memory

    client, out, configured = await ctx.connect(), ctx.out, read_quotas(quotas)
    try:
        artifact_store, memory_store = ObjectStoreArtifactService(artifacts), open_memory(memory)
        credential_store = open_store(credentials)
        await ctx.compare_stores(artifacts=artifact_store, memory=memory_store, credentials=credential_store)
        if not (dry_run or yes):
            _confirm(user, app, tenant)
        deleted = await client.forget_user(
            user,
            app=app,
            tenant=tenant,
            artifacts=artifact_store,
            memory=memory_store,
            credentials=credential_store,
            usage=QuotaStore(configured.store) if configured else None,
            dry_run=dry_run,
        )
    except (errors.StoreFailed, errors.CredentialStoreError) as error:
        remedy = "Name the workers' stores with --artifacts, --memory and --credentials, and try again."
        raise CommandProblem(Exit.FAILED, f"{error} {remedy}") from None
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise CommandProblem(Exit.USAGE, str(error)) from None
    out.record(deleted.to_json()) if json else _write(out, deleted)
    return Exit.OK


def _confirm(user: str, app: str | None, tenant: str | None) -> None:
    """Ask the user of the terminal for confirmation.

    Raises:
        Problem: They declined, or there is no terminal.
    """
    scope = f"{f'app {app!r}' if app else 'all apps'}{f' of tenant {tenant!r}' if tenant else ''}"
    text = f"This deletes everything that is stored for the user {user!r} in {scope}. It cannot be undone."
    person = find_person()
    if person is None:
        raise CommandProblem(
            Exit.USAGE, f"{text} Pass --yes to delete it, or --dry-run to print what would be deleted."
        )
    if not person.agrees(f"{text} Continue?"):
        raise CommandProblem(Exit.USAGE, "Nothing was deleted.")


def _write(out: Output, deleted: DeletedUser) -> None:
    counts = {
        ("workflow", "workflows"): len(deleted.workflows),
        ("schedule", "schedules"): len(deleted.schedules),
        ("artifact", "artifacts"): deleted.artifacts,
        ("memory", "memories"): deleted.memories,
        ("credential", "credentials"): deleted.credentials,
        ("period of usage", "periods of usage"): deleted.usage,
        ("key", "keys"): deleted.keys,
    }
    parts = ", ".join(f"{count} {noun[count != 1]}" for noun, count in counts.items())
    verb = "would delete" if deleted.dry_run else "deleted"
    out.line(Text.assemble((verb, "bold"), f" for {terminal.escape(deleted.user_id)}: {parts}"))
    for id in deleted.workflows:
        owner, stopped = deleted.owners[id], " (running)" if id in deleted.stopped else ""
        app = f"{owner['app'] or '(unknown)'}" + (f" of {owner['tenant']}" if owner["tenant"] else "")
        text = f"{id}{stopped}, of {owner['user_id']} in app {app}"
        out.line(f"  workflow  {terminal.escape(text)}", style="dim")
    for id in deleted.schedules:
        out.line(f"  schedule  {terminal.escape(id)}", style="dim")
    for remainder in deleted.left:
        out.line(f"  left      {terminal.escape(remainder)}", style="yellow")
