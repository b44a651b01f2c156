"""The package of the page `extend-waystation`, installed into a folder."""

import tomllib
from pathlib import Path

import pytest

from tests.documents import blocks, how_to
from waystation.models import providers

PAGE = how_to("extend-waystation")


def install(folder: Path, name: str, entry_points: dict[str, dict[str, str]], summary: str = "") -> None:
    """Install the metadata of a package."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: {summary}\n")
    sections = [
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    providers._find_extension.cache_clear()
    return tmp_path


@pytest.fixture
def acme(site: Path) -> Path:
    """The folder in which the package of the page is installed, with the other files of the page."""
    project = tomllib.loads(blocks(PAGE, "toml")[0])["project"]
    install(site, project["name"], project["entry-points"], project["description"])
    package = site / "acme_waystation"
    package.mkdir()
    (package / "__init__.py").touch()
    for text in blocks(PAGE, "python"):
        name = text.split("\n", 1)[0].removeprefix("# ")
        ((site if name == "agent.py" else package) / name).write_text(text)
    (site / "channels.toml").write_text(blocks(PAGE, "toml")[1])
    return site
