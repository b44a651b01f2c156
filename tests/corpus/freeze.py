"""Freeze the kept histories that are not frozen yet: `python -m tests.corpus.freeze`. Run it before a release."""

import hashlib
from pathlib import Path

HERE = Path(__file__).parent
FROZEN = HERE / "frozen.sha256"
"""The frozen files and their digests, in the format of `sha256sum`."""


def read_frozen() -> dict[str, str]:
    """Return the digests of the frozen files, by the path below this folder."""
    lines = FROZEN.read_text().splitlines() if FROZEN.exists() else []
    return {path: digest for digest, path in (line.split("  ") for line in lines)}


def read_kept() -> dict[str, str]:
    """Return the digests of all kept histories, of what their workflows held, and of their payloads, by path."""
    paths = [*HERE.rglob("*.json"), *(path for path in (HERE / "store").rglob("*") if path.is_file())]
    return {str(path.relative_to(HERE)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(set(paths))}


def main() -> None:
    """Add the files that are not frozen yet. Lines that exist do not change."""
    frozen = {**read_kept(), **read_frozen()}
    FROZEN.write_text("".join(f"{digest}  {path}\n" for path, digest in sorted(frozen.items())))
    print(f"{len(frozen)} frozen files")  # noqa: T201


if __name__ == "__main__":
    main()
