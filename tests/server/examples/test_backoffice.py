"""The company application: its desks, its front end with encryption, its deploy and its client in TypeScript."""

import ast
import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import psycopg
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.fakes.openid import FakeOpenId
from tests.paths import EXAMPLES, syntax_tree
from tests.server.cli.shell import Shell
from tests.server.conftest import Serve
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.server.examples.conftest import answered
from tests.server.processes.workers import Process
from tests.server.web.sites import site
from tests.slow.programs.test_encryption_codecs import package
from tests.steps import start_and_finish, start_and_wait, wait_for_calls, wait_until
from tests.unit.identity.conftest import Installation, installed
from waystation import NotAllowed
from waystation.approvers import Gatekeeper
from waystation.apps.registry import Registry, discover
from waystation.artifacts import ObjectStoreArtifactService
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.project_file import Project, load_project, use_project
from waystation.testing import People
from waystation.tools.services import Services

__all__ = ["package"]

FOLDER = EXAMPLES / "backoffice"
KEY = "hidden-suppliers-key"
RESOURCE = "https://backoffice.example.com"
DOCUMENTED = {
    "waystation",
    "waystation.approvers.identity",
    "waystation.auth",
    "waystation.models",
    "waystation.testing",
}


@contextlib.asynccontextmanager
async def port_of(app: Any) -> AsyncIterator[int]:
    """Serve a web application in a thread, and return its port."""
    service = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    running = asyncio.create_task(asyncio.to_thread(service.run))
    while not service.started:
        await asyncio.sleep(0.01)
    yield service.servers[0].sockets[0].getsockname()[1]
    service.should_exit = True
    await running


@pytest.fixture(scope="module")
async def desks() -> AsyncIterator[Registry]:
    """Return the agents, next to the service of suppliers."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER / "services"))
        patched.setenv("SUPPLIERS_KEY", KEY)
        async with port_of("suppliers:app") as port:
            patched.setenv("SUPPLIERS_URL", f"http://127.0.0.1:{port}")
            registry, problems = discover([FOLDER / "agents"])
            assert [str(problem) for problem in problems] == []
            yield registry


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
    async with serve(desks, model="demo", identity=waystation_people.identity) as env:
        session = env.client.session(agent="support_desk", session_id="support", app=env.client.task_queue)
        assert '"total": 80.0' in (await session.say("Where is A-17?")).text
        refund = await session.send("Please refund A-17")
        await waystation_people("lea", roles=["support-lead"]).approve(refund, "fc-1", comment="broken")
        assert '"status": "refunded"' in (await refund.result()).text
    assert paid(ledger) == [("rose@example.com", 80)]


async def test_the_carrier_answers_a_claim_over_http(
    serve: Serve, desks: Registry, waystation_people: People, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It receives the order and a completion URL. Its answer counts once, and people cannot answer in its place."""
    claims: list[Any] = []

    async def take(request: Request) -> Response:
        claims.append(await request.json())
        return Response(status_code=202)

    lea = waystation_people("lea", roles=["support-lead"])
    async with port_of(Starlette(routes=[Route("/claims", take, methods=["POST"])])) as port:
        monkeypatch.setenv("CARRIER_URL", f"http://127.0.0.1:{port}")
        async with (
            serve(desks, model="demo", identity=waystation_people.identity) as env,
            site(env.client, gatekeeper=lea.gatekeeper) as web,
            httpx.AsyncClient() as carrier,
        ):
            invocation = await start_and_wait(env.client.start("support_desk", "A-17 was damaged"), "fc-1")
            [claim] = claims
            with pytest.raises(NotAllowed, match="machine 'carrier'"):
                await lea.answer(invocation, "respond", "fc-1", response={"amount": 1000})
            url = claim["reply_to"].replace("https://approvals.example.com", web.url)
            answers = [await carrier.post(url, json={"response": {"amount": 60}}) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 200]
            assert '"amount": 60' in (await invocation.result()).text
    assert claim["order"] == "A-17"


