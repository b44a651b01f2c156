"""A command finds the server or reports a missing one; `waystation setup` prepares a namespace, on a server."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import OperatorService, RPCError, RPCStatusCode

from tests.paths import ROOT
from tests.programs import command
from waystation.core.contract import SEARCH_ATTRIBUTES
from waystation.embedded import EmbeddedServer


@pytest.mark.parametrize(
    ("address", "named"),
    [("127.0.0.1:1", "127.0.0.1:1"), ("no-such-host.invalid:7233", "no-such-host"), ("[::1]:1", "[::1]:1")],
)
async def test_without_a_server_a_command_exits_with_8(address: str, named: str) -> None:
    """The message names the address, and how to start a server or choose another one."""
    for arguments in (["events", "x"], ["run", "a", "b"], ["pending"], ["approve", "x"], ["setup"], ["replay", "x"]):
        ran = await command("--address", address, *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (8, "", 1), arguments
        assert named in ran.err
        assert "--embedded" in ran.err


@pytest.mark.parametrize(
    "command_line",
    ["pending", "events x", "approve x", "session show x", "session close x", "session delete x", "chat x"],
)
async def test_an_unknown_namespace_exits_with_8(server: EmbeddedServer, command_line: str) -> None:
    """The message names the namespace and does not suggest anything about its content."""
    ran = await command("--address", server.address, "--namespace", "elsewhere", *command_line.split())
    assert (ran.code, ran.err.startswith("waystation: Namespace elsewhere is not found.")) == (8, True), ran.err


async def test_the_environment_names_the_server(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable or a profile names the server; options take precedence."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    assert (await command("pending", "--json")).code == 0
    assert (await command("pending", "--address", "127.0.0.1:1")).code == 8
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    (tmp_path / "temporal.toml").write_text(f'[profile.here]\naddress = "{server.address}"\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    assert (await command("--profile", "here", "pending")).code == 0


async def test_global_options_may_follow_the_command(server: EmbeddedServer) -> None:
    """Both spellings work, but not after `--`, where values may look like options."""
    assert (await command("pending", "--address", server.address)).code == 0
    assert (await command("pending", f"--address={server.address}", "--json")).code == 0
    ran = await command("--address", server.address, "events", "--", "--address")
    assert (ran.code, "'--address'" in ran.err) == (6, True)
    assert (await command("pending", "--address")).code == 2


@pytest.mark.slow
async def test_setup_creates_the_search_attributes_once() -> None:
    """The search attributes can be used when the command ends. A second run changes nothing and succeeds."""
    # A server process of its own: those of a cluster accept search attributes at different times.
    async with EmbeddedServer() as server:
        client = await Client.connect(server.address, namespace="created-late")
        request = RegisterNamespaceRequest(namespace=client.namespace)
        request.workflow_execution_retention_period.FromSeconds(86_400)
        await client.workflow_service.register_namespace(request)
        options = ("--address", server.address, "--namespace", request.namespace)
        while (ran := await command(*options, "setup", "--json")).code == 8:  # not everywhere yet
            pass
        assert ran.code == 0
        assert sorted(ran.records[0]["created"]) == sorted(SEARCH_ATTRIBUTES)
        await client.count_workflows("WaystationPending = 'fc-1'")
        second_run = await command(*options, "setup", "--json")
        assert second_run.records == [
            {"namespace": request.namespace, "created": [], "present": list(SEARCH_ATTRIBUTES)}
        ]
        assert "already" in (await command(*options, "setup")).out


async def test_setup_prints_the_command_for_temporal_cloud(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is printed because a client cannot create search attributes in Temporal Cloud."""
    refusal = RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")
    monkeypatch.setattr(
        OperatorService, "list_search_attributes", AsyncMock(return_value=ListSearchAttributesResponse())
    )
    monkeypatch.setattr(OperatorService, "add_search_attributes", AsyncMock(side_effect=refusal))
    ran = await command("--address", server.address, "setup")
    assert ran.code == 5
    assert "tcld namespace search-attributes add --namespace default --search-attribute WaystationAgent=Key" in ran.err


def test_the_program_is_a_process_with_an_exit_code(server: EmbeddedServer) -> None:
    """Help and errors reach a shell with their exit codes."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "waystation.cli", *arguments]
        return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)

    help_output = run("--help")
    assert (help_output.returncode, help_output.stderr) == (0, "")
    assert "3    the call has already been answered" in help_output.stdout
    ran = run("--address", server.address, "state", "no-such", "--json")
    assert (ran.returncode, ran.stdout, "'no-such'" in ran.stderr) == (6, "", True)
    ran = run("evnts")
    assert (ran.returncode, "Did you mean 'events'" in ran.stderr) == (2, True)
