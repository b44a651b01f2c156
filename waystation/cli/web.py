"""`waystation web`: its options. What it serves is in `waystation.web`, for which the extra `web` is needed."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client.agent_client import AgentClient


def web(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65_535)] = 8288,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further name under which it is reached.")
    ] = None,
) -> None:
    """Serve what happens in invocations to browsers and programs, over HTTP.

    Programs send `Authorization: Bearer TOKEN`, with the token that is in WAYSTATION_WEB_TOKEN here.
    """
    from waystation.cli.exits import Exit, Problem
    from waystation.cli.main import _perform

    async def action(client: "AgentClient", _out: "Output", _target: "Target") -> int:
        try:
            from waystation.web.serving import serve
        except ModuleNotFoundError as error:
            text = f"`waystation web` needs {error.name!r}; install it with: pip install 'waystation[web]'"
            raise Problem(Exit.USAGE, text) from None
        return await serve(client, host=host, port=port, names=allow_host or ())

    _perform(ctx, action, json=False)
