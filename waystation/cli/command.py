"""Run what a command does, and turn its result or its error into an exit code."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import typer

from waystation.cli import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.client import AgentClient
    from waystation.core.payload import JsonObject


def parse_object(option: str, text: str | None) -> "JsonObject | None":
    """Parse the value of an option as a JSON object.

    Raises:
        BadParameter: It is not one.
    """
    if text is None:
        return None
    from waystation.core.payload import decode

    try:
        value = decode(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}", param_hint=option) from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'{text!r} is no JSON object, such as {{"amount": 50}}', param_hint=option)
    return value


def run_command(
    ctx: typer.Context,
    action: "Callable[[AgentClient, Output, Target], Awaitable[int]]",
    *,
    json: bool,
    invocation: str | None = None,
) -> None:
    """Run a command that needs the server, and exit with its code."""

    async def connected(out: "Output", target: "Target") -> int:
        client = await target.connect()
        try:
            return await action(client, out, target)
        finally:
            out.shortened(client.temporal.data_converter)

    run_offline_command(ctx, connected, json=json, invocation=invocation)


def run_offline_command(
    ctx: typer.Context,
    action: "Callable[[Output, Target], Awaitable[int]]",
    *,
    json: bool,
    invocation: str | None,
) -> None:
    """Run a command and exit with its code; an expected error is one line on stderr."""
    from pydantic import ValidationError
    from temporalio.service import RPCError

    from waystation.cli.exits import Exit, Problem, problem_of
    from waystation.cli.output import Output, error
    from waystation.core.errors import WaystationError

    target: Target = ctx.obj
    _quieten_core()
    _log_to_stderr()

    async def awaited() -> int:
        return await action(Output(json=json), target)

    try:
        code = asyncio.run(awaited())
    except (WaystationError, RPCError) as raised:
        problem = raised if isinstance(raised, Problem) else problem_of(raised, target.where(), invocation)
        error(str(problem))
        code = problem.exit
    except ValidationError as raised:
        found = raised.errors()[0]
        error(f"{'.'.join(map(str, found['loc']))}: {found['msg']}")
        code = Exit.USAGE
    except BrokenPipeError:  # whoever read the output has seen enough
        raise
    except OSError as raised:
        # A file that has a name was perhaps to be read.
        what = f"{raised.filename!r} cannot be used" if raised.filename else "The output cannot be written"
        error(f"{what}: {raised.strerror or raised}.")
        code = Exit.FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


def _log_to_stderr() -> None:
    """Keep events of structlog off standard output, where they would stand among results."""
    import structlog

    from waystation.logs import configure_logs

    if not structlog.is_configured():
        configure_logs(level=logging.WARNING)


def _quieten_core() -> None:
    """Keep warnings of Temporal's core off the terminal; a process that has a runtime already keeps it."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    with contextlib.suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))
