"""Tools that look up what is remembered. Names and declarations are ADK's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tools.base import BaseTool
from tools.context import ToolContext
from tools.declaration import declaration
from tools.function_tool import FunctionTool
from waystation.core.payload import JsonObject

if TYPE_CHECKING:
    from google.genai.types import Content

    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse
    from waystation.models.llm_request import LlmRequest

log = structlog.get_logger("waystation.tools")

_HINT = (
    "What the user said in earlier conversations is remembered. When an answer may depend on it, look it up: call "
    "load_memory with a query."
)
_PRELOADED = """From earlier conversations with the user, as they may bear on what is asked now:
<PAST_CONVERSATIONS>
{memories}
</PAST_CONVERSATIONS>
"""


async def load_memory(query: str, tool_context: ToolContext) -> SearchMemoryResponse:
    """Look up what is remembered of earlier conversations with the user.

    Args:
        query: Words to look for.
    """
    return await tool_context.search_memory(query)


class LoadMemoryTool(FunctionTool):
    """Lets the model search the user's memories, and tells it that it can."""

    def __init__(self) -> None:
        super().__init__(load_memory, effect="read")

    def _get_declaration(self) -> JsonObject | None:
        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        return declaration(self.name, self.description, schema)

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Declare the tool, and tell the model about it."""
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        llm_request.append_instructions([_HINT])


class PreloadMemoryTool(BaseTool):
    """Searches the user's memories for the message that is being answered, before each model call.

    The model does not call it; what is found is in the request, and never in history.
    """

    def __init__(self) -> None:
        super().__init__(name="preload_memory", description="preload_memory")

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Put what is found before the user's message. A search that fails is logged, and the model called without."""
        from google.genai.types import Content, Part

        query = _text_of(tool_context.user_content)
        if not query:
            return
        try:
            found = await tool_context.search_memory(query)
        except Exception as error:  # noqa: BLE001  # a service of the author's raises anything
            # Neither the query nor the error's text, which may quote it.
            log.warning("memory.not_preloaded", agent=tool_context.agent_name, error_type=type(error).__name__)
            return
        lines = [line for memory in found.memories for line in _lines_of(memory)]
        if lines:
            text = _PRELOADED.format(memories="\n".join(lines))
            told = Content(role="user", parts=[Part.from_text(text=text)])
            llm_request.contents.insert(_turn_of(llm_request.contents), told)


def _lines_of(memory: MemoryEntry) -> list[str]:
    lines = [f"Time: {memory.timestamp}"] if memory.timestamp else []
    text = " ".join(part.text for part in memory.content.parts or () if part.text)
    if text:
        lines.append(f"{memory.author}: {text}" if memory.author else text)
    return lines


def _text_of(content: Content | None) -> str:
    parts = (content.parts if content is not None else None) or ()
    return " ".join(part.text for part in parts if part.text and not part.thought)


def _turn_of(contents: list[Content]) -> int:
    """Return where the current turn begins: before the user's last words, or after the last responses of tools."""
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        if content.role != "user" or any(part.function_response for part in content.parts or ()):
            return index + 1
    return 0


load_memory_tool = LoadMemoryTool()
preload_memory_tool = PreloadMemoryTool()
