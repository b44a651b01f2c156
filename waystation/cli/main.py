"""The command `waystation`: global options, and which module has which command. Modules load when they are needed."""

import contextlib
import os
import sys
from importlib import import_module
from itertools import islice
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_GLOBAL = ("--address", "--namespace", "--task-queue", "--profile", "--store")
COMMANDS = {
    "Run agents": {
        "run": ("invocations", "Start an invocation and follow it to its end."),
        "events": ("recordings", "Print what happened in an invocation, or follow it."),
        "state": ("recordings", "Print the state of an invocation."),
        "chat": ("sessions", "Converse with an agent."),
        "sessions": ("sessions", "List sessions."),
        "session": ("sessions", "Show, close or delete a session."),
    },
    "Answer what waits for a person": {
        "pending": ("approvals", "List calls that wait for a person."),
        "approve": ("approvals", "Approve a call."),
        "reject": ("approvals", "Reject a call."),
        "edit": ("approvals", "Approve a call with other arguments."),
        "respond": ("approvals", "Give a long-running call its response."),
        "progress": ("approvals", "Report the progress of a long-running call."),
        "claim": ("approvals", "Claim a call, so that nobody else answers it."),
        "release": ("approvals", "Release a claimed call."),
        "waive": ("approvals", "As an operator, run a call without its approval."),
        "cancel": ("approvals", "As an operator, close a call."),
        "authorize": ("approvals", "Provide the credential that a call waits for."),
    },
    "Debug": {
        "debug": ("debugger", "Step through an invocation, forwards and backwards."),
        "prompt": ("recordings", "Print a prompt as the model saw it."),
        "diff": ("recordings", "Compare the events of two invocations."),
        "history": ("recordings", "Print the recorded history of an invocation as JSON."),
        "replay": ("recordings", "Replay histories against the current code."),
        "rerun": ("reruns", "Run one tool or model call again, on this machine."),
        "fork": ("forks", "Start an invocation that goes on from an event of another."),
        "forks": ("forks", "List the forks of an invocation."),
        "report": ("recordings", "Write an invocation as one HTML page."),
        "audit": ("audits", "Export and verify what people were asked and answered."),
    },
    "Operate": {
        "worker": ("servers", "Serve agents; `waystation worker --help` lists the options."),
        "web": ("servers", "Serve the web application: inbox, timelines, API."),
        "setup": ("servers", "Create the search attributes of a namespace."),
        "identity": ("servers", "Create keys for verified answers."),
    },
}
"""By panel of the help: each command, the module that has it under its name, and its help in one line."""


class LazyGroup(TyperGroup):
    """Imports the module of a command when it is called, and takes the global options after the command, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._modules = {name: module for panel in COMMANDS.values() for name, (module, _) in panel.items()}
        self._modules["demo"] = "demo"  # needs a checkout, where `make demo` runs it
        commands: dict[str, Any] = dict.fromkeys(self._modules)
        self.commands = commands

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, loaded on the first call; None when there is none of that name."""
        if cmd_name in self._modules and self.commands[cmd_name] is None:
            from waystation.cli.command_context import single_command

            command = getattr(import_module(f"waystation.cli.{self._modules[cmd_name]}"), cmd_name)
            program = command if isinstance(command, typer.Typer) else single_command(command)
            self.commands[cmd_name] = typer.main.get_command(program)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, panel by panel, without loading them."""
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:9}", text) for name, (_, text) in commands.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the global options to the front."""
        for arg in args:
            if any("\ud800" <= char <= "\udfff" for char in arg):
                raise typer.BadParameter(f"{arg!a} is not text in this locale; use one with UTF-8")
        front, rest = list[str](), list[str]()
        left = iter(args)
        for arg in left:
            if arg == "--":
                rest.extend([arg, *left])
            elif arg in _GLOBAL:
                front.extend([arg, *islice(left, 1)])
            elif arg.partition("=")[0] in _GLOBAL:
                front.append(arg)
            else:
                rest.append(arg)
        return super().parse_args(ctx, [*front, *rest])


app = typer.Typer(
    name="waystation",
    cls=LazyGroup,
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


def _print_version(requested: bool) -> None:
    if requested:
        from waystation.version import versions

        typer.echo(versions())
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the Temporal server.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Temporal namespace.")] = None,
    task_queue: Annotated[str, typer.Option(help="Task queue that the workers poll.")] = "waystation",
    profile: Annotated[str | None, typer.Option(help="Profile of Temporal's client configuration.")] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where workers keep large payloads: a folder or object store.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Run durable agents and answer what they wait for.

    Without options, the TEMPORAL_* variables and Temporal's client configuration name the server.
    """
    from waystation.cli.command_context import Target, find_program, find_temporal_program

    ctx.obj = Target(address, namespace, task_queue, profile, find_program(), find_temporal_program(), store)


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
        with contextlib.suppress(OSError):  # the reader of the other end has left
            stream.flush()
    os._exit(code)
