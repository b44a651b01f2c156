"""Build the website of the documentation: `python -m docs.website [FOLDER]`.

The pages are copied to FOLDER (`build/website` by default) and changed in two ways: links to files outside of `docs`
lead to pages that show these files, and some reference pages get a part that is generated from the code. Zensical then
builds the site. It needs no network, and the site loads nothing from other hosts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs.generated import GENERATED

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
STYLE = DOCS / "website.css"
OUTSIDE = Path("repository")
"""The folder of the site with the files of the repository that pages link to."""
PROJECT = {name: ROOT / f"{name.upper()}.md" for name in ("contributing", "changelog", "security")}
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".service": "ini", "": "text"}
"""The languages in which files are highlighted, by suffix. A page that shows a folder has only files with these."""
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:)([^)#\s]+)")
"""Matches the file in a relative Markdown link, without its anchor."""
_ENTRY = re.compile(r"^(?:- |\| )\[([^]]+)\]\(([^)#]+\.md)\)", re.MULTILINE)
"""Matches an entry of a list or a table that begins with a link to a page: its title and its path."""


def find_place(path: Path) -> Path:
    """Return the path in the site's sources of a file or a folder of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    place = OUTSIDE / path.relative_to(ROOT)
    return place if path.suffix == ".md" else place.with_name(f"{place.name}.md")


class Pages:
    """The sources of the site, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[Path] = set()

    def add(self, path: Path) -> None:
        """Add a file or a folder of the repository, and the files outside of `docs` that it links to."""
        place = find_place(path)
        if place in self._written:
            return
        self._written.add(place)
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in {".png", ".css"}:
            shutil.copyfile(path, target)
        else:
            target.write_text(self._change_links(show(path), path, place), encoding="utf-8")

    def _change_links(self, text: str, path: Path, place: Path) -> str:
        source = path / "README.md" if path.is_dir() else path

        def change(match: re.Match[str]) -> str:
            linked = (source.parent / match[1]).resolve()
            if not linked.exists():
                return match[1]  # the build reports it
            if not linked.is_relative_to(DOCS):
                self.add(linked)
            return os.path.relpath(find_place(linked), place.parent)

        return _LINK.sub(change, text)


def show(path: Path) -> str:
    """Return the Markdown of a page, or of a page that shows a file or the files of a folder."""
    if path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
        generate = GENERATED.get(str(path.relative_to(DOCS))) if path.is_relative_to(DOCS) else None
        return f"{text}\n{generate()}" if generate else text
    name = path.relative_to(ROOT)
    if path.is_file():
        return f"{_NOT_SEARCHED}# `{name}`\n\n{_show_code(path)}"
    readme = path / "README.md"
    parts = [readme.read_text(encoding="utf-8") if readme.exists() else f"# `{name}`\n"]
    files = [file for file in sorted(path.rglob("*")) if file.suffix in _LANGUAGES and file.is_file()]
    parts += [f"## `{file.relative_to(path)}`\n\n{_show_code(file)}" for file in files if file.stat().st_size]
    return "\n".join([_NOT_SEARCHED, *parts])


def _show_code(file: Path) -> str:
    return f"````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n````\n"


def navigation() -> list[object]:
    """Return the navigation: the headings of the index, the pages that it lists, and the pages about the project."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    first, *parts = text.split("\n## ")
    sections: list[object] = [{"Home": "index.md"}, *_entries(DOCS, first)]
    for part in parts:
        title, below = part.split("\n", 1)
        groups = [group.split("\n", 1) for group in f"\n{below}".split("\n### ")]
        entries = [*_entries(DOCS, groups[0][-1])]
        entries += [{heading: [*_entries(DOCS, listed)]} for heading, listed in groups[1:]]
        sections.append({title: entries})
    project = [{name.capitalize(): str(find_place(path))} for name, path in PROJECT.items()]
    return [*sections, {"Project": project}]


def _entries(folder: Path, text: str) -> Iterator[dict[str, object]]:
    for title, target in _ENTRY.findall(text):
        page = folder / target
        place = str(find_place(page))
        if page.name != "README.md":
            yield {title: place}
            continue
        listed = [
            {f"{name} {_title(path)}": path}
            for entry in _entries(page.parent, page.read_text(encoding="utf-8"))
            for name, path in entry.items()
        ]
        yield {title: [place, *listed]}


def _title(place: object) -> str:
    return (DOCS / str(place)).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")


def prepare(folder: Path) -> Path:
    """Write the sources of the site into a folder; return the settings file."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder / "pages")
    for path in [*sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.png")), STYLE, *PROJECT.values()]:
        pages.add(path)
    settings = folder / "mkdocs.yml"
    # JSON is YAML.
    text = (DOCS / "mkdocs.yml").read_text(encoding="utf-8")
    settings.write_text(f"{text}nav: {json.dumps(navigation())}\n", encoding="utf-8")
    return settings


class _References(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"id", "name"} and value:
                self.anchors.add(value)
            elif name in {"href", "src", "data"} and value:
                (self.links if tag == "a" else self.loaded).add(value)


def find_problems(site: Path) -> list[str]:
    """Return the links of a built site that lead nowhere, and what its pages load from other hosts."""
    pages = {
        path: _References(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html")) if path.is_file()
    }
    problems = []
    for path, page in pages.items():
        name = path.relative_to(site)
        problems += [f"{name} loads {url}" for url in page.loaded if urlsplit(url).netloc]
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or (name.name == "404.html"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target in pages and unquote(parts.fragment) not in pages[target].anchors):
                problems.append(f"{name} links to {link}, which does not exist")
    return sorted(problems)


def build(folder: Path) -> list[str]:
    """Build the site into `FOLDER/site`; return its problems."""
    command = (sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", prepare(folder))
    built = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    if built.returncode:
        return [built.stdout + built.stderr]
    return find_problems(folder / "site")


def main(folder: Path) -> None:
    """Build the site; fail if it has problems."""
    if problems := build(folder):
        sys.exit("\n".join(problems))
    print(f"{folder / 'site'}: look at it with `python -m http.server --directory {folder / 'site'}`")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT / "build" / "website")
