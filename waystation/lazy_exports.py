"""Export a package's names so that each module is loaded on first use.

The stub `__init__.pyi` next to the package's `__init__.py` is the only list of the names, used by type checkers and by
this module. Lazy loading makes importing a package cheap and avoids circular imports between packages.
"""

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
        file: The package's `__file__`. The stub next to it contains `__all__`, and import statements of the form
            `from module import name, other as alias`.
    """
    exported, sources = parse_stub(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
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


def parse_stub(stub: str) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return `__all__` of a stub, and the module and the name in it of each imported name.

    This takes a sixth of the time of `ast.parse`.
    """
    imports, _, rest = stub.partition("\n__all__ = [")
    exported = [name.strip(' \n"') for name in rest.partition("]")[0].split(",")]
    sources: dict[str, tuple[str, str]] = {}
    for statement in f"\n{imports}".split("\nfrom ")[1:]:
        module, _, names = statement.partition(" import ")
        for name in names.strip("()\n").split(","):
            original, _, alias = name.strip().partition(" as ")
            sources[alias or original] = (module, original)
    sources.pop("", None)  # after a trailing comma
    return list(filter(None, exported)), sources
