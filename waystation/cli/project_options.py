"""Options of commands that the project file sets, and where the value of each setting comes from."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from waystation.configuration import describe_source, describe_unknown
from waystation.core.errors import InvalidConfiguration
from waystation.project_file import OPTION_KEYS, SETTINGS, Project
from waystation.storage import describe_place
from waystation.worker.process import load_worker

DEFAULT = "default"
PROGRAMS = {"web": "web", "codec-server": "codec_server", "dev": "dev"}
"""The commands whose options have a table in the project file. The worker reads its own."""


def list_own_options(command: Any) -> dict[str, Any]:
    """Return the parameters of the options that only this command has, by their key in its table."""
    options = {param.opts[0]: param for param in command.params if param.opts[0].startswith("--")}
    return {name[2:].replace("-", "_"): param for name, param in options.items() if name not in OPTION_KEYS}


def read_defaults(ctx: typer.Context, project: Project, name: str, command: Any) -> dict[str, Any]:
    """Return the defaults that a project file sets for the options of a command, for Click's `default_map`.

    Settings with a variable are left out, because they are read where the variable is.

    Raises:
        InvalidConfiguration: The command's table has an unknown key, or a value that the option does not accept.
    """
    if commands := getattr(command, "commands", None):
        return {part: read_defaults(ctx, project, "", one) for part, one in commands.items()}
    values: dict[str, Any] = {}
    for param in command.params:
        key = OPTION_KEYS.get(param.opts[0])
        if key and not SETTINGS[key].variable and (value := project.get(key)) is not None:
            values[param.name] = value
    if table := PROGRAMS.get(name):
        valid = list_own_options(command)
        for key, value in project.table(table).items():
            if key not in valid:
                raise InvalidConfiguration(project.file, table, f"{describe_unknown(key, list(valid))}.")
            values[valid[key].name] = _convert(ctx, project, f"{table}.{key}", valid[key], value)
    return values


def _convert(ctx: typer.Context, project: Project, key: str, param: Any, value: Any) -> Any:
    if param.is_flag is not isinstance(value, bool) or param.multiple is not isinstance(value, list):
        kind = "true or false" if param.is_flag else "a list" if param.multiple else "a single value"
        raise InvalidConfiguration(project.file, key, f"must be {kind}.")
    try:
        converted = param.process_value(ctx, value)
    except typer.BadParameter as error:
        raise InvalidConfiguration(project.file, key, f"{error.message}.") from None
    return str(project.file.parent / converted) if isinstance(converted, Path) else value


def verify_tables(ctx: typer.Context, project: Project, group: Any) -> None:
    """Check the tables of all programs.

    Raises:
        InvalidConfiguration: A table has an unknown key, or a value that the option does not accept.
    """
    with load_worker():
        from waystation.worker.main import read_project
    read_project(project)
    for name in PROGRAMS:
        read_defaults(ctx, project, name, group.get_command(ctx, name))


def list_given(ctx: typer.Context) -> dict[str, Any]:
    """Return the values of the shared options on the command line, by key."""
    values: dict[str, Any] = ctx.parent.params if ctx.parent else {}
    params = {param.name for param in ctx.command.params}
    sources = {name: ctx.get_parameter_source(name) for name in params if name}
    values = values | {
        name: ctx.params[name] for name, source in sources.items() if str(source).endswith("COMMANDLINE")
    }
    names = {key: option[2:].replace("-", "_") for option, key in OPTION_KEYS.items()}
    return {key: values[name] for key, name in names.items() if values.get(name)}


def list_origins(project: Project | None, options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the key of each setting, its value and where the value comes from.

    `options` has the values of options, by key. The values of secrets are left out.
    """
    for key, setting in SETTINGS.items():
        if options.get(key):
            value, origin = options[key], f"option {setting.option}"
        elif value := os.environ.get(setting.variable):
            origin = f"environment {setting.variable}"
        elif project and (value := project.get(key)) is not None:
            origin = f"{project.file}, key {key}"
        else:
            value, origin = "", DEFAULT
        yield key, _format(setting.kind, value), origin
    if project:
        for table in ("worker", "telemetry", *PROGRAMS.values()):
            for name, value in project.table(table).items():
                yield f"{table}.{name}", str(value), f"{project.file}, key {table}.{name}"


def _format(kind: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if kind == "secret":
        return "a secret"
    return describe_place(value) if kind == "place" and value else describe_source(str(value))
