"""The tool that searches the user's memories. Its name and declaration are the same as in ADK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.core.payload import JsonObject
from waystation.tools import FunctionTool, ToolContext, declaration

if TYPE_CHECKING:
    from waystation.memory import SearchMemoryResponse
    from waystation.models.llm_request import EditableRequest

_HINT = (
    "What the user said in earlier conversations is remembered. When an answer may depend on it, look it up: call "
    "load_memory with a query."
)


async def load_memory(query: str, tool_context: ToolContext) -> SearchMemoryResponse:
    """Look up what is remembered of earlier conversations with the user.

    Args:
        query: Words to look for.
    """
    return await tool_context.search_memory(query)


class LoadMemoryTool(FunctionTool):
    """A tool that lets the model search the user's memories, and adds an instruction on when to use it."""

    def __init__(self) -> None:
        super().__init__(load_memory, effect="read")

    def _get_declaration(self) -> JsonObject | None:
        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        return declaration(self.name, self.description, schema)

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: EditableRequest) -> None:
        """Add the tool's declaration and instruction to the request."""
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        llm_request.append_instructions([_HINT])


load_memory_tool = LoadMemoryTool()
