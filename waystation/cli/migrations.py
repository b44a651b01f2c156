"""The command `waystation migrate`: change the imports of programs that were written for ADK."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from waystation.cli.command_context import (
    AsJson,
    CommandContext,
    CommandProblem,
    Exit,
    missing_extra,
    translate_file_errors,
)

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
"""Names of folders whose files belong to other programs."""


async def migrate(
    ctx: CommandContext,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A Python file, or a folder with Python files.")],
    write: Annotated[bool, typer.Option("--write", help="Change the files. Default: only list the changes.")] = False,
    json: AsJson = False,
) -> Exit:
    """Replace the imports of google.adk, and list what behaves differently in Waystation.

    The program is not run. The listed line numbers are those before the change.
    """
    try:
        from waystation import adk_imports
    except ModuleNotFoundError as error:
        raise missing_extra("migrate", error) from None
    if not path.exists():
        raise CommandProblem(Exit.USAGE, f"{str(path)!r} does not exist.")
    changed = remaining = 0
    for file in _find_files(path):
        try:
            with translate_file_errors(file):
                source = file.read_bytes()
            migrated, findings = adk_imports.migrate(source)
            if write and migrated != source:
                with translate_file_errors(file, "written"):
                    file.write_bytes(migrated)
            changed += migrated != source
        except (CommandProblem, adk_imports.NotParsable) as error:
            findings = [adk_imports.ImportChange(0, "skipped", str(error))]
        for found in findings:
            remaining += found.kind in ("missing", "unsupported", "skipped")
            place = f"{file}:{found.line}" if found.line else str(file)
            ctx.out.result({"file": str(file), **vars(found)}, f"{place}: {found.kind}: {found.text}")
    if not json:
        label = "Changed files" if write else "Files to change with --write"
        ctx.out.remark(f"{label}: {changed}. Places to change by hand: {remaining}.")
    return Exit.FAILED if remaining else Exit.OK


def _find_files(path: Path) -> Iterator[Path]:
    """Yield a file, or the Python files of a folder without hidden folders and virtual environments."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED and not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
        )
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))
