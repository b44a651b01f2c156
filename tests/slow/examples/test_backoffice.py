"""The company application as a whole, with encryption: workers, front end, PostgreSQL, S3 and a rolling deploy."""

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest

from tests.fakes.openid import FakeOpenId
from tests.paths import EXAMPLES
from tests.server.cli.shell import Shell
from tests.server.processes.workers import Process, until
from tests.unit.identity.conftest import installed
from waystation.embedded import EmbeddedServer

pytestmark = pytest.mark.timeout(900)
CREDENTIAL_KEY = base64.b64encode(secrets.token_bytes(32)).decode()
SETTINGS = re.findall(r"^(\w+)=", (EXAMPLES / "backoffice" / "backoffice.env").read_text(), re.MULTILINE)


class Company:
    """The installed application, and requests to its front end."""

    def __init__(self, shell: Shell, provider: FakeOpenId, url: str) -> None:
        self.shell, self.folder, self._provider, self._url = shell, shell.folder / "backoffice", provider, url

    def request(self, method: str, path: str, name: str, *roles: str, **content: Any) -> Any:
        """Send a request in a person's name, and return the JSON of the response."""
        headers = {"Authorization": f"Bearer {self._provider.token(name, roles=roles)}"}
        response = httpx.request(method, f"{self._url}{path}", headers=headers, timeout=60, **content)
        return response.json() | {"status": response.status_code} if response.is_error else response.json()

    def read_events(self, conversation: str, name: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a conversation as they arrive."""
        headers = {"Authorization": f"Bearer {self._provider.token(name)}"}
        with httpx.stream("GET", f"{self._url}/conversations/{conversation}/events", headers=headers) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    async def roll_out(self, build: str) -> None:
        """Run the script of the example, whose workers keep its output open."""
        code, out = await self.shell.run(f"backoffice/roll-out.sh {build} > {build}.log 2>&1 || cat {build}.log")
        assert (code, out) == (0, "")

    def stop_workers(self) -> None:
        """Kill the workers that the script started last."""
        for pid in map(int, (self.folder / "workers.pid").read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def serving(app: str, folder: Path) -> AsyncIterator[str]:
    """Run a FastAPI application of the example, and yield its URL."""
    command = (sys.executable, "-m", "uvicorn", app, "--port", "0", "--app-dir", str(folder))
    async with Process(*command, environment=dict(os.environ)) as process:
        found = await until(lambda: re.findall(r"running on (\S+)", "\n".join(process.other)), "its address")
        yield found[0]


@pytest.fixture
async def company(
    tmp_path: Path, s3: str, postgres: str, openid: FakeOpenId, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Company]:
    """Install the application with all of its settings, and start its first build."""
    folder = tmp_path / "backoffice"
    shutil.copytree(EXAMPLES / "backoffice", folder)
    installed(folder / "identity", openid)
    with psycopg.connect(postgres) as connection:
        connection.execute((folder / "schema.sql").read_bytes())
    async with EmbeddedServer() as server, serving("suppliers:app", folder / "services") as suppliers:
        shell = Shell.at(tmp_path, server.address)
        settings = {
            "TEMPORAL_ADDRESS": server.address,
            "WAYSTATION_STORE": f"{s3}/payloads",
            "WAYSTATION_ENCRYPTION_KEYS": str(tmp_path / "encryption.json"),
            "WAYSTATION_USER_KEYS": postgres,
            "WAYSTATION_KEYS": str(tmp_path / "workers.json"),
            "WAYSTATION_IDENTITY": str(folder / "identity" / "workers.toml"),
            "WAYSTATION_CLIENT_IDENTITY": str(folder / "identity" / "clients.toml"),
            "BACKOFFICE_ARTIFACTS": f"{s3}/artifacts",
            "BACKOFFICE_DATABASE": postgres,
            "BACKOFFICE_ISSUER": openid.url,
            "BACKOFFICE_AUDIENCE": openid.audience,
        }
        assert list(settings) == SETTINGS
        more = {"SUPPLIERS_URL": suppliers, "MODEL": "demo", "WAYSTATION_CREDENTIAL_KEY": CREDENTIAL_KEY}
        for name, value in {**settings, **more}.items():
            monkeypatch.setenv(name, value)
        code, out = await shell.run(
            "waystation encryption keys encryption.json && waystation identity keys workers.json && waystation setup"
        )
        assert code == 0, out
        async with serving("front_end:app", folder) as url:
            company = Company(shell, openid, url)
            try:
                await company.roll_out("1")
                yield company
            finally:
                company.stop_workers()


async def test_the_company_works(company: Company, postgres: str) -> None:
    """A claim with a receipt is approved by two managers across a deploy, and paid once."""
    receipt = {"receipt": ("chair.pdf", b"%PDF secret", "application/pdf")}
    claim = {"data": {"text": "Please reimburse 1200 euros for a chair"}, "files": receipt}
    sent = company.request("POST", "/expenses/chair-1", "ann", **claim)
    assert company.request("POST", "/expenses/chair-1", "ann", **claim) == sent
    [call] = await until(lambda: company.request("GET", "/calls", "ann"), "a call that waits")
    assert call["title"] == "Reimburse 1,200.00 € for a chair"
    decision = {"action": "approve", "digest": call["digest"], "comment": "needed"}

    def decide(name: str) -> Any:
        return company.request("POST", f"/calls/{call['id']}", name, "manager", json=decision)

    assert decide("ann")["error"] == "NotAllowed"
    decide("ben")
    await company.roll_out("2")
    decide("cleo")
    text = next(e for e in company.read_events("chair-1", "ann") if "payment" in str(e) and not e.get("partial"))
    with psycopg.connect(postgres) as connection:
        rows = connection.execute("SELECT payee, amount::int, purpose FROM payments").fetchall()
    assert rows == [("ann", 1200, "a chair")], text
