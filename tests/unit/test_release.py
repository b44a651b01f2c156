"""`make release` tags what is ready, and refuses everything else with the reason."""

import os
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
    "bin/uv": '#!/bin/sh\necho "$7 in $PWD" >> "$OLDPWD/ran"\n',
    **dict.fromkeys(("deploy/compose.yaml", "deploy/helm/waystation/Chart.yaml", "docs/how-to/deploy.md"), "0.3.0\n"),
}
"""A repository whose version can be released. Its targets only write their own names."""


WHO = {f"GIT_{role}_{part}": "a@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
ENVIRONMENT = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, "MAKEFLAGS": ""}
"""Variables that hide the Git settings of this machine."""


def run(folder: Path, command: str) -> str:
    """Run a shell command and return its output."""
    environment = {**ENVIRONMENT, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def release(folder: Path, files: Mapping[str, str], *, tag: str = "0.2.0", change: str = "ran") -> tuple[str, str]:
    """Commit files, and release them with the script; return its last line and the targets that it ran."""
    for name, text in {**READY, **files, ".ci/release": (ROOT / ".ci" / "release").read_text()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run(folder, f"chmod +x bin/uv && git init && git add --all && git commit -m it && git tag -a {tag} -m it")
    run(folder, f"touch ran {change}")
    return run(folder, "bash .ci/release").splitlines()[-1], (folder / "ran").read_text()


def test_a_version_that_is_ready_is_tested_built_and_tagged(tmp_path: Path) -> None:
    """The tag is annotated, and the last line says how to publish it."""
    last, ran = release(tmp_path, {})
    assert last.startswith("Tagged 0.3.0. To publish it: git push origin 0.3.0")
    assert (ran, run(tmp_path, "git cat-file -t 0.3.0")) == ("check\ntest-full\ndist\nsbom\ndemo in /\n", "tag\n")


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
    """The release is refused before any test, because the tests take an hour."""
    assert release(tmp_path, files, tag=tag, change=change) == (f"NOT RELEASED: {problem}", "")


def test_a_failed_test_leaves_no_tag(tmp_path: Path) -> None:
    """A failed test leaves no tag, which would publish the fault."""
    failing = READY["Makefile"].replace("echo", "test $@ != test-full && echo")
    assert release(tmp_path, {"Makefile": failing})[1] == "check\n"
    assert run(tmp_path, "git tag") == "0.2.0\n"
