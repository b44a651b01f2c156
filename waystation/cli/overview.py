"""The commands `waystation workers` and `top`: the workers of a task queue, and the invocations by agent."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from waystation.cli.command_context import AsJson, CommandContext, Exit
from waystation.cli.diagnosis import Poller
from waystation.cli.operations import QUEUE_TYPES, describe_queue, list_pollers, measure_clock
from waystation.client import AgentClient, InvocationEntry
from waystation.core.contract import HELD, RUNNING
from waystation.core.payload import JsonObject
from waystation.presentation import terminal
from waystation.presentation.tables import make_table

COUNTED = 5_000
"""Maximum number of invocations to count."""
REFRESH_S = 5.0
FAILURES = ("failed", "timed_out", "terminated")
RECENT_S = 3_600.0
"""How long failures and completions are counted after the end of an invocation."""
COLUMNS = (RUNNING, "waiting", HELD, "failed", "completed")
_STYLES = {"waiting": "bold yellow", HELD: "bold red", "failed": "red", RUNNING: "green"}


async def workers(ctx: CommandContext, json: AsJson = False) -> Exit:
    """List the workers that poll a task queue, with their build, and the tasks that wait for them.

    A worker that has ended is listed for some minutes, but not counted once it has not polled for 70 seconds. The exit
    code is 1 if no worker polls for workflows or none for activities.
    """
    client, out = await ctx.connect(), ctx.out
    queues = {kind: await describe_queue(client, client.task_queue, kind) for kind in QUEUE_TYPES}
    pollers = [poller for kind, queue in queues.items() for poller in list_pollers(queue, kind)]
    now = time.time() - (await measure_clock(client) or 0.0)
    active = [poller for poller in pollers if poller.is_active(now)]
    if json:
        for poller in pollers:
            out.record(asdict(poller) | {"active": poller in active})
    else:
        if pollers:
            out.table(_create_worker_table(pollers, now))
        for kind, queue in queues.items():
            waiting = queue.stats.approximate_backlog_count
            count = sum(poller.kind == kind for poller in active)
            text = f"{kind}: {count} polling task queue {client.task_queue}, {waiting} tasks waiting"
            out.line(text, style="" if count else "bold red")
    return Exit.OK if {poller.kind for poller in active} == {*QUEUE_TYPES} else Exit.FAILED


def _create_worker_table(pollers: Iterable[Poller], now: float) -> Table:
    """Return a table with one row for each worker, in order of identity. `now` is by the server's clock."""
    columns = [
        Column("worker", overflow="fold"),
        Column("polls for"),
        Column("build", overflow="fold"),
        Column("deployment", overflow="fold"),
        Column("last seen", justify="right", no_wrap=True),
    ]
    by_worker: dict[tuple[str, str, str], list[Poller]] = {}
    for poller in pollers:
        by_worker.setdefault((poller.identity, poller.build, poller.deployment or ""), []).append(poller)
    rows = list[tuple[str | Text, ...]]()
    for (identity, build, deployment), group in sorted(by_worker.items()):
        age = max(0.0, now - max(poller.seen_at for poller in group))
        is_active = any(poller.is_active(now) for poller in group)
        seen = Text(f"{terminal.format_span(round(age))} ago", style="" if is_active else "red")
        rows.append((identity, ", ".join(poller.kind for poller in group), build or "unknown", deployment, seen))
    return make_table(columns, rows)


async def top(
    ctx: CommandContext,
    once: Annotated[bool, typer.Option("--once", help="Print the counts once instead of watching them.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.5, help="Time between two updates.")] = REFRESH_S,
    json: AsJson = False,
) -> Exit:
    """Watch how many invocations are running, waiting, held and failing, by agent. Ctrl-C ends the command.

    Failed and completed invocations are counted for an hour after their end. Outside a terminal and with --json, the
    counts are printed once.
    """
    client, out = await ctx.connect(), ctx.out
    counts, warning = await _count(client)
    if json or once or not out.console.is_terminal:
        if json:
            for agent, row in sorted(counts.items()):
                out.record({"agent": agent or None, **row})
        else:
            out.table(create_count_table(counts))
        if warning:
            out.remark(warning)
        return Exit.OK
    with Live(console=out.console, auto_refresh=False, screen=True) as live:
        while True:
            where = Text(f"{ctx.target.describe()}   {terminal.format_time(time.time())}   Ctrl-C ends", style="dim")
            live.update(Group(where, create_count_table(counts), Text(warning, style="yellow")), refresh=True)
            await asyncio.sleep(interval)
            counts, warning = await _count(client)


async def _count(client: AgentClient) -> tuple[dict[str, JsonObject], str]:
    """Return how many invocations each agent has in each state, and a warning if some were left out, otherwise ""."""
    listed = [entry async for entry in client.invocations.list(limit=COUNTED + 1)]
    since = time.time() - RECENT_S
    entries: dict[str, InvocationEntry] = {}
    for entry in listed[:COUNTED]:
        if entry.ended_at is None or entry.ended_at.timestamp() >= since:
            entries.setdefault(entry.id, entry)  # a reset leaves earlier runs
    warning = f"Only the newest {COUNTED:,} invocations are counted." if len(listed) > COUNTED else ""
    return count_by_agent(entries.values(), time.time()), warning


def count_by_agent(entries: Iterable[InvocationEntry], now: float) -> dict[str, JsonObject]:
    """Return, for each agent, the number of invocations in each of `COLUMNS` and the age in seconds of the oldest open
    one, or None. The name of an agent is empty if the namespace has no search attributes.
    """
    counts: dict[str, Counter[str]] = {}
    oldest: dict[str, float] = {}
    for entry in entries:
        agent = entry.agent or ""
        status = "failed" if entry.status in FAILURES else entry.status
        counts.setdefault(agent, Counter())[status] += 1
        if entry.ended_at is None:
            oldest[agent] = max(oldest.get(agent, 0.0), now - entry.started_at.timestamp())
    return {
        agent: {**{name: count[name] for name in COLUMNS}, "oldest_s": oldest.get(agent)}
        for agent, count in counts.items()
    }


def create_count_table(counts: dict[str, JsonObject]) -> Table:
    """Return a table with one row for each agent and one for all of them."""
    ordered = sorted(counts.items(), key=lambda item: (-sum(item[1][name] for name in COLUMNS), item[0]))
    totals = {name: str(sum(row[name] for row in counts.values())) for name in COLUMNS}
    columns = [
        Column("agent", footer="all"),
        *(Column(name, footer=totals[name], justify="right", style=_STYLES.get(name, "")) for name in COLUMNS),
        Column("oldest", justify="right"),
    ]
    rows = (
        (
            agent or "unknown",
            *(str(row[name]) if row[name] else "·" for name in COLUMNS),
            terminal.format_span(round(row["oldest_s"])) if row["oldest_s"] is not None else "",
        )
        for agent, row in ordered
    )
    return make_table(columns, rows, show_footer=len(counts) > 1)
