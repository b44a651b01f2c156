"""The company application: its desks, its front end with encryption, its deploy and its client in TypeScript."""

import ast
import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
import uvicorn

from tests.paths import EXAMPLES, syntax_tree
from tests.server.cli.shell import Shell
from tests.server.conftest import Serve
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.server.examples.conftest import answered
from tests.server.processes.workers import Process
from tests.server.workflows.outside import ended, until, waiting
from tests.slow.programs.test_encryption_codecs import package
from tests.unit.identity.conftest import Installation, there
from waystation.apps.registry import Registry, discover
from waystation.artifacts import ObjectStoreArtifactService
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.testing import People
from waystation.tools.services import Services

__all__ = ["package", "there"]

FOLDER = EXAMPLES / "backoffice"
KEY = "hidden-suppliers-key"
DOCUMENTED = {"waystation", "waystation.artifacts", "waystation.auth", "waystation.models", "waystation.testing"}


@pytest.fixture(scope="module")
async def desks() -> AsyncIterator[Registry]:
    """Return the agents, next to the service of suppliers."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER / "services"))
        patched.setenv("SUPPLIERS_KEY", KEY)
        service = uvicorn.Server(uvicorn.Config("suppliers:app", port=0, log_level="error"))
        running = asyncio.create_task(asyncio.to_thread(service.run))
        while not service.started:
            await asyncio.sleep(0.01)
        port = service.servers[0].sockets[0].getsockname()[1]
        patched.setenv("SUPPLIERS_URL", f"http://127.0.0.1:{port}")
        registry, problems = discover([FOLDER / "agents"])
        assert [str(problem) for problem in problems] == []
        yield registry
        service.should_exit = True
        await running


@pytest.fixture
def ledger(postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a database with the company's tables."""
    with psycopg.connect(postgres) as connection:
        connection.execute((FOLDER / "schema.sql").read_bytes())
    monkeypatch.setenv("BACKOFFICE_DATABASE", postgres)
    return postgres


def paid(url: str) -> Sequence[Any]:
    """Return what was paid."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT payee, amount::int FROM payments ORDER BY number").fetchall()


async def test_support_refunds_with_the_approval_of_a_lead(
    serve: Serve, desks: Registry, waystation_people: People, ledger: str
) -> None:
    """A conversation looks the order up, and refunds it after a verified approval."""
    desk = desks.roots["support_desk"]
    async with serve(desk.agent, model=desk.demo_model, identity=waystation_people.identity) as env:
        session = env.client.session(agent="support_desk", session_id="support", app=env.client.task_queue)
        assert '"total": 80.0' in (await session.say("Where is A-17?")).text
        refund = await session.send("Please refund A-17")
        await waystation_people("lea", roles=["support-lead"]).approve(refund, "fc-1", comment="broken")
        assert '"status": "refunded"' in (await refund.result()).text
    assert paid(ledger) == [("rose@example.com", 80)]


async def test_research_uses_a_program_and_a_service(serve: Serve, desks: Registry) -> None:
    """The handbook answers over stdio, the suppliers over HTTP with a key that is not recorded."""
    desk = desks.roots["research_desk"]
    async with serve(desk.agent, model=desk.demo_model) as env:
        invocation = await ended(env.client.start("research_desk", "What about chairs?"))
        rule, supplier = answered([event async for event in invocation.events()])
        history = await invocation.history()
    assert ("300 euros" in str(rule), supplier) == (True, {"name": "Sitwell & Sons"})
    assert KEY.encode() not in b"".join(event.SerializeToString() for event in history.events)


@pytest.fixture
def settings(
    ledger: str, s3: str, there: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, str]:
    """Return the settings of the application, which this process has."""
    write_keys(tmp_path / "encryption.json", "first")
    values = {
        "WAYSTATION_STORE": f"{s3}/payloads",
        "WAYSTATION_ENCRYPTION_KEYS": str(tmp_path / "encryption.json"),
        "WAYSTATION_USER_KEYS": ledger,
        "WAYSTATION_IDENTITY": str(there.folder / "workers.toml"),
        "WAYSTATION_CLIENT_IDENTITY": str(there.folder / "clients.toml"),
        "BACKOFFICE_ARTIFACTS": f"{s3}/artifacts",
        "BACKOFFICE_DATABASE": ledger,
        "BACKOFFICE_ISSUER": there.provider.url,
        "BACKOFFICE_JWKS": f"{there.provider.url}/jwks",
        "BACKOFFICE_AUDIENCE": there.provider.audience,
    }
    named = re.findall(r"^(\w+)=", (FOLDER / "backoffice.env").read_text(), re.MULTILINE)
    assert set(named) == values.keys() | {"TEMPORAL_ADDRESS", "WAYSTATION_KEYS"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


async def test_the_front_end_works_with_encryption(
    serve: Serve, desks: Registry, there: Installation, settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim with a receipt is sent twice, approved by two managers with their tokens, streamed, and paid once.

    The payloads are in S3 and the user's keys in PostgreSQL, and the history has no readable content.
    """
    desk = desks.roots["expense_desk"]
    services = Services(artifacts=ObjectStoreArtifactService(settings["BACKOFFICE_ARTIFACTS"]))
    options = {"services": services, "store": settings["WAYSTATION_STORE"], "task_queue": "waystation"}
    async with serve(desk.agent, model=desk.demo_model, identity=there.worker, **options) as env:
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        app = import_module("front_end").app
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as web:

            async def send(method: str, path: str, name: str, **content: Any) -> Any:
                token = there.provider.token(name, roles=["manager"])
                response = await web.request(method, path, headers={"Authorization": f"Bearer {token}"}, **content)
                return response.json() if "json" in response.headers["content-type"] else response.text

            receipt = {"receipt": ("chair.pdf", b"%PDF", "application/pdf")}
            content = {"data": {"text": "1200 euros for a chair"}, "files": receipt}
            sent = await send("POST", "/expenses/chair", "ann", **content)
            assert await send("POST", "/expenses/chair", "ann", **content) == sent
            [call] = await until(lambda: send("GET", "/calls", "ann"), "the call")
            decision = {"action": "approve", "digest": call["digest"], "comment": "needed"}
            assert call["title"] == "Reimburse 1,200.00 € for a chair"
            assert (await send("POST", f"/calls/{call['id']}", "ann", json=decision))["error"] == "NotAllowed"
            for name in ("ben", "cleo"):
                await send("POST", f"/calls/{call['id']}", name, json=decision)
            invocation = env.client.invocation(sent["invocation"])
            await invocation.result()
            await env.client.session(agent="expense_desk", session_id="chair", user_id="ann").close()
            stream = await send("GET", "/conversations/chair/events", "ann")
            assert (await web.get("/calls", headers={"Authorization": "Bearer forged"})).status_code == 401
        recorded = b"".join(event.SerializeToString() for event in (await invocation.history()).events)
    assert "payment" in stream
    assert paid(settings["BACKOFFICE_DATABASE"]) == [("ann", 1200)]
    assert b"chair.pdf" not in recorded


