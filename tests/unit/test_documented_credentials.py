"""The code of the page on credentials works unchanged."""

from typing import Any

import pytest

from tests.documents import blocks, how_to
from waystation.agents import Agent
from waystation.apps.registry import authoring_problems
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

LOGIN = blocks(how_to("provide-credentials"), "python")[1]


async def test_the_tool_of_the_page_requests_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent has no mistakes, and its tool shows the login link."""
    monkeypatch.setenv("CALENDAR_SECRET", "canary-1f2e3d")
    made: dict[str, Any] = {}
    exec(LOGIN, made)
    assert isinstance(made["root_agent"], Agent)
    assert list(authoring_problems(made["root_agent"])) == []
    (tool,) = made["root_agent"].tools
    context = ToolContext(function_call_id="fc-1", services=Services(credentials=InMemoryCredentialService()))
    assert await tool.run_async(args={"day": "monday"}, tool_context=context) == "Pending User Authorization."
    (config,) = context.recorded_actions().requested_auth_configs.values()
    assert config["exchangedAuthCredential"]["oauth2"]["authUri"].startswith("https://provider.example/authorize?")
    assert "canary" not in str(config)


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
def test_imports_of_adk_work_after_renaming(line: str) -> None:
    """An import of ADK works after `google.adk` is replaced with `waystation`."""
    exec(line, {})
