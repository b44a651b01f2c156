"""List sessions, look at one, close it, delete it."""

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.client import AgentClient
from waystation.core import errors
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER
from waystation.presentation import terminal

ANY = "-"
"""Stands for the agent of a session whose memo does not say it; nothing of what is read depends on it."""


async def listing(
    client: AgentClient, out: Output, target: Target, *, agent: str | None, user_id: str | None, app: str | None
) -> Exit:
    """Write the sessions."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("session", "user", "app", "agent", "status", "since"):
        table.add_column(name, no_wrap=name in ("status", "since"))
    found = 0
    async for entry in client.sessions.list(agent=agent, user_id=user_id, app=app):
        found += 1
        if out.json:
            out.record(entry.to_json())
        names = (entry.session_id, entry.user_id, entry.app, entry.agent or "not taken up")
        told = [Text(terminal.safe(name)) for name in names]
        style = {"open": "green", "waiting": "bold yellow"}.get(entry.status, "dim")
        table.add_row(*told, Text(entry.status, style), terminal.clock(entry.started_at.timestamp()))
    if found and not out.json:
        out.table(table)
    elif not out.json:
        out.line(f"No such session in {target.where()}. `waystation chat AGENT` begins one.")
    return Exit.OK


async def show(client: AgentClient, out: Output, target: Target, *, session_id: str, user_id: str, app: str) -> Exit:
    """Write what was said in a session, its state, and what waits."""
    session = client.session(agent=ANY, session_id=session_id, user_id=user_id, app=app)
    events = await session.events()
    state = await session.state()
    waiting = await session.pending()
    if out.json:
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
    out.waits(waiting, target)
    return Exit.OK


async def close(client: AgentClient, out: Output, *, session_id: str, user_id: str, app: str) -> Exit:
    """Close a session and say what is still open in it."""
    session = client.session(agent=ANY, session_id=session_id, user_id=user_id, app=app)
    receipt = await session.close()
    if out.json:
        out.record(receipt)
    else:
        left = int(receipt.get("open") or 0)
        rest = f"; {left} still open in it, with which it ends" if left else ""
        out.line(Text.assemble(("closed", "bold"), f" {terminal.safe(session_id)}{rest}"))
    return Exit.OK


async def delete(
    client: AgentClient, out: Output, *, session_id: str, user_id: str, app: str, artifacts: str, memory: Path
) -> Exit:
    """Delete a session and say what was deleted."""
    from waystation.artifacts import ObjectStoreArtifactService
    from waystation.memory import SqliteMemoryService

    try:
        deleted = await client.sessions.delete(
            session_id,
            user_id=user_id,
            app=app,
            artifacts=ObjectStoreArtifactService(artifacts),
            memory=SqliteMemoryService(memory),
        )
    except errors.StoreFailed as error:
        remedy = "Say with --artifacts and --memory where workers keep them, and repeat it."
        raise Problem(Exit.FAILED, f"{error}. {remedy}") from None
    if out.json:
        out.record(deleted.to_json())
    elif deleted:
        parts = [
            _count(len(deleted.workflows), "workflow"),
            _count(len(deleted.artifacts), "artifact"),
            _count(deleted.memories, "memory", "memories"),
        ]
        out.line(Text.assemble(("deleted", "bold"), f" {terminal.safe(session_id)}: {', '.join(parts)}"))
        for id in deleted.stopped:
            out.line(f"  stopped  {terminal.safe(id)}", style="dim")
    for left in () if out.json else deleted.left:
        out.line(f"  left     {terminal.safe(left)}", style="yellow")
    if not deleted:
        who = "" if (user_id, app) == (DEFAULT_USER, DEFAULT_APP) else f" of user {user_id!r} in app {app!r}"
        raise errors.UnknownSession(
            f"There is nothing of a session {session_id!r}{who}; `waystation sessions` lists those there are, "
            "with their users and apps."
        )
    return Exit.OK


def _count(number: int, one: str, more: str | None = None) -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"
