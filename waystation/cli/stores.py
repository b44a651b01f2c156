"""The commands `waystation store`: clean up the workers' stores."""

from dataclasses import asdict
from typing import Annotated

import typer

from waystation.cli.command_context import AsJson, CommandContext, Exit
from waystation.cli.command_execution import AsyncCommand, create_command_group
from waystation.cli.pending_calls import parse_duration
from waystation.client import prune_stores

store = create_command_group("Clean up the workers' stores.")


@store.callback()
def _store() -> None:
    """Do nothing. Without a callback, Typer would merge the group with its only command."""


@store.command(cls=AsyncCommand)
async def prune(
    ctx: CommandContext,
    keep: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to keep unused payloads, such as 12h or 7d.")
    ] = "7d",
    artifacts: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Also remove the artifacts of deleted invocations from this store."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be changed.")] = False,
    json: AsJson = False,
) -> Exit:
    """Remove payloads from --store that no workflow on the server uses. Workers may be running.

    A payload is in use as long as the server has a history, open or closed, that refers to it. Unused payloads first go
    to a trash folder in the store, and are removed by a later run if they are still unused. With --artifacts, also
    remove the artifacts of invocations that had no session and no ID of your own, if the server has deleted them.
    """
    from waystation.artifacts import ObjectStoreArtifactService  # slow to import, because it loads object stores

    client = await ctx.connect()
    service = ObjectStoreArtifactService(artifacts) if artifacts else None
    await ctx.compare_stores(payloads=client.blobs.files, artifacts=service)
    pruned = await prune_stores(client.temporal, client.blobs, service, keep=parse_duration(keep), dry_run=dry_run)
    would = "would be " if dry_run else ""
    ctx.out.result(
        {**asdict(pruned), "dry_run": dry_run},
        f"{pruned.histories} histories in {', '.join(pruned.namespaces)}: {pruned.kept} payloads kept, "
        f"{pruned.moved} {would}moved to the trash, {pruned.removed} {would}removed from it. Artifacts of "
        f"{pruned.artifacts} invocations {would}removed.",
    )
    return Exit.OK
