"""Functions as source code, which can be sent to both processes."""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def functions_of(source: str) -> dict[str, Callable[..., Any]]:
    """Return the functions that `source` defines, by name."""
    # Annotations that are text are resolved in the module that the function names.
    module = sys.modules["given"] = ModuleType("given")
    exec(source, vars(module))
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
