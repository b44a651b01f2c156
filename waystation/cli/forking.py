"""`waystation fork` and `waystation forks`: their options."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.command import run_command

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]


def fork(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of an invocation.")],
    event: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the last event that is taken over.")],
    message: Annotated[str | None, typer.Option(help="What the agent is told instead.")] = None,
    instruction: Annotated[
        str | None, typer.Option(help="Instead of the agent's own; workers need --allow-overrides for it.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model instead of the agent's own; likewise.")] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose --instruction and --model; by default the one started.")
    ] = None,
    result: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=JSON", help="A response, an object, to a call that then does not run, such as fc-2."
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="CALL=ACTION", help="approve or reject a call, once it waits in the fork."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who answers; recorded as a claim. Default: your login name.")] = None,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the fork; by default ID~1, ID~2, ….")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before calls run that may change something.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as something waits for a person.")] = False,
    json: AsJson = False,
) -> None:
    """Start an invocation that goes on from event N of another one, and follow it.

    What was recorded up to there does not happen again. Calls that had no result by then run; those that wait for a
    person wait anew. To have a model asked again, name the event before its reply.
    """

    _on_a_server(id)

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.forks import Wanted, answers_of, fork, results_of

        wanted = Wanted(id, event, message, instruction, model, agent, results_of(result or []), new_id)
        answers = answers_of(answer or [])
        return await fork(client, out, target, wanted, answers=answers, by=by, yes=yes, detach=detach)

    run_command(ctx, action, json=json, invocation=id)


def forks(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of an invocation.")],
    json: AsJson = False,
) -> None:
    """Print of what an invocation is a fork, and which forks it has."""

    _on_a_server(id)

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.forks import forks

        return await forks(client, out, id=id)

    run_command(ctx, action, json=json, invocation=id)


def _on_a_server(id: str) -> None:
    from waystation.cli.recordings import is_file

    if is_file(id):
        kind = "folder" if Path(id).is_dir() else "file"
        raise typer.BadParameter(f"{id!r} is a {kind}; name an invocation of a server", param_hint="ID")
