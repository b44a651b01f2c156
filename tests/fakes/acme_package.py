"""The package of the page `extend-waystation`, installed into a folder."""

import tomllib
from pathlib import Path

from tests.documents import blocks, how_to

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


def install_acme(folder: Path) -> None:
    """Install the package of the page, and write its other files."""
    project = tomllib.loads(blocks(PAGE, "toml")[0])["project"]
    install(folder, project["name"], project["entry-points"], project["description"])
    package = folder / "acme_waystation"
    package.mkdir()
    (package / "__init__.py").touch()
    for text in blocks(PAGE, "python"):
        name = text.split("\n", 1)[0].removeprefix("# ")
        ((folder if name == "agent.py" else package) / name).write_text(text)
    (folder / "channels.toml").write_text(blocks(PAGE, "toml")[1])
