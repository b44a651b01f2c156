"""Freeze the kept histories that are not frozen yet: `python -m tests.corpus.freeze`. Run it before a release."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
FROZEN = HERE / "frozen.sha256"
"""The frozen files and their digests, in the format of `sha256sum`."""
REMEDY = "Run `python -m tests.corpus.freeze` and commit tests/corpus/frozen.sha256 before the tag."


def read_frozen() -> dict[str, str]:
    """Return the digests of the frozen files, by the path below this folder."""
    lines = FROZEN.read_text().splitlines() if FROZEN.exists() else []
    return {path: digest for digest, path in (line.split("  ") for line in lines)}


def read_kept() -> dict[str, str]:
    """Return the digests of all kept histories, of their workflows' states, and of their payloads, by path."""
    paths = [*HERE.rglob("*.json"), *(path for path in (HERE / "store").rglob("*") if path.is_file())]
    return {str(path.relative_to(HERE)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(set(paths))}


def freeze(frozen: Mapping[str, str], kept: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the frozen and the kept histories. Digests that are already frozen do not change."""
    return {**kept, **frozen}


def find_faults(changelog: str, frozen: Mapping[str, str], kept: Mapping[str, str]) -> list[str]:
    """Return the faults of the frozen files, given the text of the changelog.

    A version is released if its heading has a date instead of `(unreleased)`. If the newest one is released, all kept
    histories must be frozen. Histories that are recorded later are frozen at the next release.
    """
    faults = [f"{path} is frozen, and has changed or is missing." for path in frozen if kept.get(path) != frozen[path]]
    versions = re.findall(r"^## (\S+) \((.+)\)$", changelog, re.MULTILINE)
    released = [version for version, date in versions if date != "unreleased"]
    if released and not frozen:
        faults.append(f"Version {released[0]} is released, but no history is frozen. {REMEDY}")
    elif released and released[0] == versions[0][0]:
        faults.extend(f"{path} is not frozen. {REMEDY}" for path in kept if path not in frozen)
    return faults


def main() -> None:
    """Add the files that are not frozen yet. Lines that exist do not change."""
    frozen = freeze(read_frozen(), read_kept())
    FROZEN.write_text("".join(f"{digest}  {path}\n" for path, digest in sorted(frozen.items())))
    print(f"{len(frozen)} frozen files")  # noqa: T201


if __name__ == "__main__":
    main()
