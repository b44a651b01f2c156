"""Artifacts and memory as tools use them."""

import asyncio
from typing import Any

import pytest
from google.genai import types

from waystation.artifacts import BaseArtifactService, InMemoryArtifactService
from waystation.core.contract import Event, EventActions, ToolOutcome
from waystation.core.errors import StoreFailed
from waystation.memory import InMemoryMemoryService, MemoryEntry
from waystation.tools import load_artifacts
from waystation.tools.function_tool import FunctionTool
from waystation.tools.outcome import create_failure_outcome, create_outcome
from waystation.tools.services import Services
from waystation.tools.session_view import Session
from waystation.tools.tool_context import ToolContext

TEXT = types.Part.from_text(text="hello")


def context_of(services: Services | None = None, *, attempt: int = 1, session: str = "s1", **more: Any) -> ToolContext:
    """Return the context of a call in a session of Ann's."""
    content = {"role": "user", "parts": [{"text": "I like tea"}]}
    event = Event(id="e1", invocation_id="i", author="user", timestamp=0, content=content)
    return ToolContext(
        session=Session(id=session, app_name="shop", user_id="ann", events=[event]),
        services=services or Services(artifacts=InMemoryArtifactService(), memory=InMemoryMemoryService()),
        function_call_id="fc-1",
        idempotency_key="i/fc-1",
        attempt=attempt,
        **more,
    )


async def run(function: Any, context: ToolContext) -> ToolOutcome:
    """Call a function as a tool and return its outcome."""
    return create_outcome(await FunctionTool(function).run_async(args={}, tool_context=context), context=context)


async def test_an_artifact_is_saved_for_the_session_and_recorded() -> None:
    """The version is returned and in the actions; the same session finds the artifact, and another does not."""
    context = context_of()
    assert await context.save_artifact("f.txt", TEXT, {"by": "ann"}) == 0
    assert await context.save_artifact("user:g.txt", TEXT) == 0
    assert await context.save_artifact("f.txt", types.Part.from_text(text="again")) == 1
    assert await context.load_artifact("f.txt", version=0) == TEXT
    assert await context.load_artifact("f.txt") == types.Part.from_text(text="again")
    assert await context.list_artifacts() == ["f.txt", "user:g.txt"]
    about = await context.get_artifact_version("f.txt", 0)
    assert about is not None
    assert about.custom_metadata == {"by": "ann"}
    assert context.recorded_actions() == EventActions(artifact_delta={"f.txt": 1, "user:g.txt": 0})
    assert context.not_awaited() is None
    other = context_of(context._services, session="s2")
    assert await other.list_artifacts() == ["user:g.txt"]
    assert await other.load_artifact("f.txt") is None


@pytest.mark.parametrize(("name", "version"), [("f", None), ("f", 0), ("user:g", None)])
@pytest.mark.parametrize("tool", [False, True], ids=["context", "load_artifacts"])
async def test_a_missing_artifact_of_the_conversation_is_an_error(name: str, version: int | None, tool: bool) -> None:
    """The error names the option, because the worker probably uses another store than the one with the artifact."""
    delta = EventActions(artifact_delta={"f": 1, "user:g": 0})
    event = Event(id="e1", invocation_id="i", author="a", timestamp=0, actions=delta)
    context = ToolContext(
        session=Session(id="s1", app_name="shop", user_id="ann", events=[event]),
        services=Services(artifacts=InMemoryArtifactService()),
    )
    assert await context.load_artifact("never-saved") is None
    assert await context.load_artifact("f", version=2) is None
    args = {"artifact_names": [name.removeprefix("user:")]}
    load = load_artifacts.run_async(args=args, tool_context=context) if tool else context.load_artifact(name, version)
    with pytest.raises(StoreFailed, match=f"saved {name!r}, but .* same --artifacts"):
        await load


async def test_another_attempt_of_a_call_saves_nothing_twice() -> None:
    """A repeated save returns the earlier version, also for several under one name; new content gets a new version."""
    services = Services(artifacts=InMemoryArtifactService())
    other = types.Part.from_text(text="other")
    first = context_of(services)
    assert [await first.save_artifact("f", part) for part in (TEXT, TEXT)] == [0, 1]
    second_attempt = context_of(services, attempt=2)
    assert [await second_attempt.save_artifact("f", part) for part in (TEXT, TEXT, other)] == [0, 1, 2]
    assert second_attempt.recorded_actions().artifact_delta == {"f": 2}


async def test_another_call_saves_again() -> None:
    """Each call saves a new version of the same content."""
    services = Services(artifacts=InMemoryArtifactService())
    await context_of(services).save_artifact("f", TEXT)
    later = ToolContext(
        session=Session(id="s1", app_name="shop", user_id="ann"), services=services, idempotency_key="i/fc-2"
    )
    assert await later.save_artifact("f", TEXT) == 1


async def test_a_service_made_for_adk_is_used_unchanged() -> None:
    """A service for ADK is used unchanged, although it knows nothing about attempts."""

    class Foreign:
        async def save_artifact(self, **arguments: Any) -> int:
            assert set(arguments) == {"app_name", "user_id", "session_id", "filename", "artifact", "custom_metadata"}
            return 7

    service: Any = Foreign()
    assert not isinstance(service, BaseArtifactService)
    assert await context_of(Services(artifacts=service)).save_artifact("f", TEXT) == 7


