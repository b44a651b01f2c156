"""What commands share: options, the context they work in, and how an error becomes an exit code."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from pydantic import ValidationError
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError
from typer.core import TyperCommand, TyperGroup

from waystation.cli.exit_codes import Exit, Problem, problem_of
from waystation.cli.output import Output, error
from waystation.cli.target import Target
from waystation.client import AgentClient
from waystation.core import JsonObject, WaystationError, clip, decode
from waystation.logs import configure_logs

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")]
InvocationId = Annotated[str, typer.Argument(metavar="ID", help="Id of an invocation.")]
Source = Annotated[str, typer.Argument(metavar="ID|FILE", help="An invocation, or its history as JSON.")]
AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="Name of a root agent.")]
Called = Annotated[
    str | None, typer.Option("--called", metavar="CALL", help="The agent that this call began, such as fc-1.")
]
At = Annotated[int | None, typer.Option("--at", metavar="N", min=0, help="As it was right after event N; 0: before 1.")]
Between = Annotated[
    tuple[int, int] | None, typer.Option("--diff", metavar="N M", help="What changed from event N to event M.")
]
Agents = Annotated[
    list[Path] | None, typer.Option("--agents", metavar="DIR", help="Where the agent is found, as for a worker.")
]
Callbacks = Annotated[
    bool, typer.Option("--callbacks", help="Run `before_model` callbacks here; without it they do not run.")
]
SessionSource = Annotated[
    str | None,
    typer.Option("--session", metavar="ID|FILE", help="Of a file: the session's history, for what was said before."),
]
By = Annotated[str | None, typer.Option(help="Who answers; recorded as a claim. Default: your login name.")]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as something waits for a person.")]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there.")]

User = Annotated[str, typer.Option(help="Whose session it is.")]
App = Annotated[str, typer.Option(help="In which app.")]
_SUBJECTS = ("id", "source", "name", "session", "below")
"""Parameters that name what a command is about, for the error when the server has no such invocation."""


class CommandContext(typer.Context):
    """Where a command writes, and which server it is for."""

    obj: Target
    client: AgentClient | None = None

    @property
    def target(self) -> Target:
        """The server, as the global options name it."""
        return self.obj

    @cached_property
    def out(self) -> Output:
        """Where the command writes: for people, or JSON lines with `--json`."""
        return Output(json=bool(self.params.get("json")))

    async def connect(self) -> AgentClient:
        """Return the client, connected on the first call.

        Raises:
            Problem: No server answers.
        """
        if self.client is None:
            self.client = await self.target.connect()
        return self.client


class AsyncCommand(TyperCommand):
    """A command that is a coroutine function and returns its exit code; an expected error is one line on stderr."""

    context_class = CommandContext

    def invoke(self, ctx: Any) -> NoReturn:
        """Run the command and exit with its code."""
        raise typer.Exit(ctx.invoke(_run, ctx, super().invoke(ctx)))


class CommandGroup(TyperGroup):
    """A command with commands of its own, which its help describes in whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, none of their lines cut."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1_000)) for name, command in self.commands.items()])


def command_group(help: str) -> typer.Typer:
    """Return a command with commands of its own."""
    return typer.Typer(cls=CommandGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, help=help)


def single_command(function: Any) -> typer.Typer:
    """Return a program of one command."""
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command(cls=AsyncCommand)(function)
    return program


def _run(ctx: CommandContext, action: Awaitable[int]) -> int:
    _quieten_core()
    if not structlog.is_configured():
        configure_logs(level=logging.WARNING)  # on stderr: on stdout they would mix with results
    try:
        return asyncio.run(_complete(ctx, action))
    except (WaystationError, RPCError) as raised:
        subject = next((ctx.params[name] for name in _SUBJECTS if ctx.params.get(name)), None)
        problem = raised if isinstance(raised, Problem) else problem_of(raised, ctx.target.where(), subject)
        error(str(problem))
        return problem.exit
    except ValidationError as raised:
        first = raised.errors()[0]
        error(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        return Exit.USAGE
    except BrokenPipeError:  # the reader of the output has seen enough
        raise
    except OSError as raised:
        # A file that has a name was perhaps to be read.
        what = f"{raised.filename!r} cannot be used" if raised.filename else "The output cannot be written"
        error(f"{what}: {raised.strerror or raised}.")
        return Exit.FAILED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


async def _complete(ctx: CommandContext, action: Awaitable[int]) -> int:
    try:
        return await action
    finally:
        if ctx.client is not None:
            ctx.out.shortened(ctx.client.temporal.data_converter)


def _quieten_core() -> None:
    """Keep warnings of Temporal's core off the terminal; a process that has a runtime already keeps it."""
    only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    with contextlib.suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))


def parse_object(option: str, text: str | None) -> JsonObject | None:
    """Parse the value of an option as a JSON object.

    Raises:
        BadParameter: It is not one.
    """
    try:
        return None if text is None else json_object(text)
    except ValueError as error:
        raise typer.BadParameter(f'{error}; write such as {{"amount": 50}}', param_hint=option) from None


def json_object(text: str) -> JsonObject:
    """Parse a JSON object.

    Raises:
        ValueError: It is not one.
    """
    try:
        value = decode(text)
    except ValueError as error:
        raise ValueError(f"{clip(text, 200)!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{clip(text, 200)!r} is not a JSON object")
    return value
