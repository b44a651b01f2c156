"""What docs/how-to/provide-credentials.md shows works as it stands."""

import re
from typing import Any

import pytest

from tests.paths import ROOT
from waystation.agents import Agent
from waystation.agents.registry import authoring_problems
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

GUIDE = ROOT / "docs" / "how-to" / "provide-credentials.md"


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


@pytest.mark.parametrize(
    "line",
    [
        "from waystation.auth import AuthConfig, AuthCredential, AuthCredentialTypes, AuthScheme, AuthSchemeType",
        "from waystation.auth import OAuth2Auth, OpenIdConnectWithConfig",
        "from waystation.auth.auth_credential import AuthCredential, HttpAuth, HttpCredentials, ServiceAccount",
        "from waystation.auth.auth_credential import AuthCredentialTypes, OAuth2Auth, ServiceAccountCredential",
        "from waystation.auth.auth_schemes import AuthScheme, AuthSchemeType, OpenIdConnectWithConfig",
        "from waystation.auth.auth_tool import AuthConfig",
        "from waystation.auth.credential_service.base_credential_service import BaseCredentialService",
        "from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService",
        "from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool",
        "from waystation.tools.base_authenticated_tool import BaseAuthenticatedTool",
    ],
)
def test_imports_of_adk_work_under_our_name(line: str) -> None:
    """As an author has them after replacing `google.adk` by `waystation`."""
    exec(line, {})
