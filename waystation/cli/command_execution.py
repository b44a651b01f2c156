"""Run the coroutine of a command, and turn its errors into one line on stderr and an exit code."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import structlog
import typer
from pydantic import ValidationError
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode
from typer.core import TyperCommand, TyperGroup

from waystation.cli.command_context import EXIT_CODES, CommandContext, CommandProblem, Exit, to_problem
from waystation.cli.output import write_error
from waystation.core.errors import WaystationError
from waystation.logs import configure_logs
from waystation.project_file import current_project

_SUBJECTS = ("id", "source", "name", "session", "below")
"""Command parameters that may contain an ID. If an invocation is not found, the error names the first that is set."""


class AsyncCommand(TyperCommand):
    """A command whose function is a coroutine that returns the exit code. Expected errors become one line on stderr."""

    context_class = CommandContext

    def invoke(self, ctx: Any) -> NoReturn:
        """Run the command and exit with the code that it returns."""
        raise typer.Exit(_run(ctx, super().invoke))


class CommandGroup(TyperGroup):
    """A command with subcommands. Its help shows their descriptions in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each subcommand with its full description."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(1_000)) for name, command in self.commands.items()])


def create_command_group(help: str) -> typer.Typer:
    """Return a Typer application for a command with subcommands."""
    group = typer.Typer(cls=CommandGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, help=help)
    group.callback()(lambda: None)  # without a callback, Typer would merge the group with an only command
    return group


def create_program(function: Any) -> typer.Typer:
    """Return a Typer application whose only command is `function`."""
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command(cls=AsyncCommand)(function)
    return program


def _run(ctx: CommandContext, invoke: Callable[[CommandContext], Awaitable[int]]) -> int:
    # Keep warnings from Temporal's core off the terminal. If the process already has a runtime, leave it in place.
    only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    with contextlib.suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))
    if not structlog.is_configured():
        configure_logs(own_level=logging.WARNING)  # to stderr, because stdout is for results
    try:
        return asyncio.run(_complete(ctx, invoke))
    except (WaystationError, RPCError) as raised:
        subject = next((ctx.params[name] for name in _SUBJECTS if ctx.params.get(name)), None)
        problem = raised if isinstance(raised, CommandProblem) else to_problem(raised, ctx.target.describe(), subject)
        project = current_project()
        write_error(f"{problem}{project.explain(str(problem)) if project else ''}")
        return problem.exit
    except ValidationError as raised:
        mistake = raised.errors()[0]
        write_error(f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}")
        return Exit.USAGE
    except BrokenPipeError:  # the program that reads the output, such as `head`, has closed the pipe
        raise
    except OSError as raised:
        # The named file may be an input file. An error without a file name concerns the output.
        subject = f"{raised.filename!r} cannot be used" if raised.filename else "The output cannot be written"
        write_error(f"{subject}: {raised.strerror or raised}.")
        return Exit.FAILED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


async def _complete(ctx: CommandContext, invoke: Callable[[CommandContext], Awaitable[int]]) -> int:
    try:
        try:
            return await invoke(ctx)
        except (WaystationError, RPCError) as error:
            if not _is_unknown(error):
                raise
            from waystation.cli.id_matching import complete_ids

            if not await complete_ids(ctx, error):
                raise
        return await invoke(ctx)
    finally:
        if ctx.client is not None:
            ctx.out.report_short_forms(ctx.client.temporal.data_converter)


def _is_unknown(error: WaystationError | RPCError) -> bool:
    """Return whether an invocation, a session or a call does not exist."""
    if isinstance(error, RPCError):
        return error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower()
    return (error.exit if isinstance(error, CommandProblem) else EXIT_CODES.get(type(error))) is Exit.UNKNOWN