@pytest.fixture
async def shell(tmp_path: Path, settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shell]:
    """Return a terminal in the folder of the application, with its settings."""
    folder = tmp_path / "backoffice"
    shutil.copytree(FOLDER, folder)
    async with EmbeddedServer() as server:
        shell = Shell.at(folder, server.address)
        more = {
            "TEMPORAL_ADDRESS": server.address,
            "MODEL": "demo",
            "WAYSTATION_CREDENTIAL_KEY": "LCHs0j7MFGEQ5mSTwb3OVSlUSNv92uTmKaFUfzWkLEc=",
            "WAYSTATION_KEYS": str(folder / "keys.json"),
        }
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        code, out = await shell.run("waystation identity keys keys.json && waystation setup")
        assert code == 0, out
        yield shell
        await shell.run("xargs kill -9 < workers.pid")


async def roll_out(shell: Shell, build: str) -> None:
    """Run the script, whose workers keep its output open."""
    code, out = await shell.run(f"./roll-out.sh {build} > {build}.log 2>&1 || tail -5 {build}.log")
    assert (code, out) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_refund_waits_across_a_deploy(shell: Shell, there: Installation, settings: Mapping[str, str]) -> None:
    """Two workers replace two others, and the call that waited runs once, on the new build."""
    await roll_out(shell, "1")
    client = await AgentClient.connect(store=settings["WAYSTATION_STORE"])
    invocation = await client.start("support_desk", "Please refund A-17")
    await waiting(invocation, "fc-1")
    await roll_out(shell, "2")
    await shell.until("grep -c worker.stopped 1.log", "2")
    await invocation.approve(token=there.gateway.signer("lea", ["support-lead"]), comment="broken")
    assert '"refunded"' in (await invocation.result()).text
    assert paid(settings["BACKOFFICE_DATABASE"]) == [("rose@example.com", 80)]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_client_in_typescript_reads_encrypted_results(shell: Shell, package: Path) -> None:
    """It starts the research desk, and prints the rule of the handbook."""
    shutil.copy(shell.folder / "report.ts", package)
    command = (sys.executable, "-m", "waystation.cli", "worker", "--model", "demo", "--agents")
    async with Process(*command, str(shell.folder / "agents"), environment=dict(os.environ)):
        code, out = await shell.run(f"cd {package} && node report.ts 'What are the rules for chairs?'")
    assert (code, "300 euros" in out) == (0, True), out


def test_the_application_is_short_and_uses_only_documented_packages() -> None:
    """It has at most 450 lines, and imports nothing private."""
    files = [path for path in FOLDER.rglob("*") if path.suffix in {".py", ".ts", ".sql", ".sh", ".env", ".yaml"}]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 450
    nodes = (node for path in files if path.suffix == ".py" for node in syntax_tree(path).body)
    ours = (str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and "waystation" in str(node.module))
    assert {name for name in ours if not name.startswith("waystation.tools.")} <= DOCUMENTED
