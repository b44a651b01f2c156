"""The `waystation` program: its global options and its commands, whose modules are imported on first use.

Other packages may provide further commands; see `waystation.extensions`.
"""

import contextlib
import os
import sys
from importlib import import_module
from itertools import islice
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from waystation.cli.command_table import COMMANDS
from waystation.stop_signals import exit_until_handled

_GLOBAL = ("--address", "--namespace", "--task-queue", "--profile", "--store", "--project-file")
_WITHOUT_PROJECT = ("demo", "migrate", "new")
"""Commands that need no settings, so that a project file that is not valid does not matter."""
WIDTH = max(len(name) for panel in COMMANDS.values() for name in panel)
"""Width of the column with the names of the commands."""
_MODULES = {name: module for panel in COMMANDS.values() for name, (module, _) in panel.items()}


def _load_command(name: str) -> Any:
    """Return the function or group of a command, or None if neither Waystation nor another package provides it."""
    if name in _MODULES:
        return getattr(import_module(f"waystation.cli.{_MODULES[name]}"), name.replace("-", "_"))
    from waystation import extensions  # only needed for other packages

    try:
        entry = extensions.find_extensions(extensions.COMMANDS).get(name)
        return entry and extensions.load_extension(entry)
    except extensions.ExtensionFailed as error:
        from waystation.cli.output import write_error

        write_error(str(error))
        raise typer.Exit(1) from None


def _list_others() -> dict[str, str]:
    """Return the commands of other packages, each with the summary of its package. The packages are not imported."""
    from importlib.metadata import entry_points

    if not entry_points(group="waystation.commands"):
        return {}  # without the quarter of a second that loading the errors of extensions takes
    from waystation import extensions

    try:
        entries = extensions.find_extensions(extensions.COMMANDS)
    except extensions.ExtensionFailed as error:
        return {"": str(error)}
    return {
        name: f"Ignored, because Waystation has this command: {entry.value}"
        if name in _MODULES
        else str((entry.dist and entry.dist.metadata.json.get("summary")) or entry.value)
        for name, entry in entries.items()
    }


class LazyGroup(TyperGroup):
    """A command group that imports each command on first use and also accepts global options after the command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if it does not exist. Its module is imported on the first call.

        Raises:
            Exit: The package that provides the command cannot be loaded.
        """
        if self.commands.get(cmd_name) is None and (command := _load_command(cmd_name)) is not None:
            from waystation.cli.command_execution import create_program

            self.commands[cmd_name] = typer.main.get_command(
                command if isinstance(command, typer.Typer) else create_program(command)
            )
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands to the help, panel by panel, without importing their modules."""
        panels = {title: {name: text for name, (_, text) in commands.items()} for title, commands in COMMANDS.items()}
        for title, texts in {**panels, "Commands of other packages": _list_others()}.items():
            if texts:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:{WIDTH}}", text) for name, text in texts.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return what completes a word of the shell, without importing the modules of the commands."""
        own = {name: text for commands in COMMANDS.values() for name, (_, text) in commands.items()}
        texts = {**_list_others(), **own}
        self.commands = {name: TyperCommand(name, short_help=text) for name, text in texts.items()}
        return super().shell_complete(ctx, incomplete)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move global options to the front, so that users may also write them after the command.

        Raises:
            BadParameter: An argument is not valid text in the current locale.
        """
        for arg in args:
            if any("\ud800" <= char <= "\udfff" for char in arg):
                raise typer.BadParameter(
                    f"{arg!a} is not valid text in this locale; set a UTF-8 locale, such as LC_ALL=C.UTF-8"
                )
        global_args, rest = list[str](), list[str]()
        remaining = iter(args)
        for arg in remaining:
            if arg == "--":
                rest.extend([arg, *remaining])
            elif arg == "--strict":
                global_args.append(arg)
            elif arg in _GLOBAL:
                global_args.extend([arg, *islice(remaining, 1)])
            else:
                (global_args if arg.partition("=")[0] in _GLOBAL else rest).append(arg)
        return super().parse_args(ctx, [*global_args, *rest])


app = typer.Typer(
    name="waystation",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
    Exit codes:
      0    success
      1    the invocation failed, was canceled or stopped early;
           histories differ or do not replay; an audit was altered;
           a program cannot be migrated completely
      2    usage error
      3    the call has already been answered
      4    the call has expired
      5    not allowed
      6    no such invocation, session or call
      7    no worker has confirmed the answer yet
      8    the server cannot be reached
      9    the session is closed
      10   the session is busy
      11   `worker`: a tool blocked the event loop
      12   `worker`: the process used too much memory
      130  interrupted""",
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
    task_queue: Annotated[
        str | None, typer.Option(help="Task queue that the workers poll. Default: waystation.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile in the Temporal client configuration file.")] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Folder or object store where workers store large payloads.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail if a store is not the one that open invocations use. Default: `worker`, `web`, `doctor` and "
            "commands that open stores of their own warn; others do not compare.",
        ),
    ] = False,
    project_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Project file with settings, or `none`. Default: $WAYSTATION_PROJECT, or waystation.toml in this "
            "folder or the nearest one above it.",
        ),
    ] = ".",
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Run durable agents on Temporal, and answer calls that are waiting for a person.

    The options below select the Temporal server. Without them, the TEMPORAL_* environment variables, the project file
    and the Temporal client configuration file apply. You can also write these options after the command.
    """
    from waystation.cli.command_context import ServerTarget, find_program, find_temporal_program

    queue = _use_project(ctx, project_file)
    programs = find_program(), find_temporal_program()
    ctx.obj = ServerTarget(
        address, namespace, task_queue or queue or "waystation", profile, *programs, store, strict, project_file
    )


def _use_project(ctx: typer.Context, place: str) -> str | None:
    """Let the project file set the defaults of the command. Return the task queue in the file, or None."""
    from waystation.core.errors import InvalidConfiguration
    from waystation.project_file import NO_PROJECT, load_project, use_project

    try:
        use_project(project := load_project(NO_PROJECT if ctx.invoked_subcommand in _WITHOUT_PROJECT else place))
        if project is None:
            return None
        from waystation.cli.project_options import read_defaults

        name = ctx.invoked_subcommand or ""
        command = ctx.command.get_command(ctx, name)  # type: ignore[attr-defined]  # it is a group
        ctx.default_map = {name: read_defaults(ctx, project, name, command)}
        queue: str | None = project.get("server.task_queue")
        return queue
    except InvalidConfiguration as error:
        from waystation.cli.output import write_error

        write_error(str(error))
        raise typer.Exit(2) from None


def main() -> None:
    """Run the command line.

    Exit without shutting down the interpreter: during a shutdown, threads of the Temporal client can abort the process.
    """
    if sys.argv[1:2] == ["worker"]:
        exit_until_handled()
    # Imported here because structlog is slow to import.
    from waystation.logs import open_standard_streams

    open_standard_streams()
    code = 1
    try:
        app()
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the program at the other end has closed the pipe
            stream.flush()
    os._exit(code)
