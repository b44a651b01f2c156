"""`waystation replay`: its options. What it does is in `histories`, and, for a deployment, in `gating`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.command import run_offline_command

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target


def replay(
    ctx: typer.Context,
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="ID|FILE...", help="Invocations, or histories as JSON.")
    ] = None,
    open: Annotated[
        bool, typer.Option("--open", help="Replay all that is open in the namespace instead, before a deployment.")
    ] = False,
    agents: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="With --open: agents to be deployed, whose tools open calls need."),
    ] = None,
    sample: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --open: replay as many of those closed last, too.")
    ] = 0,
    processes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --open: how many processes; one for each core.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")] = False,
) -> None:
    """Replay histories against the present code, and print the state at each event.

    A file is what `waystation history`, `temporal workflow show -o json` or the Web UI's download writes; for files no
    server is needed. What cannot be read is named, and the others are replayed; the exit code is then the one for that,
    before 1 for what does not replay. With --open the exit code is 1 when this build could not go on with something
    that is open.
    """

    if open and sources:
        raise typer.BadParameter("name invocations, or give --open for all that are open", param_hint="ID|FILE...")
    if not open and not sources:
        raise typer.BadParameter("name an invocation or a file, or give --open", param_hint="ID|FILE...")
    if not open and (agents or sample or processes):
        raise typer.BadParameter("--agents, --sample and --processes go with --open", param_hint="--open")

    async def action(out: "Output", target: "Target") -> int:
        if open:
            from waystation.cli.gating import gated

            return await gated(target, out, agents=agents or (), sample=sample, processes=processes)
        from waystation.cli.histories import replay

        return await replay(target, out, sources=sources or ())

    run_offline_command(ctx, action, json=json, invocation=next(iter(sources or ()), None))