async def test_the_finance_department_may_approve_after_two_days(
    waystation_serve: Serve, waystation_people: People, desks: Registry, ledger: str
) -> None:
    """A manager is asked first, and does not answer."""
    fred = waystation_people("fred", roles=["finance"])
    async with waystation_serve(desks, model="demo", identity=waystation_people.identity) as env:
        session = env.client.session(agent="expense_desk", session_id="trip", user_id="ann")
        await session.save_artifact("train.pdf", b"%PDF", mime_type="application/pdf")
        ann = waystation_people("ann").token
        sent = await session.send("150 euros for a trip, receipt train.pdf", token=ann)
        with pytest.raises(NotAllowed, match="role:manager"):
            await fred.approve(sent, "fc-1")
        await env.skip(days=2)
        await fred.approve(sent, "fc-1")
        assert '"status": "paid"' in (await sent.result()).text
    assert paid(ledger) == [("ann", 150)]


async def test_research_uses_a_program_and_a_service(serve: Serve, desks: Registry) -> None:
    """The handbook answers over stdio, the suppliers over HTTP with a key that is not recorded."""
    async with serve(desks, model="demo") as env:
        invocation = await start_and_finish(env.client.start("research_desk", "What about chairs?"))
        rule, supplier = answered([event async for event in invocation.events()])
        history = await invocation.history()
    assert ("300 euros" in str(rule), supplier) == (True, {"name": "Sitwell & Sons"})
    assert KEY.encode() not in b"".join(event.SerializeToString() for event in history.events)


@pytest.fixture
def there(tmp_path: Path, own_openid: FakeOpenId) -> Installation:
    """Return the identity files of the application, which trust the access tokens of the company's login."""
    own_openid.audience = RESOURCE
    there = installed(tmp_path / "backoffice" / "identity", own_openid, {"audience": RESOURCE})
    section = ("[oidc]", f'issuer = "{own_openid.url}"', 'client_id = "backoffice"', f'resource = "{RESOURCE}"')
    with (there.folder / "gateway.toml").open("a") as file:
        file.write("\n".join(["", *section, ""]))
    return there