async def test_memory_belongs_to_the_user() -> None:
    """A session, events and a note can be added, found and deleted."""
    context = context_of()
    await context.add_session_to_memory()
    await context.add_events_to_memory(events=context.session.events)
    await context.add_memory(memories=[MemoryEntry(content=types.Content(parts=[TEXT]), id="note")])
    memory_ids = [memory.id for memory in (await context.search_memory("hello, tea?")).memories]
    assert memory_ids == ["e1", "note"]
    await context.delete_memory("e1")
    other = context_of(context._services, session="s2")
    assert [memory.id for memory in (await other.search_memory("hello, tea?")).memories] == ["note"]


async def test_missing_services_raise_adks_errors() -> None:
    """Missing services raise ValueErrors with ADK's texts."""
    context = ToolContext()
    memory = "memory service is not available."
    for operation, text in (
        (context.list_artifacts(), "Artifact service is not initialized."),
        (context.load_artifact("f"), "Artifact service is not initialized."),
        (context.save_artifact("f", TEXT), "Artifact service is not initialized."),
        (context.get_artifact_version("f"), "Artifact service is not initialized."),
        (context.search_memory("tea"), "Memory service is not available."),
        (context.add_session_to_memory(), f"Cannot add session to memory: {memory}"),
        (context.add_events_to_memory(events=[]), f"Cannot add events to memory: {memory}"),
        (context.add_memory(memories=[]), f"Cannot add memory: {memory}"),
        (context.delete_memory("e1"), f"Cannot delete memory: {memory}"),
    ):
        with pytest.raises(ValueError, match=f"^{text}$"):
            await operation


async def test_a_forgotten_await_is_an_error() -> None:
    """A forgotten `await` is an error, because nothing was saved; the state that the tool wrote is kept."""

    async def save(tool_context: ToolContext) -> dict[str, str]:
        """Save."""
        tool_context.state["tried"] = True
        tool_context.save_artifact("f", TEXT)  # type: ignore[unused-coroutine]  # the mistake
        return {"status": "saved"}

    context = context_of()
    outcome = await run(save, context)
    assert outcome.error_type == "NotAwaited"
    assert "`save_artifact` of the context did nothing" in str(outcome.response)
    assert "Write `await tool_context.save_artifact(...)` in a tool that is an `async def`" in str(outcome.response)
    assert outcome.actions == EventActions(state_delta={"tried": True})
    assert await context.list_artifacts() == []


async def test_a_returned_coroutine_is_an_error() -> None:
    """A returned coroutine is an error, in async and in sync tools, as in samples of ADK's guide."""

    async def save(tool_context: ToolContext) -> dict[str, Any]:
        """Save."""
        return {"version": tool_context.save_artifact("f", TEXT)}

    def search(tool_context: ToolContext) -> dict[str, Any]:
        """Search."""
        return {"memories": tool_context.search_memory("tea").memories}  # type: ignore[attr-defined]  # the mistake

    outcome = await run(save, context_of())
    assert "Write `await tool_context.save_artifact(...)`" in str(outcome.response)
    context = context_of()
    with pytest.raises(AttributeError) as caught:
        await FunctionTool(search).run_async(args={}, tool_context=context)
    outcome = create_failure_outcome(caught.value, context=context)
    assert outcome.error_type == "NotAwaited"
    assert "Write `await tool_context.search_memory(...)`" in str(outcome.response)


async def test_an_unrelated_error_is_reported_unchanged() -> None:
    """An error that a forgotten `await` cannot have caused is reported unchanged."""

    async def pay(tool_context: ToolContext) -> None:
        """Pay."""
        tool_context.save_artifact("f", TEXT)  # type: ignore[unused-coroutine]  # the mistake
        raise ValueError("too much")

    context = context_of()
    with pytest.raises(ValueError, match="too much") as caught:
        await FunctionTool(pay).run_async(args={}, tool_context=context)
    assert create_failure_outcome(caught.value, context=context).error_type == "ValueError"
    assert context.not_awaited() is not None


USES: dict[str, Any] = {
    "index": lambda names: names[0],
    "contains": lambda names: "f" in names,
    "add": lambda version: version + 1,
    "less": lambda version: version < 1,
    "attribute": lambda part: part.text,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_using_an_unawaited_result_is_an_error(use: Any) -> None:
    """The error names the method, which Python's own message does not."""

    async def tool(tool_context: ToolContext) -> Any:
        """Use it."""
        return use(tool_context.list_artifacts())

    context = context_of()
    with pytest.raises((TypeError, AttributeError)) as caught:
        await FunctionTool(tool).run_async(args={}, tool_context=context)
    outcome = create_failure_outcome(caught.value, context=context)
    assert "The call to `list_artifacts` of the context did nothing, because it was" in str(outcome.response)


def test_wrong_arguments_raise_at_the_call() -> None:
    """Wrong arguments raise at the call, and not only when the result is awaited."""
    context = context_of()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'artifact'"):
        context.save_artifact("f")  # type: ignore[call-arg,unused-coroutine]  # the mistake
    assert context.not_awaited() is None


async def test_the_result_is_a_coroutine_for_asyncio() -> None:
    """Tasks, gather, timeouts and custom loops accept the result; a closed one does not count as forgotten."""
    context = context_of()
    await asyncio.gather(*(context.save_artifact(name, TEXT) for name in "ab"))
    task = asyncio.create_task(context.save_artifact("c", TEXT))
    assert await asyncio.wait_for(task, 5) == 0
    assert await asyncio.to_thread(lambda: asyncio.run(context.list_artifacts())) == ["a", "b", "c"]
    context.list_artifacts().close()
    assert context.not_awaited() is None


async def test_a_sync_tool_may_return_an_awaitable() -> None:
    """The caller awaits it."""

    def names(tool_context: ToolContext) -> Any:
        """List."""
        return tool_context.list_artifacts()

    outcome = await run(names, context_of())
    assert (outcome.error_type, outcome.response) == (None, {"result": []})
