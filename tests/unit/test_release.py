"""`make release` tags what is ready, and refuses everything else with the reason."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.paths import ROOT

READY = {
    "pyproject.toml": '[project]\nversion = "0.3.0"\n',
    "CHANGELOG.md": "# Changelog\n\n## 0.3.0 (2026-12-01)\n\n## 0.2.0 (2026-11-01)\n",
    "Makefile": "check test-full dist sbom:\n\t@echo $@ >> ran\n",
    ".gitignore": "ran\n",
    **dict.fromkeys(("deploy/compose.yaml", "deploy/helm/waystation/Chart.yaml", "docs/how-to/deploy.md"), "0.3.0\n"),
}
"""A repository whose version can be released. Its targets only write their names."""
STAGED = ["check", "test-full", "dist", "sbom"]


def git(folder: Path, *arguments: str) -> str:
    """Run git without the settings of this machine."""
    who = {f"GIT_{role}_{part}": "someone@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def release(
    folder: Path, files: Mapping[str, str], *, tag: str = "0.2.0", change: str = "ran"
) -> tuple[str, list[str]]:
    """Commit files, and release them with the script; return its last line and the targets that it ran."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release", folder / ".ci")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "core: start")
    git(folder, "tag", "--annotate", tag, "--message", tag)
    (folder / change).touch()
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    who = {"GIT_COMMITTER_NAME": "someone", "GIT_COMMITTER_EMAIL": "someone@localhost", "UV": "true"}
    command = [folder / ".ci" / "release"]
    done = subprocess.run(command, env={**environment, **who}, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()[-1], (folder / "ran").read_text().split() if change == "ran" else []


def test_a_version_that_is_ready_is_tested_built_and_tagged(tmp_path: Path) -> None:
    """The tag is annotated, and the last line says how to publish it."""
    last, ran = release(tmp_path, READY)
    assert ran == STAGED
    assert last.startswith("Tagged 0.3.0. To publish it: git push origin 0.3.0")
    assert git(tmp_path, "cat-file", "-t", "0.3.0") == "tag\n"


@pytest.mark.parametrize(
    ("files", "tag", "change", "problem"),
    [
        ({}, "0.2.0", "notes", "the checkout has uncommitted changes. Commit or remove them."),
        ({}, "0.3.0", "ran", "0.3.0 is tagged already. Set the next version in pyproject.toml."),
        (
            {"CHANGELOG.md": "## 0.3.0 (unreleased)\n"},
            "0.2.0",
            "ran",
            "CHANGELOG.md begins with '0.3.0 (unreleased)'. Its first section must be '0.3.0 (DATE)'.",
        ),
        ({"deploy/compose.yaml": "0.2.0\n"}, "0.2.0", "ran", "deploy/compose.yaml does not name 0.3.0."),
    ],
    ids=["uncommitted", "tagged", "undated", "other version"],
)
def test_a_version_that_is_not_ready_is_refused_at_once(
    tmp_path: Path, files: Mapping[str, str], tag: str, change: str, problem: str
) -> None:
    """The tests of a release take an hour, so nothing runs before."""
    assert release(tmp_path, {**READY, **files}, tag=tag, change=change) == (f"NOT RELEASED: {problem}", [])


def test_a_failed_test_leaves_no_tag(tmp_path: Path) -> None:
    """A tag would publish what was found to be broken."""
    failing = READY["Makefile"].replace("echo", "test $@ != test-full && echo")
    assert release(tmp_path, {**READY, "Makefile": failing})[1] == ["check"]
    assert git(tmp_path, "tag") == "0.2.0\n"
