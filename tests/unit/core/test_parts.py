"""The parts of the core: packages, whose `__init__` exports their names, and the modules beside them."""

import ast
from collections import Counter
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from pkgutil import iter_modules

from tests.paths import ROOT, syntax_tree
from waystation import core

CORE = "waystation.core"
PACKAGES = {module.name for module in iter_modules(core.__path__) if module.ispkg}
MODULES = {module.name for module in iter_modules(core.__path__) if not module.ispkg}
SHIPPED = [
    path for folder in ("waystation", "workflows", "activities", "tools") for path in (ROOT / folder).rglob("*.py")
]


def exported_names() -> dict[str, list[str]]:
    """Return the names of each part, without modules: what a package exports, and what a module defines."""
    names: dict[str, list[str]] = {}
    for part in PACKAGES:
        package = import_module(f"{CORE}.{part}")
        names[part] = [name for name in package.__all__ if not ismodule(getattr(package, name))]
    for part in MODULES:
        defined = {
            name: value
            for name, value in vars(import_module(f"{CORE}.{part}")).items()
            if getattr(value, "__module__", None) == f"{CORE}.{part}"
        }
        names[part] = [name for name in defined if not name.startswith("_")]
    return names


def imports_of(path: Path) -> set[str]:
    """Return the modules from which a file imports names."""
    return {node.module or "" for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.ImportFrom)}


def test_the_core_exports_nothing_and_its_parts_at_most_100_names_each() -> None:
    """Imports show which part of the core a module uses, because the core itself exports nothing."""
    import_module(f"{CORE}.conversation")
    assert [name for name, value in vars(core).items() if not name.startswith("__") and not ismodule(value)] == []
    assert {part: len(names) for part, names in exported_names().items() if not 0 < len(names) <= 100} == {}


def test_a_name_is_in_one_part_of_the_core() -> None:
    """No part exports what another one defines or exports."""
    names = Counter(name for part in exported_names().values() for name in part)
    assert [name for name, count in names.items() if count > 1] == []
    foreign = {
        part: sources
        for part in PACKAGES
        if (
            sources := {
                module
                for module in imports_of(Path(core.__path__[0], part, "__init__.py"))
                if not f"{module}.".startswith(f"{CORE}.{part}.")
            }
        )
    }
    assert foreign == {}


def test_a_part_of_the_core_is_imported_as_a_whole() -> None:
    """Only modules of the same part import from the module that defines a name."""
    inner = tuple(f"{CORE}.{part}." for part in PACKAGES)
    others = {
        str(path.relative_to(ROOT)): modules
        for path in SHIPPED
        if (
            modules := {
                module
                for module in imports_of(path)
                if module.startswith(inner) and Path(core.__path__[0], module.split(".")[2]) not in path.parents
            }
        )
    }
    assert others == {}
