"""Artifacts and memories are stored outside the history, and retries have no second effect."""

from typing import Any

import pytest
from google.genai import types
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.steps import start_and_finish, tool_responses
from waystation.agents import Agent
from waystation.artifacts import InMemoryArtifactService
from waystation.core.contract import text_of
from waystation.testing import ScriptedModel, calls
from waystation.tools.agent_tool import AgentTool
from waystation.tools.load_artifacts_tool import load_artifacts_tool as load_artifacts
from waystation.tools.load_memory_tool import load_memory_tool as load_memory
from waystation.tools.preload_memory_tool import preload_memory_tool as preload_memory
from waystation.tools.services import Services
from waystation.tools.tool_context import CallbackContext, ToolContext

SECRET = "the content of the report, which belongs into no history"


async def draw_up(text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Save a report."""
    version = await tool_context.save_artifact("report.txt", types.Part.from_text(text=f"{SECRET}: {text}"))
    await tool_context.save_artifact("user:latest", types.Part.from_text(text=text))
    return {"version": version, "names": await tool_context.list_artifacts()}


async def remember(tool_context: ToolContext) -> str:
    """Add the session to memory."""
    await tool_context.add_session_to_memory()
    return "remembered"


def recorded(history: WorkflowHistory, text: str) -> bool:
    """Return whether a history contains a text."""
    return any(text.encode() in event.SerializeToString() for event in history.events)


async def test_a_saved_artifact_is_recorded_by_name_and_version(serve: Serve) -> None:
    """The event has ADK's artifact delta; the content is only in the service."""
    model = ScriptedModel(calls(("draw_up", {"text": "a"})), calls(("draw_up", {"text": "b"})), "Done.")
    async with serve(Agent(name="clerk", model=model, tools=[draw_up])) as env:
        invocation = await env.client.start("clerk", "report")
        assert (await invocation.result()).text == "Done."
        deltas = [event.actions.artifact_delta async for event in invocation.events() if event.actions.artifact_delta]
        assert deltas == [{"report.txt": version, "user:latest": version} for version in (0, 1)]
        assert [answer["version"] for answer in tool_responses(model.requests[2])] == [0, 1]
        assert not recorded(await invocation.history(), SECRET)
        assert recorded(await invocation.history(), "report.txt")


async def test_a_session_finds_the_artifacts_of_its_earlier_invocations(serve: Serve) -> None:
    """Other sessions find only user artifacts, and other users find nothing."""
    model = ScriptedModel(*[reply for _ in range(4) for reply in (calls(("draw_up", {"text": "x"})), "Done.")])
    async with serve(Agent(name="clerk", model=model, tools=[draw_up])) as env:
        artifacts_seen = []
        for user, session in (("ann", "s1"), ("ann", "s1"), ("ann", "s2"), ("bob", "s1")):
            await env.client.run("clerk", "report", user_id=user, session_id=session)
            artifacts_seen += tool_responses(model.requests[-1])
        assert [answer["version"] for answer in artifacts_seen] == [0, 1, 0, 0]
        service = env.services.artifacts
        assert service is not None
        where = {"app_name": "waystation", "user_id": "ann", "filename": "user:latest"}
        assert await service.list_versions(**where, session_id="s2") == [0, 1, 2]
        assert await service.list_versions(**{**where, "user_id": "bob"}, session_id="s1") == [0]


async def test_called_agents_share_the_artifacts_of_their_caller(serve: Serve) -> None:
    """Called agents at any depth share artifacts; the callers' events name them. Source: adk-semantics 4.4."""
    deepest = Agent(
        name="deepest", model=ScriptedModel(calls(("draw_up", {"text": "deep"})), "Saved."), tools=[draw_up]
    )
    middle = Agent(
        name="middle", model=ScriptedModel(calls(("deepest", {"request": "x"})), "ok"), tools=[AgentTool(deepest)]
    )
    model = ScriptedModel(calls(("middle", {"request": "x"})), calls(("draw_up", {"text": "again"})), "Done.")
    async with serve(Agent(name="clerk", model=model, tools=[draw_up, AgentTool(middle)])) as env:
        invocation = await start_and_finish(env.client.start("clerk", "report"))
        deltas = [event.actions.artifact_delta async for event in invocation.events() if event.actions.artifact_delta]
    assert deltas == [{"report.txt": 0, "user:latest": 0}, {"report.txt": 1, "user:latest": 1}]


async def test_the_model_sees_the_artifacts_that_it_loads(serve: Serve) -> None:
    """The content is only in the next request, and in no history."""
    model = ScriptedModel(
        calls(("draw_up", {"text": "a"})),
        calls(("load_artifacts", {"artifact_names": ["report.txt", "latest"]})),
        "Done.",
    )
    async with serve(Agent(name="clerk", model=model, tools=[draw_up, load_artifacts])) as env:
        invocation = await start_and_finish(env.client.start("clerk", "report"))
        first, second, third = model.requests
        assert "These artifacts exist" not in (first.system_instruction or "")
        assert '["report.txt", "user:latest"]' in (second.system_instruction or "")
        assert [text_of(content) for content in third.contents[-2:]] == [
            f"Artifact report.txt is:{SECRET}: a",
            "Artifact latest is:a",
        ]
        assert not recorded(await invocation.history(), SECRET)
        assert recorded(await invocation.history(), "report.txt")
        assert [tool["name"] for tool in third.tools] == ["draw_up", "load_artifacts"]


async def test_a_later_session_finds_memories_of_an_earlier_one(serve: Serve) -> None:
    """The model's search and preloading find the memories, but never those of another user."""
    model = ScriptedModel(
        calls(("remember", {})), "Done.", calls(("load_memory", {"query": "TEA"})), "Green.", "Nothing."
    )
    async with serve(Agent(name="clerk", model=model, tools=[remember, load_memory, preload_memory])) as env:
        await env.client.run("clerk", "I like green tea", user_id="ann", session_id="s1")
        await env.client.run("clerk", "Which tea do I like?", user_id="ann", session_id="s2")
        await env.client.run("clerk", "Which tea do I like?", user_id="bob", session_id="s3")
        memory_request, answered, other = model.requests[2:]
        assert [text_of(content) for content in other.contents] == ["Which tea do I like?"]
        assert "user: I like green tea" in text_of(memory_request.contents[0])
        assert text_of(memory_request.contents[1]) == "Which tea do I like?"
        (answer,) = tool_responses(answered)
        assert [memory["content"]["parts"] for memory in answer["result"]["memories"]] == [
            [{"text": "I like green tea"}]
        ]


async def test_a_worker_uses_its_configured_services(serve: Serve) -> None:
    """A missing service is an error in the tool that uses it, and the model receives it."""
    artifacts = InMemoryArtifactService()
    model = ScriptedModel(calls(("draw_up", {"text": "a"}), ("remember", {})), "Done.")
    agent = Agent(name="clerk", model=model, tools=[draw_up, remember])
    async with serve(agent, services=Services(artifacts=artifacts)) as env:
        await env.client.run("clerk", "report", user_id="ann", session_id="s1")
        assert tool_responses(model.requests[1])[1] == {
            "error": "Cannot add session to memory: memory service is not available.",
            "error_type": "ValueError",
        }
    assert await artifacts.list_artifact_keys(app_name="waystation", user_id="ann", session_id="s1") == [
        "report.txt",
        "user:latest",
    ]


async def test_a_callback_with_a_forgotten_await_fails(serve: Serve) -> None:
    """A callback with a forgotten await fails, because it would have no effect."""

    def save(callback_context: CallbackContext) -> None:
        callback_context.save_artifact("a.txt", types.Part(text="x"))  # type: ignore[unused-coroutine]  # the mistake

    async with serve(Agent(name="guide", model=ScriptedModel(), before_agent_callback=save)) as env:
        invocation = await env.client.start("guide", "hello")
        with pytest.raises(WorkflowFailureError) as failed:
            await invocation.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.message.startswith(
        "`before_agent_callback`: The call to `save_artifact` of the context did nothing"
    )
