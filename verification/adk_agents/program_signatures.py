"""Print how the signatures of the classes that programs use differ from google-adk's, as JSON.

Runs in the environment that has google-adk and Waystation.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any

CLASSES = (
    "runners.Runner",
    "runners.InMemoryRunner",
    "sessions.InMemorySessionService",
    "sessions.database_session_service.DatabaseSessionService",
    "artifacts.InMemoryArtifactService",
    "memory.InMemoryMemoryService",
)
SPECIAL = ("__init__", "__aenter__", "__aexit__")

Parameters = list[tuple[str, str, bool]]
"""The name and kind of each parameter, and whether it has a default."""


def read_parameters(function: Any) -> Parameters:
    """Return the parameters of a function. Parameters that collect others have no comparable name."""
    parameters = inspect.signature(function).parameters.values()
    return [
        (
            str(parameter.kind)
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            else parameter.name,
            parameter.kind.description,
            parameter.default is not parameter.empty,
        )
        for parameter in parameters
    ]


def read_class(path: str) -> dict[str, Parameters]:
    """Return the parameters of the public methods of a class that can be imported."""
    module, _, name = path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    return {
        name: read_parameters(function)
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if (name in SPECIAL or name[0] != "_") and function.__module__.startswith(("google.adk.", "waystation."))
    }


def read_source(path: str) -> dict[str, Parameters]:
    """Return the parameters of the public methods of a class from its source: its module needs another package."""
    module, _, name = path.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    methods: dict[str, Parameters] = {}
    for node in next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.name in SPECIAL or node.name[0] != "_"):
            scope: dict[str, Any] = {}
            exec(f"from __future__ import annotations\ndef read({ast.unparse(node.args)}): ...", scope)
            methods[node.name] = read_parameters(scope["read"])  # the last definition, after overloads
    return methods


def compare(path: str) -> list[str]:
    """Return the methods of a class of google-adk that are missing here or have other parameters."""
    read = read_source if "Database" in path else read_class
    theirs, ours = read(f"google.adk.{path}"), read_class(f"waystation.{path}")
    return [
        f"{path}.{name}: {ours.get(name)} instead of {parameters}"
        for name, parameters in theirs.items()
        if ours.get(name) != parameters
    ]


if __name__ == "__main__":
    json.dump([difference for path in CLASSES for difference in compare(path)], sys.stdout)
