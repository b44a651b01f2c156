"""Whether stores can be used. Workers, health checks and `waystation doctor` report the same problems."""

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryFile

from waystation.core.errors import StoreFailed, WaystationError
from waystation.storage.object_files import ObjectFiles, unusable
from waystation.storage.postgres import find_postgres_problem, is_postgres_url
from waystation.storage.store_places import local_path

PROBE = ".probe"
"""Name of the empty object that is written to an object store to find out whether it is writable."""
LIMIT_S = 2.5
"""How long an object store may take to read or write the probe, unless the caller waits longer. Its client would retry
for minutes."""


async def probe(files: ObjectFiles, *, writing: bool, limit_s: float | None = None) -> str | None:
    """Read from an object store or folder, or write to it, and return why it cannot be used, or None.

    A folder that does not exist yet is created when first needed, and so can be used.
    """
    if (writing or files.folder is None) and (problem := files.unusable()):
        return problem
    limit_s = limit_s or LIMIT_S
    try:
        async with asyncio.timeout(limit_s):
            if files.folder is None:
                await (files.put(PROBE, b"") if writing else files.get(PROBE))
            elif files.folder.exists():
                os.listdir(files.folder)
                if writing:  # permissions do not show a full disk
                    with TemporaryFile(dir=files.folder) as file:
                        file.write(b"0")
    except TimeoutError:
        return f"no answer within {limit_s:g} s"
    except StoreFailed as error:
        return error.problem
    except (OSError, WaystationError) as error:  # also if the keys of encryption cannot be read
        return str(error)
    return None


def probe_all(*, write: tuple[ObjectFiles, ...] = (), read: tuple[ObjectFiles, ...] = ()) -> str | None:
    """Return why one of the stores cannot be used, or None. Call this outside the event loop."""

    async def run() -> list[str | None]:
        return await asyncio.gather(*(probe(files, writing=files in write) for files in (*write, *read)))

    problems = zip((*write, *read), asyncio.run(run()), strict=True)
    return next((str(StoreFailed(files.place, problem)) for files, problem in problems if problem), None)


def find_database_problem(place: str | Path, *, is_asked: bool = True) -> str | None:
    """Return why a store in PostgreSQL or an SQLite file cannot be used, or None. Nothing is created.

    Other kinds of stores are not checked, and without `is_asked`, neither is PostgreSQL.
    """
    if is_postgres_url(place):
        return find_postgres_problem(place) if is_asked else None
    path = local_path(place)
    if path is None:
        return None
    if path.is_dir():
        return "it is a folder; specify a file."
    if path.exists():
        return None if os.access(path, os.W_OK) else "this process cannot write to it; change its permissions."
    return unusable(path.parent)
