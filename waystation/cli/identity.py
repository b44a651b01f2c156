"""`waystation identity`: keys for verified answers; and the token with which a person answers."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.command import run_offline_command

if TYPE_CHECKING:
    from waystation.cli.output import Output
    from waystation.cli.target import Target

TOKEN = "WAYSTATION_TOKEN"  # the name of a variable
MAX_FILE_BYTES = 100_000

TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"Holds the token that proves who answers; it is sent encrypted. Default: the variable {TOKEN}.",
    ),
]

identity_commands = typer.Typer(
    name="identity", no_args_is_help=True, rich_markup_mode=None, help="Set up who may answer, and how they prove it."
)


@identity_commands.callback()
def _commands() -> None:
    """Set up who may answer, and how they prove it."""


@identity_commands.command()
def init(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are put; nothing is overwritten.")],
    json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line, and nothing else.")] = False,
) -> None:
    """Make keys, and examples of the configurations of workers, of `waystation web` and of clients."""

    async def action(out: "Output", _target: "Target") -> int:
        from waystation.cli.exits import Exit, Problem

        try:
            from waystation.identity.init import write
        except ModuleNotFoundError as error:
            text = f"`waystation identity` needs {error.name!r}; install it with: pip install 'waystation[identity]'"
            raise Problem(Exit.USAGE, text) from None
        files = write(folder)
        if out.json:
            out.record({"files": [str(file) for file in files]})
        else:
            for file in files:
                out.line(str(file))
            out.remark("Each .toml says who needs it. Keep what only you may read (0600) where only they can.")
        return Exit.OK

    run_offline_command(ctx, action, json=json, invocation=None)


def token_of(file: Path | None) -> str | None:
    """Return the token with which somebody answers; None for an answer without one.

    Raises:
        Problem: The file cannot be read.
    """
    from waystation.cli.exits import Exit, Problem

    if file is None:
        return (os.environ.get(TOKEN) or "").strip() or None
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES).decode("ascii").strip()
    except OSError as error:
        raise Problem(Exit.USAGE, f"--token-file: {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise Problem(Exit.USAGE, f"--token-file: {file} holds no token.")
    return text
