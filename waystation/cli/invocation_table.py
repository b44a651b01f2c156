"""The commands `waystation list` and `stop`: list invocations, and cancel one."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Literal

import typer
from rich.table import Column
from rich.text import Text
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit, InvocationId
from waystation.cli.output import Output
from waystation.cli.shell_completion import complete_agent
from waystation.client import InvocationEntry, fold_called
from waystation.core.contract import SESSION_WORKFLOW, WORKFLOW
from waystation.presentation import terminal, words
from waystation.presentation.tables import make_table

LISTED = 50
"""Number of invocations to list by default."""
STOP_LIMIT_S = 15.0
"""How long to wait for an invocation to end after its cancellation was requested. By default, it reaches a running tool
within 10 s."""
MIN_OTHERS = 45
"""Minimum number of columns next to the IDs for a table. If fewer are left, each ID has a line of its own."""
_STYLES = {
    "waiting": "bold yellow",
    "held": "bold red",
    "running": "green",
    "failed": "red",
    "timed_out": "red",
    "terminated": "red",
}

Status = Literal["open", "running", "waiting", "held", "completed", "failed", "canceled", "terminated", "timed_out"]


async def list(
    ctx: CommandContext,
    agent: Annotated[
        str | None, typer.Option(help="Only invocations of this agent.", autocompletion=complete_agent)
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only invocations of this user.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only invocations of this tenant.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only invocations with this status.")] = None,
    called: Annotated[bool, typer.Option("--called", help="Also list agents that other agents called.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="List at most N invocations.")] = LISTED,
    json: AsJson = False,
) -> Exit:
    """List invocations, newest first. This does not require a running worker."""
    client, out = await ctx.connect(), ctx.out
    found: dict[str, InvocationEntry] = {}
    count, has_more = 0, False
    try:
        async for entry in client.invocations.list(agent=agent, user_id=user, tenant=tenant, status=status):
            if entry.id in found:
                continue  # an earlier run that a reset has replaced
            if called or not entry.is_called:
                if has_more := count == limit:
                    break
                count += 1
            found[entry.id] = entry
    except ValueError as error:
        raise CommandProblem(Exit.USAGE, str(error)) from None
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT or await client.searchable(again=True) is not False:
            raise
        raise CommandProblem(
            Exit.FAILED, f"{ctx.target.describe()} lacks search attributes. Create them with `waystation setup`."
        ) from None
    entries = fold_called(found.values(), keep=called)
    if json:
        for entry in entries:
            out.record(entry.to_json())
    elif entries:
        with out.pages():
            write_entries(out, entries)
            if has_more:
                out.line(f"… and more; list them with --limit {2 * limit}, or filter (see --help).")
    else:
        is_filtered = any((agent, user, tenant, status))
        remedy = "" if is_filtered else " Start one with `waystation run AGENT MESSAGE`."
        out.line(f"No {'such ' if is_filtered else ''}invocations at {ctx.target.describe()}.{remedy}")
    return Exit.OK


def write_entries(out: Output, entries: Iterable[InvocationEntry]) -> None:
    """Write a table of invocations or, if their IDs leave no room for other columns, two lines for each."""
    now = time.time()
    rows = [
        (
            Text(terminal.escape(entry.id)),
            Text(terminal.escape(entry.agent or "")),
            Text(terminal.escape(entry.user_id or "")),
            _format_status(entry),
            Text(terminal.format_span(round(max(0.0, now - entry.started_at.timestamp())))),
        )
        for entry in entries
    ]
    if max(row[0].cell_len for row in rows) > out.console.width - MIN_OTHERS:
        for id, *others in rows:
            out.line(id)
            out.hanging(Text("  "), [Text(", ").join(other for other in others if other)])
        return
    columns = [
        Column("id", no_wrap=True),
        Column("agent", overflow="fold"),
        Column("user", overflow="fold", max_width=16),
        Column("status", overflow="fold"),
        Column("age", justify="right", no_wrap=True),
    ]
    out.table(make_table(columns, rows))


def _format_status(entry: InvocationEntry) -> Text:
    status, more = words.describe_status(entry)
    return Text.assemble((status, _STYLES.get(entry.status, "dim")), more)


async def stop(
    ctx: CommandContext,
    id: InvocationId,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the invocation to end.")
    ] = STOP_LIMIT_S,
    json: AsJson = False,
) -> Exit:
    """Cancel an invocation and the agents that it called. Running tools are notified, and pending calls are closed.

    A worker must be running. The exit code is 7 if the invocation has not ended in time.
    """
    client = await ctx.connect()
    invocation = client.invocation(id)
    described = await invocation.handle.describe()
    if described.workflow_type not in (WORKFLOW, SESSION_WORKFLOW):
        raise CommandProblem(
            Exit.FAILED, f"{id!r} is a workflow of type {described.workflow_type!r}, which is not stopped."
        )
    if described.status is not WorkflowExecutionStatus.RUNNING:
        ended = described.status.name.lower().replace("_", " ") if described.status else "ended"
        raise CommandProblem(Exit.FAILED, f"{id!r} has already ended ({ended}).")
    await invocation.cancel()
    with suppress(TimeoutError, WorkflowFailureError):
        async with asyncio.timeout(wait):
            await invocation.handle.result()
    status = (await invocation.handle.describe()).status or described.status
    name = status.name.lower().replace("_", " ")
    if status is not WorkflowExecutionStatus.RUNNING:
        ctx.out.result({"invocation_id": id, "status": name}, Text.assemble((name, "bold"), f" {terminal.escape(id)}"))
        return Exit.OK
    ctx.out.result(
        {"invocation_id": id, "status": "cancel_requested"},
        f"The cancellation of {terminal.escape(id)} was requested. It takes effect when a worker is running and the "
        "tools have ended.",
    )
    return Exit.UNCONFIRMED
