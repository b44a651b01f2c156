"""Find tools that block the event loop of workers, and tools that models know too little about."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from waystation.agents import LlmAgent
from waystation.agents.toolbox import tools_of
from waystation.apps import Registry
from waystation.tools import BaseTool, FunctionTool, declare

BLOCKING_CALLS = frozenset(
    {
        "requests.api.delete",
        "requests.api.get",
        "requests.api.post",
        "requests.api.put",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.run",
        "time.sleep",
        "urllib.request.urlopen",
    }
)
"""Functions that block the event loop if a coroutine calls them, by their qualified names."""
_NOT_A_TYPE = {"title", "description", "default"}
"""Keys in the schemas of parameters that may also be there without a type."""


def list_blocking_tools(registry: Registry) -> Iterator[str]:
    """Yield a warning for each call in a tool's coroutine that visibly blocks the event loop."""
    for owner, tool in _list_tools(registry):
        for called, place in find_blocking_calls(getattr(tool, "func", tool.run_async)):
            yield (
                f"{owner} calls {called}() in an `async def` at {place}, which blocks all other work of its worker. "
                "Await an asynchronous function instead, or make the tool a plain `def`, which runs in a thread."
            )


def list_undescribed_tools(registry: Registry) -> Iterator[str]:
    """Yield a warning for each function that models know too little about to call it well."""
    for owner, tool in _list_tools(registry):
        declared = declare(tool)
        if declared and not tool.description:
            yield f"{owner} has no description, so models only see its name; add a docstring."
        parameters = ((declared or {}).get("parametersJsonSchema") or {}).get("properties") or {}
        untyped = [name for name, schema in parameters.items() if not schema.keys() - _NOT_A_TYPE]
        if untyped and isinstance(tool, FunctionTool):
            yield f"{owner} has parameters without a type: {', '.join(untyped)}; annotate them."


def _list_tools(registry: Registry) -> Iterator[tuple[str, BaseTool]]:
    for root in registry.roots.values():
        for agent in root.tree.values():
            for tool in tools_of(agent).values() if isinstance(agent, LlmAgent) else ():
                yield f"Tool {tool.name!r} of agent {root.name_of(agent)!r}", tool


def find_blocking_calls(function: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and place of each call of one of `BLOCKING_CALLS` in the source of a coroutine function."""
    function = inspect.unwrap(function)
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        return
    try:
        lines, first = inspect.getsourcelines(function)
        [tree] = ast.parse(textwrap.dedent("".join(lines))).body
        names = {**inspect.getclosurevars(function).globals, **inspect.getclosurevars(function).nonlocals}
    except (OSError, SyntaxError, TypeError, ValueError):  # the source is not available
        return
    for node in _iterate_own_nodes(tree):
        match node:
            case ast.Import():
                names |= {(a.asname or a.name): sys.modules.get(a.name) for a in node.names if "." not in a.name}
            case ast.ImportFrom(module=str(module)):
                names |= {(a.asname or a.name): getattr(sys.modules.get(module), a.name, None) for a in node.names}
            case ast.Call():
                called = _resolve(node.func, names)
                name = f"{getattr(called, '__module__', '')}.{getattr(called, '__qualname__', '')}"
                if name in BLOCKING_CALLS:
                    yield name, f"{inspect.getsourcefile(function)}:{first + node.lineno - 1}"


def _iterate_own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a function, without those of functions inside it, which may run in threads."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _iterate_own_nodes(node)


def _resolve(node: ast.AST, names: dict[str, Any]) -> Any:
    match node:
        case ast.Name(id):
            return names.get(id)
        case ast.Attribute(value, attr):
            return getattr(_resolve(value, names), attr, None)
    return None
