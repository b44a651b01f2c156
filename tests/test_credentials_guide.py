"""What docs/credentials.md shows works as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from activities.credentials import InMemoryCredentialService
from tools import Services, ToolContext, authoring_problems
from waystation.agents import Agent

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "credentials.md"


async def test_the_first_example_asks_for_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a whole agent but for two imports, and its tool shows where to log in."""
    monkeypatch.setenv("CALENDAR_SECRET", "canary-1f2e3d")
    example = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)[0]
    made: dict[str, Any] = {}
    exec(f"import os\nfrom waystation.agents import Agent\n{example}", made)
    assert isinstance(made["root_agent"], Agent)
    assert list(authoring_problems(made["root_agent"])) == []
    (tool,) = made["root_agent"].tools
    context = ToolContext(function_call_id="fc-1", services=Services(credentials=InMemoryCredentialService()))
    assert await tool.run_async(args={"day": "monday"}, tool_context=context) == "Pending User Authorization."
    (shown,) = context.recorded_actions().requested_auth_configs.values()
    assert shown["exchangedAuthCredential"]["oauth2"]["authUri"].startswith("https://provider.example/authorize?")
    assert "canary" not in str(shown)
