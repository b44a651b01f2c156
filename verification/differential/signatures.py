"""Functions given as source code, which can be sent to both processes."""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def functions_of(source: str) -> dict[str, Callable[..., Any]]:
    """Return the functions that `source` defines, by name."""
    # Annotations that are kept as text are looked up in the module that the function says it is from.
    module = sys.modules["given"] = ModuleType("given")
    exec(source, vars(module))
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
