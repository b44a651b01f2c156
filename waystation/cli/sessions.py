"""`waystation sessions` and `session`: list sessions, show one, close it, delete it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from waystation.cli.command_context import App, AsJson, AsyncCommand, CommandContext, User, command_group
from waystation.cli.exit_codes import Exit, Problem
from waystation.cli.output import Output
from waystation.client import DeletedSession, Session
from waystation.core import DEFAULT_APP, DEFAULT_USER, Stores, errors
from waystation.presentation import terminal

STORES = Stores()
"""Where workers keep things by default."""
ANY_AGENT = "-"
"""For sessions whose agent is not known; nothing that is read depends on it."""

SessionName = Annotated[
    str, typer.Argument(metavar="SESSION", help="Name of the session, as `waystation sessions` lists it.")
]

session = command_group("Show a session, close it, or delete it.")


@contextmanager
def _name_problems() -> Iterator[None]:
    """Turn the error of names from which no workflow id can be made into a usage error."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise Problem(Exit.USAGE, str(error)) from None


async def open_session(ctx: CommandContext, name: str, user: str, app: str, agent: str = ANY_AGENT) -> Session:
    """Return a session of the server.

    Raises:
        Problem: No session can have these names.
    """
    client = await ctx.connect()
    with _name_problems():
        return client.session(agent=agent, session_id=name, user_id=user, app=app)


async def sessions(
    ctx: CommandContext,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those of this user.")] = None,
    app: Annotated[str | None, typer.Option(help="Only those of this app.")] = None,
    json: AsJson = False,
) -> Exit:
    """List sessions, those that began last first. No worker has to run."""
    client = await ctx.connect()
    dates = Column("status", no_wrap=True), Column("since", no_wrap=True)
    table = Table("session", "user", "app", "agent", *dates, box=box.SIMPLE_HEAD, pad_edge=False)
    async for entry in client.sessions.list(agent=agent, user_id=user, app=app):
        if json:
            ctx.out.record(entry.to_json())
        names = (entry.session_id, entry.user_id, entry.app, entry.agent or "not taken up")
        style = {"open": "green", "waiting": "bold yellow"}.get(entry.status, "dim")
        since = terminal.clock(entry.started_at.timestamp())
        table.add_row(*(Text(terminal.safe(name)) for name in names), Text(entry.status, style), since)
    if json:
        return Exit.OK
    if table.row_count:
        ctx.out.table(table)
    else:
        ctx.out.line(f"No such session in {ctx.target.where()}. `waystation chat AGENT` begins one.")
    return Exit.OK


@session.command(cls=AsyncCommand)
async def show(
    ctx: CommandContext, name: SessionName, user: User = DEFAULT_USER, app: App = DEFAULT_APP, json: AsJson = False
) -> Exit:
    """Print what was said in a session, its state, and what waits. No worker has to run."""
    out, session = ctx.out, await open_session(ctx, name, user, app)
    events, state, waiting = await session.events(), await session.state(), await session.pending()
    if json:
        for event in events:
            out.record({"event": event.to_json()})
        out.record({"state": state})
        out.record({"pending": [call.model_dump(mode="json") for call in waiting]})
        return Exit.OK
    for event in events:
        out.event(event)
    if state:
        out.line()
        out.line("state", style="bold")
        out.line(terminal.state(state))
    out.waits(waiting, ctx.target)
    return Exit.OK


@session.command(cls=AsyncCommand)
async def close(
    ctx: CommandContext, name: SessionName, user: User = DEFAULT_USER, app: App = DEFAULT_APP, json: AsJson = False
) -> Exit:
    """Let a session take no further message; it ends when its invocations have."""
    receipt = await (await open_session(ctx, name, user, app)).close()
    left = int(receipt.get("open") or 0)
    rest = f"; {left} still open in it, with which it ends" if left else ""
    ctx.out.result(receipt, Text.assemble(("closed", "bold"), f" {terminal.safe(name)}{rest}"))
    return Exit.OK


@session.command(cls=AsyncCommand)
async def delete(
    ctx: CommandContext,
    name: SessionName,
    user: User = DEFAULT_USER,
    app: App = DEFAULT_APP,
    artifacts: Annotated[
        str, typer.Option(metavar="URL", help="Where workers keep artifacts: a folder or object store.")
    ] = str(STORES.artifacts),
    memory: Annotated[Path, typer.Option(metavar="FILE", help="Where workers keep memories.")] = STORES.memory,
    json: AsJson = False,
) -> Exit:
    """Delete a session: its workflows, its artifacts, and what was remembered of it. Cannot be undone.

    Its open invocations are stopped. May be repeated, also when it was interrupted. No worker has to run.
    """
    # Here, because object stores take long to load.
    from waystation.artifacts import ObjectStoreArtifactService
    from waystation.memory import SqliteMemoryService

    client, out = await ctx.connect(), ctx.out
    try:
        with _name_problems():
            deleted = await client.sessions.delete(
                name,
                user_id=user,
                app=app,
                artifacts=ObjectStoreArtifactService(artifacts),
                memory=SqliteMemoryService(memory),
            )
    except errors.StoreFailed as error:
        remedy = "Say with --artifacts and --memory where workers keep them, and repeat it."
        raise Problem(Exit.FAILED, f"{error}. {remedy}") from None
    if json:
        out.record(deleted.to_json())
    else:
        _write_deleted(out, name, deleted)
    if not deleted:
        who = "" if (user, app) == (DEFAULT_USER, DEFAULT_APP) else f" of user {user!r} in app {app!r}"
        raise errors.UnknownSession(
            f"There is nothing of a session {name!r}{who}; `waystation sessions` lists those there are, "
            "with their users and apps."
        )
    return Exit.OK


def _write_deleted(out: Output, name: str, deleted: DeletedSession) -> None:
    if deleted:
        nouns = ("workflow", "workflows"), ("artifact", "artifacts"), ("memory", "memories")
        counts = len(deleted.workflows), len(deleted.artifacts), deleted.memories
        parts = [f"{count} {noun[count != 1]}" for count, noun in zip(counts, nouns, strict=True)]
        out.line(Text.assemble(("deleted", "bold"), f" {terminal.safe(name)}: {', '.join(parts)}"))
        for id in deleted.stopped:
            out.line(f"  stopped  {terminal.safe(id)}", style="dim")
    for left in deleted.left:
        out.line(f"  left     {terminal.safe(left)}", style="yellow")
