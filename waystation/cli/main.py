"""The command `waystation`: options and help. What commands do is in the modules beside, loaded when needed."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from waystation.cli.answering import ANSWERING, authorize, pending
from waystation.cli.audit import audit_commands
from waystation.cli.command import parse_object, run_command, run_offline_command
from waystation.cli.forking import fork, forks
from waystation.cli.identity import identity_commands
from waystation.cli.looking import LOOKING
from waystation.cli.replaying import replay
from waystation.cli.reporting import report
from waystation.cli.rerunning import rerun
from waystation.cli.sessions import chat, session_commands, sessions
from waystation.cli.web import web

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient

_GLOBAL = ("--address", "--namespace", "--task-queue", "--profile", "--store")


class GlobalsAnywhere(TyperGroup):
    """Takes the global options after the command, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the global options to the front."""
        for arg in args:
            if any("\ud800" <= char <= "\udfff" for char in arg):
                raise typer.BadParameter(f"{arg!a} is no text in this locale; use one with UTF-8")
        front, rest = list[str](), list[str]()
        left = iter(args)
        for arg in left:
            if arg == "--":
                rest.extend([arg, *left])
            elif arg in _GLOBAL:
                front.append(arg)
                front.extend(value for value in [next(left, None)] if value is not None)
            elif arg.startswith(tuple(f"{name}=" for name in _GLOBAL)):
                front.append(arg)
            else:
                rest.append(arg)
        return super().parse_args(ctx, [*front, *rest])


app = typer.Typer(
    name="waystation",
    cls=GlobalsAnywhere,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok; 1 the invocation failed, was cancelled or stopped early, a history does not replay, "
    "two of them differ, or an audit was altered; "
    "2 usage; 3 already answered; 4 expired; 5 not allowed; 6 no such invocation or call; 7 no worker has confirmed "
    "the answer yet; 8 no server; 9 the session is closed; 10 it is busy; 130 interrupted.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
Stream = Annotated[
    bool, typer.Option("--stream", help="Follow, and show text while a model says it; `run --stream` starts such.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of an invocation.")]


def _version(wanted: bool) -> None:
    if wanted:
        from waystation.version import versions

        typer.echo(versions())
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where Temporal serves.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Temporal's namespace.")] = None,
    task_queue: Annotated[str, typer.Option(help="What the workers poll.")] = "waystation",
    profile: Annotated[str | None, typer.Option(help="A profile of Temporal's client configuration.")] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the workers keep large payloads: a folder or object store.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Run durable agents and answer what they wait for.

    Without options the TEMPORAL_* variables and the client configuration of Temporal say where the server is.
    """
    from waystation.cli.target import Target, program_name, temporal_name

    ctx.obj = Target(address, namespace, task_queue, profile, program_name(), temporal_name(), store)


@app.command()
def run(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of a root agent.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What it is told.")],
    id: Annotated[str | None, typer.Option(help="Id of the invocation; one that exists is followed.")] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="Initial state, an object.")] = None,
    user: Annotated[str | None, typer.Option(help="Whom the agent serves.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return as soon as something waits for a person.")] = False,
    stream: Stream = False,
    budget: Annotated[
        str | None, typer.Option(metavar="LIMITS", help="Such as tokens=5000,model_calls=9,tool_calls=9,seconds=60.")
    ] = None,
    on_exhausted: Annotated[
        Literal["stop", "wrap_up", "ask"] | None, typer.Option(help="What happens when the budget is used up.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prices of models as JSON; cost=N in --budget needs them.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Start an invocation and follow it to its end. Ctrl-C ends the following, never the invocation."""
    initial = parse_object("--state", state)
    if id == "":
        raise typer.BadParameter("an id has at least one character", param_hint="--id")

    allowed = None
    if budget or on_exhausted or prices:
        from waystation.cli.budgets import budget_of

        allowed = budget_of(budget, on_exhausted, prices)

    async def action(client: "AgentClient", out: "Output", target: "Target") -> int:
        from waystation.cli.watch import run

        given = {"id": id, "state": initial, "user_id": user, "budget": allowed}
        return await run(client, out, target, agent=agent, message=message, detach=detach, stream=stream, **given)

    run_command(ctx, action, json=json, invocation=id)


for looking in LOOKING:
    app.command()(looking)
for answering in (pending, *ANSWERING, authorize):
    app.command()(answering)


@app.command()
def history(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID|FILE", help="An invocation, or its history as JSON.")],
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Hide: secrets, text, or field:NAME such as field:email; may be repeated."),
    ] = None,
) -> None:
    """Print what Temporal recorded of an invocation, all of its runs, as JSON; `replay` takes it from a file.

    Of an invocation with one run it is what `temporal workflow show -o json` prints. Redacted, it keeps its events,
    ids, numbers and lengths, and replays.
    """

    async def action(out: "Output", target: "Target") -> int:
        from waystation.cli.histories import history

        return await history(target, out, source=id, rules=redact or ())

    run_offline_command(ctx, action, json=True, invocation=id)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def worker(ctx: typer.Context) -> None:
    """Serve agents: `waystation worker --agents DIR`; `waystation worker --help` lists the options."""
    from waystation.worker.main import main as serve

    target = ctx.obj
    passed = {
        "--address": target.address,
        "--namespace": target.namespace,
        "--profile": target.profile,
        "--store": target.store,
        "--task-queue": target.task_queue,
    }
    options = [part for name, value in passed.items() if value is not None for part in (name, value)]
    raise typer.Exit(serve([*ctx.args, *options], program="waystation worker"))


@app.command()
def setup(ctx: typer.Context, json: AsJson = False) -> None:
    """Create the search attributes by which invocations are found. May be repeated."""

    async def action(client: "AgentClient", out: "Output", _target: "Target") -> int:
        from waystation.cli.search_attributes import create

        return await create(client, out)

    run_command(ctx, action, json=json)


app.command()(replay)
app.command()(rerun)
app.command()(report)
app.command()(fork)
app.command()(forks)
app.command()(web)
app.command()(chat)
app.command()(sessions)
app.add_typer(session_commands)
app.add_typer(audit_commands)
app.add_typer(identity_commands)


def main() -> None:
    """Run the command line.

    Leaves without taking the interpreter down: threads of Temporal's client may abort the process there.
    """
    # Here, because structlog is slow to load.
    from waystation.logs import open_standard_streams

    open_standard_streams()
    code = 1
    try:
        app()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read the other end has left
            stream.flush()
    os._exit(code)
