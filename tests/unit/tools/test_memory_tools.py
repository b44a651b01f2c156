"""The memory tools as the model sees them."""

from typing import Any

import pytest
from google.genai import types

from waystation.memory import BaseMemoryService, InMemoryMemoryService, MemoryEntry, SearchMemoryResponse
from waystation.models.llm_request import LlmRequest
from waystation.tools.base_tool import declare
from waystation.tools.load_memory_tool import load_memory_tool
from waystation.tools.outcome import create_outcome
from waystation.tools.preload_memory_tool import preload_memory_tool
from waystation.tools.services import Services
from waystation.tools.session_view import Session
from waystation.tools.tool_context import ToolContext

PRELOADED = """From earlier conversations with the user, as they may bear on what is asked now:
<PAST_CONVERSATIONS>
Time: 2026-01-02T03:04:05+00:00
user: I like {green} tea
No milk
</PAST_CONVERSATIONS>
"""


async def services_with(*memories: MemoryEntry) -> Services:
    """Return services with memories of Ann."""
    service = InMemoryMemoryService()
    await service.add_memory(app_name="shop", user_id="ann", memories=memories)
    return Services(memory=service)


def entry(text: str, **more: Any) -> MemoryEntry:
    """Return a memory."""
    return MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=text)]), **more)


def context_of(services: Services, text: str = "Which tea, with milk?") -> ToolContext:
    """Return a context of Ann, who has sent a message."""
    content = {"role": "user", "parts": [{"text": text}] if text else []}
    return ToolContext(
        session=Session(id="s1", app_name="shop", user_id="ann"), services=services, user_content=content
    )


def content(text: str, role: str = "user") -> types.Content:
    """Return a content with a text."""
    return types.Content(role=role, parts=[types.Part(text=text)])


def declared(request: LlmRequest) -> list[str | None]:
    """Return the names of the functions that the model may call."""
    tools = [tool for tool in request.config.tools or () if isinstance(tool, types.Tool)]
    return [function.name for tool in tools for function in tool.function_declarations or ()]


RESPONSE = types.Content(role="user", parts=[types.Part.from_function_response(name="f", response={})])
NOTES = (entry("I like {green} tea", author="user", timestamp="2026-01-02T03:04:05+00:00"), entry("No milk"))


async def test_load_memory_returns_the_found_memories() -> None:
    """The memories have no empty fields, as in ADK's tool."""
    context = context_of(await services_with(entry("I like tea", id="m1", author="user")))
    value = await load_memory_tool.run_async(args={"query": "tea"}, tool_context=context)
    assert create_outcome(value, context=context).response == {
        "result": {
            "memories": [
                {
                    "content": {"parts": [{"text": "I like tea"}], "role": "user"},
                    "custom_metadata": {},
                    "id": "m1",
                    "author": "user",
                }
            ]
        }
    }


async def test_load_memory_is_declared_and_explained() -> None:
    """The declaration has ADK's parameters."""
    request = LlmRequest(tools_dict={"load_memory": load_memory_tool})
    request.append_instructions(["Be brief."])
    await load_memory_tool.process_llm_request(tool_context=context_of(Services()), llm_request=request)
    assert declared(request) == ["load_memory"]
    declared_tool = declare(load_memory_tool)
    assert declared_tool is not None
    assert "earlier conversations" in declared_tool["description"]
    assert declared_tool["parametersJsonSchema"] == {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }
    instruction = request.config.system_instruction
    assert isinstance(instruction, str)
    assert instruction.startswith("Be brief.\n\n")
    assert "call load_memory with a query" in instruction


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [content("ask")]),
        ([content("old"), content("reply", "model")], [content("ask")]),
        ([content("reply", "model")], [content("ask"), content("more")]),
        ([content("ask"), content("call", "model"), RESPONSE], []),
        ([content("call", "model"), RESPONSE], [content("shown")]),
    ],
    ids=["first message", "later message", "two messages", "after a call", "after a call with something shown"],
)
async def test_memories_precede_the_current_turn(before: list[types.Content], after: list[types.Content]) -> None:
    """The memories precede the user's last message, or follow the response if the model continues after a call."""
    request = LlmRequest(contents=[*before, *after])
    services = await services_with(*NOTES)
    await preload_memory_tool.process_llm_request(tool_context=context_of(services), llm_request=request)
    assert request.contents == [*before, content(PRELOADED), *after]
    assert declared(request) == []


@pytest.mark.parametrize("text", ["", "Nothing of that"])
async def test_a_request_without_matches_is_unchanged(text: str) -> None:
    """A request without matches is unchanged, even one with an image and no text."""
    request = LlmRequest(contents=[content(text)])
    services = await services_with(*NOTES)
    await preload_memory_tool.process_llm_request(tool_context=context_of(services, text), llm_request=request)
    assert request.contents == [content(text)]


async def test_a_failing_memory_does_not_block_the_model() -> None:
    """The request is sent without memories, as in a worker without a memory service."""

    class Broken(BaseMemoryService):
        async def add_session_to_memory(self, session: Session) -> None:
            raise OSError

        async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
            raise OSError

    for services in (Services(memory=Broken()), Services()):
        request = LlmRequest(contents=[content("ask")])
        await preload_memory_tool.process_llm_request(tool_context=context_of(services), llm_request=request)
        assert request.contents == [content("ask")]


def test_preload_memory_is_not_declared() -> None:
    """The tool is not declared, because models never call it."""
    assert declare(preload_memory_tool) is None
