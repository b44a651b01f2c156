"""`waystation report`: an invocation on one page. What the page says is in `waystation.presentation.report`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.command import run_offline_command

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target
    from waystation.presentation.report import Report


def report(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="ID|FILE", help="An invocation, or a history as JSON.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of a page.")] = False,
) -> None:
    """Write what an invocation did, what it cost and what people said on one page, which needs nothing beside it.

    It has the timeline, model calls with what they were shown, events, changes of state, approvals, errors and
    retries, and the same of called agents. Of a file no server is needed.
    """

    async def action(out: "Output", target: "Target") -> int:
        from waystation.cli.exits import Exit, Problem
        from waystation.cli.recordings import Recordings, is_file
        from waystation.core.errors import ForeignHistory
        from waystation.presentation.report import report

        if output is None and not json and sys.stdout.isatty():
            raise Problem(Exit.USAGE, "A page is nothing for a terminal; say with -o FILE where it goes, or --json.")
        recording = await Recordings(target).get(source)
        # Of what goes on in a file nobody knows more than when the file was written.
        now = await asyncio.to_thread(os.path.getmtime, source) if is_file(source) else None
        try:
            text = _written(report(recording, now=now), json=json)
        except ForeignHistory as error:
            raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, str(error)) from None
        except ModuleNotFoundError as error:
            lacking = f"`waystation report` needs {error.name!r}; install it with: pip install 'waystation[report]'"
            raise Problem(Exit.USAGE, f"{lacking}. With --json nothing is needed.") from None
        if output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            try:
                output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise Problem(Exit.USAGE, f"{str(output)!r} cannot be written: {error.strerror}.") from None
            if not json:
                out.line(f"{output}: {len(text.encode()):,} bytes")
        return Exit.OK

    run_offline_command(ctx, action, json=json, invocation=source)


def _written(report: "Report", *, json: bool) -> str:
    if not json:
        return report.html()
    from waystation.presentation import terminal

    return terminal.safe_json(report.to_json()) + "\n"
