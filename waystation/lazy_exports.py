"""Export a package's names so that each module is loaded on first use.

The stub `__init__.pyi` next to the package's `__init__.py` is the only list of the names, used by type checkers and by
this module. Lazy loading makes importing a package cheap and avoids circular imports between packages.

The package `lazy-loader` does the same for simpler stubs. ADK's names need what its stubs cannot say: aliases, names
from other packages, names that `import *` leaves out, and names that google-adk provides.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

from waystation.adk_names import import_name


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    Args:
        package: The package's `__name__`.
        file: The package's `__file__`. The stub next to it contains imports of the form
            `from module import name, other as alias`, and then `__all__`.
    """
    nodes = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    [exported] = [ast.literal_eval(node.value) for node in nodes if isinstance(node, ast.Assign)]
    sources = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    folder = str(Path(file).parent)

    def get_attribute(name: str) -> object:
        if name not in sources:
            if PathFinder.find_spec(f"{package}.{name}", [folder]):
                raise AttributeError(f"The module {name!r} of the package {package!r} has not been imported.")
            return import_name(package, name)
        module, source = sources[name]
        value: object = getattr(importlib.import_module(module), source)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *sources})

    return get_attribute, list_names, exported