@pytest.fixture
def project(
    ledger: str, s3: str, there: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """Return the settings of a copy of the application, which stores everything in servers of the test.

    This process uses them, and is in the folder of the copy.
    """
    folder = tmp_path / "backoffice"
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "waystation.toml"
    file.write_text(file.read_text().replace("s3://backoffice", s3))
    (folder / "keys").mkdir()
    write_keys(folder / "keys" / "encryption.json", "first")
    monkeypatch.chdir(folder)
    project = load_project()
    assert project is not None
    use_project(project)
    yield project
    use_project(None)


async def test_the_application_works_with_encryption(
    serve: Serve, desks: Registry, there: Installation, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim with a receipt is sent twice, approved by two managers with their tokens, streamed, and paid once.

    The payloads are in S3 and the user's keys in PostgreSQL, and the history has no readable content.
    """
    services = Services(artifacts=ObjectStoreArtifactService(project.get("stores.artifacts")))
    options = {"services": services, "store": project.get("stores.payloads"), "task_queue": "waystation"}
    gatekeeper = Gatekeeper.from_file(project.get("identity.web"), "default", interface="web")

    async def send(web: httpx.AsyncClient, method: str, path: str, name: str, **content: Any) -> Any:
        token = there.provider.token(name, roles=["manager"])
        response = await web.request(method, path, headers={"Authorization": f"Bearer {token}"}, **content)
        return response.json() if "json" in response.headers["content-type"] else response.text

    async with (
        serve(desks, model="demo", identity=there.worker, **options) as env,
        site(env.client, gatekeeper=gatekeeper) as inbox,
        httpx.AsyncClient(base_url=f"{inbox.url}/api/v1") as api,
    ):
        monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
        app = import_module("front_end").app
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as web:
            receipt = {"receipt": ("chair.pdf", b"%PDF", "application/pdf")}
            content = {"data": {"text": "1200 euros for a chair"}, "files": receipt}
            sent = await send(web, "POST", "/expenses/chair", "ann", **content)
            assert await send(web, "POST", "/expenses/chair", "ann", **content) == sent

            async def calls_of(name: str) -> Any:
                return (await send(api, "GET", "/calls?show=mine", name))["calls"]

            [call] = await wait_until(lambda: calls_of("ben"), "the call")
            assert (call["title"], await calls_of("ann")) == ("Reimburse 1,200.00 € for a chair", [])
            decision = {"action": "approve", "digest": call["digest"], "comment": "needed"}
            place = f"/calls/{quote(call['id'], safe='')}/answers"
            assert (await send(api, "POST", place, "ann", json=decision))["type"].endswith("NotAllowed")
            lacking = [(await send(api, "POST", place, name, json=decision))["lacking"] for name in ("ben", "cleo")]
            invocation = env.client.invocation(sent["invocation"])
            await invocation.result()
            await env.client.session(agent="expense_desk", session_id="chair", user_id="ann").close()
            stream = await send(web, "GET", "/conversations/chair/events", "ann")
            forged = {"Authorization": "Bearer a.b.c"}
            assert (await web.post("/conversations/x", headers=forged)).status_code == 401
        recorded = b"".join(event.SerializeToString() for event in (await invocation.history()).events)
    assert lacking == [1, 0]
    assert "payment" in stream
    assert paid(os.environ["BACKOFFICE_DATABASE"]) == [("ann", 1200)]
    assert b"chair.pdf" not in recorded


@pytest.fixture
async def shell(project: Project, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shell]:
    """Return a terminal in the folder of the application, whose workers use the demo models."""
    with project.file.open("a") as file:
        file.write('\n[worker]\nmodel = "demo"\n')
    async with EmbeddedServer() as server:
        shell = Shell.at(project.file.parent, server.address)
        monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
        monkeypatch.setenv("WAYSTATION_CREDENTIAL_KEY", "LCHs0j7MFGEQ5mSTwb3OVSlUSNv92uTmKaFUfzWkLEc=")
        code, out = await shell.run("waystation identity keys keys/workers.json && waystation setup")
        assert code == 0, out
        yield shell
        await shell.run("xargs kill -9 < workers.pid")


async def roll_out(shell: Shell, build: str) -> None:
    """Run the script, whose workers keep its output open."""
    code, out = await shell.run(f"./roll-out.sh {build} > {build}.log 2>&1 || tail -5 {build}.log")
    assert (code, out) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_refund_waits_across_a_deploy(shell: Shell, there: Installation) -> None:
    """Two workers replace two others, and the call that waited runs once, on the new build."""
    await roll_out(shell, "1")
    client = await AgentClient.connect()
    invocation = await client.start("support_desk", "Please refund A-17")
    await wait_for_calls(invocation, "fc-1")
    await roll_out(shell, "2")
    await shell.until("grep -c worker.stopped 1.log", "2")
    await invocation.approve(token=there.gateway.signer("lea", ["support-lead"]), comment="broken")
    assert '"refunded"' in (await invocation.result()).text
    assert paid(os.environ["BACKOFFICE_DATABASE"]) == [("rose@example.com", 80)]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_client_in_typescript_reads_encrypted_results(
    shell: Shell, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts the research desk, and prints the rule of the handbook."""
    shutil.copy(shell.folder / "report.ts", package)
    monkeypatch.setenv("WAYSTATION_ENCRYPTION_KEYS", str(shell.folder / "keys" / "encryption.json"))
    command = (sys.executable, "-m", "waystation.cli", "worker", "--project-file", str(shell.folder))
    async with Process(*command, environment=dict(os.environ)):
        code, out = await shell.run(f"cd {package} && node report.ts 'What are the rules for chairs?'")
    assert (code, "300 euros" in out) == (0, True), out


def test_the_application_is_short_and_uses_only_documented_packages() -> None:
    """It has at most 450 lines, and imports nothing private."""
    files = [path for path in FOLDER.rglob("*") if path.suffix in {".py", ".ts", ".sql", ".sh", ".toml", ".yaml"}]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 450
    nodes = (node for path in files if path.suffix == ".py" for node in syntax_tree(path).body)
    ours = (str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and "waystation" in str(node.module))
    assert {name for name in ours if not name.startswith("waystation.tools.")} <= DOCUMENTED
