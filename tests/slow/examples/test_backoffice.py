"""The deploy and the TypeScript client of the company application, with real processes and encryption."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tests.paths import EXAMPLES
from tests.server.cli.shell import Shell
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.server.processes.workers import Process, until
from tests.server.workflows.outside import waiting
from tests.slow.programs.test_encryption_codecs import package
from tests.unit.identity.conftest import Installation, there
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer

pytestmark = pytest.mark.timeout(900)
__all__ = ["package", "there"]


def workers(folder: Path) -> list[int]:
    """Return the IDs of the workers that the script started last."""
    file = folder / "workers.pid"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
async def shell(
    tmp_path: Path, postgres: str, there: Installation, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shell]:
    """Return a terminal with the settings of the application, in its folder."""
    folder = tmp_path / "backoffice"
    shutil.copytree(EXAMPLES / "backoffice", folder)
    write_keys(tmp_path / "encryption.json", "first")
    with psycopg.connect(postgres) as connection:
        connection.execute((folder / "schema.sql").read_bytes())
    async with EmbeddedServer() as server:
        settings = {
            "TEMPORAL_ADDRESS": server.address,
            "WAYSTATION_STORE": str(tmp_path / "payloads"),
            "WAYSTATION_ENCRYPTION_KEYS": str(tmp_path / "encryption.json"),
            "WAYSTATION_USER_KEYS": postgres,
            "WAYSTATION_IDENTITY": str(there.folder / "workers.toml"),
            "WAYSTATION_CREDENTIAL_KEY": "LCHs0j7MFGEQ5mSTwb3OVSlUSNv92uTmKaFUfzWkLEc=",
            "BACKOFFICE_ARTIFACTS": str(tmp_path / "artifacts"),
            "BACKOFFICE_DATABASE": postgres,
            "MODEL": "demo",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        shell = Shell.at(folder, server.address)
        code, out = await shell.run("waystation identity keys keys.json && waystation setup")
        assert code == 0, out
        monkeypatch.setenv("WAYSTATION_KEYS", str(folder / "keys.json"))
        try:
            yield shell
        finally:
            for pid in workers(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


async def roll_out(shell: Shell, build: str) -> list[int]:
    """Run the script, whose workers keep its output open, and return the IDs of the workers."""
    code, out = await shell.run(f"./roll-out.sh {build} > {build}.log 2>&1 || tail -5 {build}.log")
    assert (code, out) == (0, "")
    return workers(shell.folder)


def runs(pid: int) -> bool:
    """Return whether a process runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_a_refund_waits_across_a_deploy(shell: Shell, there: Installation, postgres: str) -> None:
    """Two workers replace two others, and the call that waited runs once, on the new build."""
    old = await roll_out(shell, "1")
    client = await AgentClient.connect(store=os.environ["WAYSTATION_STORE"])
    invocation = await client.start("support_desk", "Please refund A-17")
    await waiting(invocation, "fc-1")
    new = await roll_out(shell, "2")
    await until(lambda: not any(map(runs, old)), "the end of the old workers")
    await invocation.approve(token=there.gateway.signer("lea", ["support-lead"]), comment="broken")
    assert '"refunded"' in (await invocation.result()).text
    assert (len(old), all(map(runs, new))) == (2, True)
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT payee FROM payments").fetchall() == [("rose@example.com",)]


async def test_the_client_in_typescript_reads_encrypted_results(shell: Shell, package: Path) -> None:
    """It starts the research desk, and prints the rule of the handbook."""
    shutil.copy(shell.folder / "report.ts", package)
    command = (sys.executable, "-m", "waystation.cli", "worker", "--model", "demo")
    async with Process(*command, "--agents", str(shell.folder / "agents"), environment=dict(os.environ)):
        node = Path(sys.executable).with_name("node")
        code, out = await shell.run(f"cd {package} && {node} report.ts 'What are the rules for chairs?'")
    assert (code, "300 euros" in out) == (0, True), out
