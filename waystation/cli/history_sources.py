"""The options of commands that read many histories, and the logs that these options select."""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from waystation.cli.command_context import CommandContext, CommandProblem, Exit
from waystation.core.log import Log
from waystation.replay.history_logs import UnreadableHistory, list_files, read_files, read_namespace
from waystation.storage import Blobs, offloading

HistorySources = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE|DIR...", help="History files, or folders of them. Default: the invocations in the namespace."
    ),
]
OnlyAgent = Annotated[str | None, typer.Option("--agent", help="Only invocations of this root agent.")]
Since = Annotated[datetime | None, typer.Option("--since", metavar="TIME", help="Only invocations started since then.")]
Until = Annotated[datetime | None, typer.Option("--until", metavar="TIME", help="Only invocations started before.")]
ReadLimit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Read at most this many invocations.")
]


async def read_logs(
    ctx: CommandContext,
    sources: Sequence[Path] | None,
    *,
    agent: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
) -> AsyncGenerator[Log | UnreadableHistory]:
    """Return the logs of files or, without any, of the namespace. Times without a zone are in UTC.

    Raises:
        CommandProblem: A file does not exist, or files are combined with filters.
    """
    if not sources:
        filters = {"agent": agent, "since": _in_utc(since), "until": _in_utc(until), "limit": limit}
        return read_namespace(await ctx.connect(), **filters)
    if any((agent, since, until, limit)):
        raise CommandProblem(Exit.USAGE, "--agent, --since, --until and --limit select invocations of the namespace.")
    try:
        files = list_files(sources)
    except FileNotFoundError as error:
        raise CommandProblem(Exit.USAGE, f"{str(error.args[0])!r} does not exist.") from None
    blobs = Blobs(ctx.target.store)
    return read_files(files, offloading(blobs), blobs.get)


def _in_utc(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time
