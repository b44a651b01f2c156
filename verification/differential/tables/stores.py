"""Artifacts and memory. Section 12 of the semantics page."""

from collections.abc import Callable
from typing import Any

from google.genai import types

from verification.differential.scenario import Cast, Json, Scenario, alone, calls, shows
from waystation.agents import LlmAgent
from waystation.tools import AgentTool, ToolContext, load_artifacts, load_memory, preload_memory


def _text(text: str) -> types.Part:
    return types.Part.from_bytes(data=text.encode(), mime_type="text/plain")


async def save(name: str, text: str, tool_context: ToolContext) -> Json:
    """Save a text."""
    return {"version": await tool_context.save_artifact(name, _text(text))}


async def load(name: str, tool_context: ToolContext, version: int | None = None) -> Json:
    """Load a text."""
    part = await tool_context.load_artifact(name, version)
    if part is None or part.inline_data is None or part.inline_data.data is None:
        return {"found": False}
    return {"text": part.inline_data.data.decode(), "type": part.inline_data.mime_type}


async def listed(tool_context: ToolContext) -> list[str]:
    """List what was saved."""
    return await tool_context.list_artifacts()


async def search(query: str, tool_context: ToolContext) -> int:
    """Search the memory."""
    return len((await tool_context.search_memory(query)).memories)


TOOLS: Callable[[], list[Any]] = lambda: [save, load, listed, search]  # noqa: E731


def _acts(name: str, *wanted: tuple[str, Json]) -> Scenario:
    return alone(f"artifacts_{name}", *[calls(each) for each in wanted], "done", tools=TOOLS)


def _calling(cast: Cast) -> Any:
    """Return an agent that calls another one, both with the tools of this module."""
    child = LlmAgent(name="child", description="A child.", model=cast.model("child"), tools=TOOLS())
    return LlmAgent(name=cast.name, model=cast.model("main"), tools=[AgentTool(child), *TOOLS()])


A, B = {"name": "a.txt"}, {"name": "user:b.txt"}
ASK_CHILD = calls(("child", {"request": "x"}))

ARTIFACTS: list[Scenario] = [
    _acts("saved", ("save", {**A, "text": "1"})),
    _acts("saved_and_loaded", ("save", {**A, "text": "1"}), ("load", A)),
    _acts("saved_twice", ("save", {**A, "text": "1"}), ("save", {**A, "text": "2"}), ("load", A)),
    _acts("of_a_version", ("save", {**A, "text": "1"}), ("save", {**A, "text": "2"}), ("load", {**A, "version": 0})),
    _acts("of_a_version_that_is_not", ("save", {**A, "text": "1"}), ("load", {**A, "version": 7})),
    _acts("missing", ("load", A)),
    _acts("of_the_user", ("save", {**B, "text": "1"}), ("load", B), ("listed", {})),
    _acts("listed", ("save", {**B, "text": "1"}), ("save", {**A, "text": "1"}), ("listed", {})),
    _acts("listed_when_there_are_none", ("listed", {})),
    alone(
        "artifacts_saved_together",
        calls(("save", {**A, "text": "1"}), ("save", {**B, "text": "2"})),
        "done",
        tools=TOOLS,
    ),
]


async def remember(tool_context: ToolContext) -> str:
    """Remember the conversation."""
    await tool_context.add_session_to_memory()
    return "remembered"


WORDS = shows(ready_made_words=["load_memory", "load_artifacts"])


def _memory() -> list[Any]:
    return [remember, search, load_memory]


def _remembers(name: str, *wanted: tuple[str, Json], **fields: Any) -> Scenario:
    replies = [calls(each) for each in wanted]
    return alone(f"memory_{name}", *replies, "done", tools=_memory, message="I like tea", deviations=WORDS, **fields)


MEMORY: list[Scenario] = [
    _remembers("searched_in_vain", ("search", {"query": "coffee"})),
    _remembers("searched", ("remember", {}), ("search", {"query": "tea"})),
    _remembers("searched_for_something_else", ("remember", {}), ("search", {"query": "coffee"})),
    _remembers("loaded_in_vain", ("load_memory", {"query": "tea"})),
    alone("memory_preloaded_in_vain", "done", tools=lambda: [preload_memory]),
    alone(
        "artifacts_offered",
        calls(("save", {**A, "text": "1"})),
        "done",
        tools=lambda: [save, load_artifacts],
        deviations=WORDS,
    ),
    alone("artifacts_offered_when_there_are_none", "done", tools=lambda: [load_artifacts], deviations=WORDS),
    alone(
        "artifacts_shown",
        calls(("save", {**A, "text": "1"})),
        calls(("load_artifacts", {"artifact_names": ["a.txt"]})),
        "done",
        tools=lambda: [save, load_artifacts],
        deviations=WORDS,
    ),
    Scenario(
        name="artifacts_shared_with_a_called_agent",
        agent=_calling,
        script={
            "main": (calls(("save", {**A, "text": "1"})), ASK_CHILD, calls(("listed", {}), ("load", A)), "done"),
            "child": (calls(("load", A)), calls(("save", {**A, "text": "2"}), ("save", {**B, "text": "3"})), "saved"),
        },
    ),
]
