"""`waystation rerun`: its options. What it does is in `reruns`, which loads what a worker loads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.command import parse_object, run_offline_command
from waystation.cli.looking import Called

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target


def rerun(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="ID|FILE", help="An invocation, or its history as JSON.")],
    event: Annotated[int, typer.Argument(metavar="N", help="Number of an event, as `events` lists them.", min=1)],
    agents: Annotated[list[Path], typer.Option(metavar="DIR", help="Where agents are found, as for a worker.")],
    called: Called = None,
    call: Annotated[
        str | None, typer.Option(metavar="CALL", help="The call, such as fc-1, when the event has several.")
    ] = None,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of the recorded arguments.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a tool runs.")] = False,
    unapproved: Annotated[
        bool, typer.Option("--unapproved", help="Run a call that needed an approval and never had it.")
    ] = False,
    model_call: Annotated[
        bool, typer.Option("--model-call", help="Of an event with calls: the model call that made them.")
    ] = False,
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An edited prompt, as --write-prompt wrote it.")
    ] = None,
    write_prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the prompt, and do not call the model.")
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the prompt in $EDITOR first.")] = False,
    instruction: Annotated[str | None, typer.Option(metavar="TEXT", help="Instead of the system instruction.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Ask this model; `demo` for the agent's offline stand-in.")
    ] = None,
    artifacts: Annotated[
        str | None, typer.Option(metavar="URL", help="Where artifacts are: a folder or object store.")
    ] = None,
    memory: Annotated[Path | None, typer.Option(metavar="FILE", help="Where memories are.")] = None,
    credentials: Annotated[str | None, typer.Option(metavar="URL", help="Where credentials are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")] = False,
) -> None:
    """Run the tool call or the model call of an event again, on this machine, and show what differs.

    A tool gets the recorded arguments and context, the idempotency key included, and what it does is real: it is asked
    for first, unless its effect is `read`. Nothing is written to the server or the history.
    """

    arguments = parse_object("--args", args)

    async def action(out: "Output", target: "Target") -> int:
        from waystation.cli.reruns import Wanted, rerun

        services = {"artifacts": artifacts, "memory": memory, "credentials": credentials}
        wanted = Wanted(
            source=source,
            event=event,
            called=called,
            agents=agents,
            call=call,
            args=arguments,
            yes=yes,
            unapproved=unapproved,
            model_call=model_call,
            prompt=prompt,
            write_prompt=write_prompt,
            edit=edit,
            instruction=instruction,
            model=model,
            services={name: given for name, given in services.items() if given is not None},
        )
        return await rerun(target, out, wanted)

    run_offline_command(ctx, action, json=json, invocation=source)
