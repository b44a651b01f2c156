"""What a tool takes, as far as an approval is bound to it, and whether given arguments are that."""

from typing import Any

from waystation.agents.kept import kept
from waystation.core.errors import InvalidTool
from waystation.core.payload import digest
from waystation.tools.base_tool import BaseTool
from waystation.tools.declaration import declare, declared_by

_TEXTS = frozenset({"title", "description"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value is an object of schemas under names, which are nobody's texts whatever they are."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data."""


def parameters_digest(tool: BaseTool) -> str:
    """Return the digest of a tool's parameters, which no change of a description or title changes.

    A tool may change, so it is kept only for those of which it is known on what it depends.
    """
    made_of = declared_by(tool)
    return _digest(tool) if made_of is None else kept(tool, "_parameters", made_of, lambda: _digest(tool))


def _digest(tool: BaseTool) -> str:
    try:
        declared = declare(tool)
    except InvalidTool:  # a tool that has run cannot be undone, so nothing is to fail here
        return digest(None)
    return digest(_bare((declared or {}).get("parametersJsonSchema")))


def _bare(schema: Any) -> Any:
    """Return a schema without its texts."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _part(key, value) for key, value in schema.items() if not (key in _TEXTS and isinstance(value, str))}


def _part(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _OF_SCHEMAS and isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items()}
    return _bare(value)
