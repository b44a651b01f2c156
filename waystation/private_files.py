"""Folders and files on this machine that other users must not open."""

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
