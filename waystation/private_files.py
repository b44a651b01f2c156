"""Folders and files on this machine that other users must not open."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

FOLDER = ".waystation"
"""The name of the folder with the data of a project: histories, payloads, keys."""


def create_folder(folder: Path) -> None:
    """Create a folder and its parents. If it is in `.waystation`, close that folder to other users.

    This also closes a `.waystation` that exists.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, *folder.parents):
        if place.name == FOLDER:
            with suppress(OSError):  # it belongs to another user, who shares it
                place.chmod(0o700)


def close_file(file: Path) -> None:
    """Let only its owner read and write a file, if it exists."""
    with suppress(OSError):
        if file.is_file():
            file.chmod(0o600)


def create_file(file: Path, data: bytes) -> None:
    """Write a new file that only its owner can read.

    It gets its final name when it is complete, so that a program that starts at the same time never reads a part of it.

    Raises:
        FileExistsError: The file exists.
        OSError: The file cannot be written.
    """
    part = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
            out.write(data)
        os.link(part, file)
    finally:
        part.unlink(missing_ok=True)
