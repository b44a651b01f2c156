"""Let a package export names whose modules load on first use.

Importing a package then costs nothing, and modules that import each other's packages cannot form circles.
"""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, names_by_module: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    Args:
        package: The package's `__name__`.
        names_by_module: For each module the names it defines, separated by spaces; `name=other` exports `other` of the
            module as `name`.
    """
    sources: dict[str, tuple[str, str]] = {}
    for module, names in names_by_module.items():
        for entry in names.split():
            name, _, source = entry.partition("=")
            sources[name] = module, source or name

    def get_attribute(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, source = sources[name]
        value: object = getattr(importlib.import_module(module), source)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *sources})

    return get_attribute, list_names
