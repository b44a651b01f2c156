"""The tool that adds memories matching the user's message to each model request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from waystation.tools import BaseTool, ToolContext

if TYPE_CHECKING:
    from google.genai.types import Content

    from waystation.memory import MemoryEntry
    from waystation.models.llm_request import EditableRequest

log = structlog.get_logger("waystation.tools")


_PRELOADED = """From earlier conversations with the user, as they may bear on what is asked now:
<PAST_CONVERSATIONS>
{memories}
</PAST_CONVERSATIONS>
"""


class PreloadMemoryTool(BaseTool):
    """A tool that searches the user's memories for the current message before each model call.

    The model does not call this tool. The matches are added to the model request and never stored in the history.
    """

    def __init__(self) -> None:
        super().__init__(name="preload_memory", description="preload_memory")

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: EditableRequest) -> None:
        """Insert the matches before the user's message. If the search fails, log it and call the model anyway."""
        from google.genai.types import Content, Part

        content = tool_context.user_content
        parts = (content.parts if content else None) or ()
        query = " ".join(part.text for part in parts if part.text and not part.thought)
        if not query:
            return
        try:
            result = await tool_context.search_memory(query)
        except Exception as error:  # noqa: BLE001  # a user's service can raise anything
            # Do not log the query, nor the error's message, which may quote the query.
            log.warning("memory.not_preloaded", agent=tool_context.agent_name, error_type=type(error).__name__)
            return
        lines = [line for memory in result.memories for line in _format_memory(memory)]
        if lines:
            part = Part.from_text(text=_PRELOADED.format(memories="\n".join(lines)))
            llm_request.contents.insert(_find_turn(llm_request.contents), Content(role="user", parts=[part]))


def _format_memory(memory: MemoryEntry) -> list[str]:
    lines = [f"Time: {memory.timestamp}"] if memory.timestamp else []
    text = " ".join(part.text for part in memory.content.parts or () if part.text)
    if text:
        lines.append(f"{memory.author}: {text}" if memory.author else text)
    return lines


def _find_turn(contents: list[Content]) -> int:
    """Return the index after the last model content or tool response, where the user's latest message begins."""
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        if content.role != "user" or any(part.function_response for part in content.parts or ()):
            return index + 1
    return 0


preload_memory_tool = PreloadMemoryTool()
