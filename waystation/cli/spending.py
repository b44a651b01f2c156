"""The command `waystation budget`: list what tenants and users have used."""

from pathlib import Path
from typing import Annotated

import typer

from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit
from waystation.project_file import QUOTAS_ENV, read_quotas
from waystation.storage import QuotaStore


async def budget(
    ctx: CommandContext,
    quotas: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The workers' quota file. Default: ${QUOTAS_ENV}.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant and its users.")] = None,
    period: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="A day or month such as 2026-11. Default: the current day and month, UTC."),
    ] = None,
    json: AsJson = False,
) -> Exit:
    """List what tenants and users have used of their budgets.

    Running model calls count as they were reserved. The command reads the store of the quota file, not the Temporal
    server. Workers count only if the file has budgets.
    """
    configured = read_quotas(quotas)
    if configured is None:
        raise CommandProblem(
            Exit.USAGE, f"No quota file is given. Pass the workers' file with --quotas or {QUOTAS_ENV}."
        )
    for row in await QuotaStore(configured.store).list_spending(period):
        if tenant is None or row.tenant == tenant:
            who = f"{row.tenant or '(no tenant)'}{'' if row.user is None else f' / {row.user}'}"
            amounts = f"cost {row.cost:.4f}, {row.tokens:,} tokens, {row.calls:,} calls"
            ctx.out.result(row._asdict(), f"{row.period:10}  {who}: {amounts}")
    return Exit.OK
