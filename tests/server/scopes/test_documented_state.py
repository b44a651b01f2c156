"""The agent of the page on state does what the page describes."""

from pathlib import Path

from tests.documents import blocks, how_to
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.apps.registry import discover
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.tool_context import ToolContext

_, AGENT, PROGRAM = blocks(how_to("keep-state"), "python")


async def test_the_agent_of_the_page_remembers_the_user(serve: Serve, app: str, tmp_path: Path) -> None:
    """The instruction of the next invocation contains the name."""
    package = tmp_path / "state_page"
    package.mkdir()
    (package / "agent.py").write_text(AGENT)
    registry, problems = discover([tmp_path])
    assert [str(problem) for problem in problems] == []
    root = registry.roots["host"]
    model = ScriptedModel(calls(("remember_name", {"name": "Ada"})), says("ok"), says("Hi."))
    async with serve(root.agent, model=model) as env:
        await env.client.run("host", "I am Ada", app=app)
        await env.client.run("host", "hi", app=app)
        assert await env.client.app_state(app=app) == {"app:guests": 1}
    assert "The user is called Ada." in str(model.requests[-1].system_instruction)


async def test_temporary_state_is_recorded_in_the_history(serve: Serve) -> None:
    """Temporary state is in the history and in events, as the page warns, but not in the result."""

    def draft(tool_context: ToolContext) -> str:
        tool_context.state["temp:draft"] = "between ourselves"
        return "ok"

    agent = Agent(name="writer", model=ScriptedModel(calls(("draft", {})), says("Done.")), tools=[draft])
    async with serve(agent) as env:
        invocation = await env.client.start("writer", "Write.")
        result = await invocation.result()
        assert "between ourselves" in str((await invocation.history()).events)
        assert any("temp:draft" in event.actions.state_delta for event in (await invocation.log()).state.events)
    assert "between ourselves" not in str(result)


def test_the_program_of_the_page_compiles() -> None:
    """The program is valid Python; other tests make the same calls."""
    compile(PROGRAM, "keep-state.md", "exec")
