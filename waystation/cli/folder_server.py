"""The commands `waystation server`: stop the Temporal server that the programs of a folder share."""

from pathlib import Path
from typing import Annotated

import typer

from waystation.cli.command_context import AsJson, CommandContext, CommandProblem, Exit
from waystation.cli.command_execution import AsyncCommand, create_command_group
from waystation.embedded import stop_server

server = create_command_group("Stop the Temporal server that ADK programs in this folder have started.")


@server.command(cls=AsyncCommand)
async def stop(
    ctx: CommandContext,
    db: Annotated[Path, typer.Option(metavar="FILE", help="The database file of the server.")] = Path(
        ".waystation", "temporal.db"
    ),
    json: AsJson = False,
) -> Exit:
    """Stop the server. The next program in the folder starts it again, with all histories.

    Programs and workers that use the server lose their connection.
    """
    address = await stop_server(db)
    if address is None:
        raise CommandProblem(Exit.NO_SERVER, f"No server has {str(db)!r} open.")
    ctx.out.result({"address": address}, f"Stopped the server at {address}.")
    return Exit.OK
