"""The desks of the company application, with their demo models; `tests/slow/examples` has the whole application."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
import uvicorn

from tests.paths import EXAMPLES, syntax_tree
from tests.server.conftest import Serve
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.server.examples.conftest import answered
from tests.server.workflows.outside import until
from tests.unit.identity.conftest import Installation, there
from waystation.apps.registry import Registry, discover
from waystation.artifacts import ObjectStoreArtifactService
from waystation.core.errors import NotAllowed
from waystation.testing import AgentEnvironment, People
from waystation.tools.services import Services

__all__ = ["there"]

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


async def claim(env: AgentEnvironment, token: Any, name: str, amount: int) -> Any:
    """Send a claim with a receipt in Ann's name."""
    session = env.client.session(agent="expense_desk", session_id=name, user_id="ann", app=env.client.task_queue)
    assert env.services.artifacts is not None
    await session.save_artifact("r.pdf", b"%PDF", mime_type="application/pdf", artifacts=env.services.artifacts)
    return await session.send(f"{amount} euros for a chair, receipt r.pdf", token=token)


def paid(url: str) -> Sequence[Any]:
    """Return what was paid."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT payee, amount::int FROM payments ORDER BY number").fetchall()


async def test_large_expenses_need_two_other_people(
    serve: Serve, desks: Registry, waystation_people: People, ledger: str
) -> None:
    """A small claim is paid at once. Its sender cannot approve a large one, and two managers can."""
    desk = desks.roots["expense_desk"]
    ann, ben, cleo = (waystation_people(name, roles=["manager"]) for name in ("ann", "ben", "cleo"))
    async with serve(desk.agent, model=desk.demo_model, identity=waystation_people.identity) as env:
        await (await claim(env, ann.token, "small", 20)).result()
        large = await claim(env, ann.token, "large", 1200)
        with pytest.raises(NotAllowed, match="requested"):
            await ann.approve(large, "fc-1", comment="mine")
        await ben.approve(large, "fc-1", comment="needed")
        assert paid(ledger) == [("ann", 20)]
        await cleo.approve(large, "fc-1", comment="needed")
        await large.result()
    assert paid(ledger) == [("ann", 20), ("ann", 1200)]


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
        invocation = await env.client.start("research_desk", "What about chairs?")
        await invocation.result()
        responses = answered([event async for event in invocation.events()])
        history = await invocation.history()
    assert "300 euros" in str(responses[0])
    assert responses[1] == {"name": "Sitwell & Sons"}
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
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


async def test_the_front_end_works_with_encryption(
    serve: Serve, desks: Registry, there: Installation, settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim with a receipt is sent twice, approved by two managers with their tokens, streamed, and paid once.

    The payloads are in S3 and the user's keys in PostgreSQL, and the history has no readable content.
    """
    desk, store = desks.roots["expense_desk"], settings["WAYSTATION_STORE"]
    services = Services(artifacts=ObjectStoreArtifactService(settings["BACKOFFICE_ARTIFACTS"]))
    options = {"identity": there.worker, "services": services, "store": store, "task_queue": "waystation"}
    async with serve(desk.agent, model=desk.demo_model, **options) as env:
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
            own = await send("POST", f"/calls/{call['id']}", "ann", json=decision)
            assert (call["title"], own["error"]) == ("Reimburse 1,200.00 € for a chair", "NotAllowed")
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


def test_the_settings_are_those_of_the_tests(settings: Mapping[str, str]) -> None:
    """The file of the example has each setting."""
    named = re.findall(r"^(\w+)=", (FOLDER / "backoffice.env").read_text(), re.MULTILINE)
    assert set(named) == settings.keys() | {"TEMPORAL_ADDRESS", "WAYSTATION_KEYS"}


def test_the_application_is_short_and_uses_only_documented_packages() -> None:
    """It has at most 450 lines, and imports nothing private."""
    files = [path for path in FOLDER.rglob("*") if path.suffix in {".py", ".ts", ".sql", ".sh", ".env", ".yaml"}]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 450
    trees = [syntax_tree(path) for path in files if path.suffix == ".py"]
    imported = {node.module for tree in trees for node in tree.body if hasattr(node, "module") and node.module}
    ours = {name for name in imported if name.startswith("waystation")}
    assert {name for name in ours if not name.startswith("waystation.tools.")} <= DOCUMENTED
