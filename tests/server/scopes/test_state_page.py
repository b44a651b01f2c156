"""What docs/how-to/keep-state.md shows is an agent, and does what the page says."""

import re
from pathlib import Path

from tests.paths import ROOT
from tests.server.conftest import Serve
from waystation.agents.registry import discover
from waystation.testing import ScriptedModel, calls, says

PAGE = (ROOT / "docs" / "how-to" / "keep-state.md").read_text()
AGENT, PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_agent_of_the_page_remembers_the_user(serve: Serve, app: str, tmp_path: Path) -> None:
    """The instruction of the next invocation has the name."""
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
        assert await env.client.state.app(app=app) == {"app:guests": 1}
    assert "The user is called Ada." in str(model.requests[-1].system_instruction)


def test_the_program_of_the_page_compiles() -> None:
    """The program only compiles here; the other tests make its calls."""
    compile(PROGRAM, "state.md", "exec")
