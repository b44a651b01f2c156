"""Write `docs/reference/adk-names.md`, which lists ADK's public names: `python -m docs.adk_names FOLDER`.

FOLDER contains the source files of google-adk, such as `.venv-adk/lib/python3.11/site-packages/google/adk`. They are
parsed, not imported, because many of them need further packages.
"""

import ast
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from waystation.adk_names import FROM_ADK, find_rule, known_differences, read_rules

PAGE = Path(__file__).parent / "reference" / "adk-names.md"
ROOT = "google.adk"
"""Stands for the package itself where other modules are listed without this prefix."""
STATES = ("same", "differs", "extra")
INTRODUCTION = """\
# Names of ADK 2.13

This page lists the public names of google-adk {version} that can be imported here: what its packages export, and the
classes, functions and aliases in its modules, unless a part of the name begins with an underscore. `google.adk.` at the
beginning of a module is `waystation.` here. `python -m docs.adk_names` generates the page, and tests compare the page
with both packages.

| state | meaning | names |
|---|---|---|
| same | the name exists here; [Coming from ADK](adk.md) lists differences in behavior | {same} |
| differs | the name exists here and differs as described | {differs} |
| extra | the name is google-adk's own; it requires `pip install 'waystation[adk]'` | {extra} |

Agents and apps of Waystation accept tools, toolsets, models, planners, code executors, plugins, artifact services
and memory services with the state `extra`. Type checkers do not find names with this state.

## What Waystation lacks

Importing a module or a name below one of these paths raises an `ImportError` with the area and what to do instead.
Agents that are written for google-adk [run unmodified](../how-to/run-adk-agents.md). Other names of ADK do not
exist here.

| area | paths | instead |
|---|---|---|
{areas}
"""
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
"""Matches names of constants and type variables, which are not listed."""
_ROW = re.compile(r"^\| `(?P<module>[\w.]+)` \| (?P<state>\w+) \| (?P<names>.*?) \|", re.MULTILINE)
"""Matches a row of the page: a module, a state, and names in backticks."""


def list_adk_names(folder: Path) -> dict[str, list[str]]:
    """Return the public names of google-adk by module, without the prefix `google.adk.` of the modules."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts) and (names := sorted(set(_public_names(path)))):
            found[".".join(parts) or ROOT] = names
    return found


def _public_names(path: Path) -> Iterator[str]:
    """Yield the names that a module lists in `__all__` or in a table of lazy imports, or else those that it defines."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    exported = [name for node in ast.walk(ast.Module(body, [])) for name in _exported(node)]
    if exported:
        yield from exported
    if path.name == "__init__.py":
        return
    for node in body:
        names = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        yield from (n for n in names if not (n.startswith("_") or n == "logger" or _CONSTANT.fullmatch(n)))


def _exported(node: ast.AST) -> Iterator[str]:
    """Yield the names in an assignment to `__all__`, in a call such as `__all__.append`, or in a table of imports."""
    match node:
        case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(elts)):
            items = elts
        case ast.Assign(targets=[ast.Name("_LAZY_MAPPING")], value=ast.Dict(keys)):
            items = [key for key in keys if key]
        case ast.Call(func=ast.Attribute(value=ast.Name("__all__")), args=[ast.List(elts)]):
            items = elts
        case ast.Call(func=ast.Attribute(value=ast.Name("__all__")), args=[item]):
            items = [item]
        case _:
            return
    names = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    yield from (name for name in names if not name.startswith("_"))


def find_state(module: str, name: str) -> str | None:
    """Return the state of a name of ADK in this package, or None if it cannot be imported."""
    path = _path_of(module, name)
    rule = find_rule(path)
    if rule is not None:
        return "extra" if rule == FROM_ADK else None
    try:
        getattr(importlib.import_module(f"waystation.{path}".rpartition(".")[0]), name)
    except (ImportError, AttributeError):
        return None
    return "differs" if path in known_differences() else "same"


def _path_of(module: str, name: str) -> str:
    return name if module == ROOT else f"{module}.{name}"


def parse_page(text: str) -> dict[tuple[str, str], str]:
    """Return the states of the names on the page, by module and name."""
    return {
        (row["module"], name): row["state"]
        for row in _ROW.finditer(text)
        for name in re.findall(r"`(.+?)`", row["names"])
    }


def format_page(folder: Path) -> str:
    """Return the page for the version of google-adk with its source files in the folder."""
    names, rows = list_adk_names(folder), list[str]()
    version = re.findall(r'__version__ = "(.+)"', (folder / "version.py").read_text(encoding="utf-8"))[0]
    counts: Counter[str] = Counter()
    states = {(module, name): find_state(module, name) for module, listed in names.items() for name in listed}
    names = {module: [name for name in listed if states[module, name]] for module, listed in names.items()}
    names = {module: listed for module, listed in names.items() if listed}
    for package in sorted({module.partition(".")[0] for module in names}):
        rows += [f"\n## {package}\n", "| module | state | names | remarks |", "|---|---|---|---|"]
        for module, listed in names.items():
            if module.partition(".")[0] != package:
                continue
            groups: dict[tuple[str, str], list[str]] = {}
            for name in listed:
                state = states[module, name] or ""
                counts[state] += 1
                remark = known_differences().get(_path_of(module, name), "")
                groups.setdefault((state, remark), []).append(f"`{name}`")
            rows += [
                f"| `{module}` | {state} | {', '.join(group)} | {remark} |" for (state, remark), group in groups.items()
            ]
    areas = "\n".join(
        f"| {area} | {', '.join(f'`{path}`' for path in lacking['paths'])} | {lacking['instead']} |"
        for area, lacking in read_rules()["areas"].items()
    )
    numbers = {state: counts[state] for state in STATES}
    return INTRODUCTION.format(version=version, areas=areas, **numbers) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(format_page(Path(sys.argv[1])), encoding="utf-8")
