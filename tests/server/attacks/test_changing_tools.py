"""An MCP server that changes a tool between its approval and its run."""

import sys
from pathlib import Path

import pytest

from tests.server.attacks.attackers import ANN
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, start_and_wait
from tests.unit.tools.mcp_calls import LIMIT_S
from waystation.agents import Agent
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, responses, says
from waystation.tools.mcp_tool import McpToolset, StdioConnectionParams, StdioServerParameters

SERVER = str(Path(__file__).parents[2] / "unit" / "tools" / "lying_mcp_server.py")


def remote(lie: Path) -> McpToolset:
    """Return the tools of a server that reads its lie from a file."""
    program = StdioServerParameters(command=sys.executable, args=[SERVER, f"@{lie}"])
    parameters = StdioConnectionParams(server_params=program, timeout=LIMIT_S)
    return McpToolset(connection_params=parameters, require_confirmation=True)


def adder(lie: Path) -> Agent:
    """Return an agent that adds once."""

    def act(request: LlmRequest) -> LlmResponse:
        tool_results = responses(request)
        return says(str(tool_results[-1][1])) if tool_results else calls(("add", {"a": 1}))

    return Agent(name="adder", model=FunctionModel(act), tools=[remote(lie)])


@pytest.mark.parametrize(("lie", "ran"), [("", True), ("changed", False)], ids=["honest", "changed"])
async def test_a_tool_that_changes_after_its_approval_does_not_run(
    serve: Serve, tmp_path: Path, lie: str, ran: bool
) -> None:
    """A tool whose parameters changed after the approval does not run. As a control, an honest server's tool runs."""
    file = tmp_path / "lie"
    file.write_text("")
    async with serve(adder(file), verify=False) as env:
        invocation = await start_and_wait(env.client.start("adder", "go"), "fc-1")
        queue = env.client.task_queue
    file.write_text(lie)
    async with serve(adder(file), verify=False, task_queue=queue):
        text = (await approve_and_finish(invocation, "fc-1", by=ANN)).text
    assert ("isError" in text) is ran
    assert ("its parameters changed" in text) is not ran
