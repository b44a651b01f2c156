"""How a tool is described to a model: plain JSON in the form of a genai FunctionDeclaration."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.agents.kept import kept
from waystation.core.errors import AuthoringError, InvalidTool, NotJson
from waystation.core.payload import JsonObject, copy_json, decode, encode, plain
from waystation.tools.vertex import on_vertex

if TYPE_CHECKING:
    from waystation.tools.base_tool import BaseTool

_Method = TypeVar("_Method", bound=Callable[..., Any])
_SETTLED: set[Callable[..., Any]] = set()
"""Not a mark on the function: `functools.wraps` would give that to whatever an author puts around it."""


def settled(declares: _Method) -> _Method:
    """Mark a `_get_declaration` that says the same for as long as the tool has the same name and description."""
    _SETTLED.add(declares)
    return declares


def declaration(
    name: str, description: str, schema: JsonObject | None, response: JsonObject | None = None
) -> JsonObject:
    """Return a declaration of its own; what is empty is left out."""
    declared: JsonObject = {"name": name}
    if description:
        declared["description"] = description
    if schema is not None:
        declared["parametersJsonSchema"] = copy_json(schema)
    if response:
        declared["responseJsonSchema"] = copy_json(response)
    return declared


def declared_by(tool: "BaseTool") -> tuple[str, str, bool] | None:
    """Return what a declaration depends on; None when only the tool knows."""
    function = getattr(tool._get_declaration, "__func__", None)
    return (tool.name, tool.description, on_vertex()) if function in _SETTLED else None


def declare(tool: "BaseTool") -> JsonObject | None:
    """Return the declaration of any tool as plain JSON, or None when no model is to know it.

    A `_get_declaration` that was written for ADK and returns a genai FunctionDeclaration is understood.

    Raises:
        InvalidTool: The tool has no usable declaration.
    """
    if (made_of := declared_by(tool)) is None:
        return _declared(tool)
    # As bytes, because reading them is the quickest way to a copy: whoever gets a declaration may change it.
    declared: JsonObject | None = decode(kept(tool, "_declared", made_of, lambda: encode(_declared(tool))))
    return declared


def _declared(tool: "BaseTool") -> JsonObject | None:
    try:
        declared = tool._get_declaration()
    except AuthoringError:
        raise
    except Exception as error:  # author's code
        raise InvalidTool(tool.name, f"its declaration failed ({type(error).__name__}: {error}).") from error
    if declared is None:
        return None
    try:
        usable = plain(_from_genai(declared))
    except NotJson as error:
        raise InvalidTool(tool.name, f"its declaration is not JSON: {error}") from error
    if not isinstance(usable, dict) or not isinstance(usable.get("parametersJsonSchema", {}), dict):
        raise InvalidTool(
            tool.name,
            '`_get_declaration` must return {"name", "description", "parametersJsonSchema"} or None.',
        )
    if usable.get("name") != tool.name:
        raise InvalidTool(
            tool.name,
            f"its declaration is named {usable.get('name')!r}; use the same name in both places.",
        )
    return usable


def _from_genai(declared: Any) -> Any:
    # Looked up, not imported: who returns one of its objects has imported genai already.
    types = sys.modules.get("google.genai.types")
    if types is None or not isinstance(declared, types.FunctionDeclaration):
        return declared
    usable = declared.model_dump(mode="json", by_alias=True, exclude_none=True)
    if declared.parameters is not None:
        del usable["parameters"]
        schema = declared.parameters.json_schema
        usable["parametersJsonSchema"] = schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    return usable
