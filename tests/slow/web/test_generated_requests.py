"""Requests that schemathesis generates from the OpenAPI document, with valid and invalid values."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.sites import TOKEN, site
from waystation.core.payload import JsonObject
from waystation.storage import QuotaStore

PROGRAM = Path(sys.executable).with_name("schemathesis")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
OPTIONS = (
    "--phases",
    "fuzzing",
    "--max-time",
    "120",
    "--max-examples",
    "6",
    "--no-shrink",
    "--seed",
    "1",
    "--no-color",
)
API = "/api/v1"


def configure(file: Path, ids: Mapping[str, list[str]]) -> None:
    """Write a configuration in which most requests have the ID of an object that exists, by the tags of operations.

    Of a stream, only the first event is read.
    """
    lines = ["max-stream-events = 1", "request-timeout = 20"]
    for name, values in ids.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}"]
    for name in ids:
        binding = f'{{ dictionary = "{name}", probability = 0.8 }}'
        lines += ["[[operations]]", f'include-tag = "{name}"', f'parameters = {{ "path.id" = {binding} }}']
    file.write_text("\n".join(lines))


async def create_objects(program: httpx.AsyncClient, call: str, invocation: str) -> dict[str, list[str]]:
    """Create sessions and schedules, and return the IDs of objects by tag."""

    async def create(kind: str, body: JsonObject) -> JsonObject:
        response = await program.post(f"{API}/{kind}", json={"agent": "payer", **body})
        assert response.status_code == 201, response.text
        created: JsonObject = response.json()
        return created

    sessions = [(await create("sessions", {}))["id"] for _ in range(3)]
    schedules = [(await create("schedules", {"message": "Pay.", "cron": "0 0 1 1 *"}))["schedule_id"] for _ in range(3)]
    return {"calls": [call], "invocations": [invocation], "sessions": sessions, "schedules": schedules}


def find_successful(har: Path) -> set[str]:
    """Return the operations on an ID that have succeeded at least once, without the ID."""
    found = set()
    for entry in json.loads(har.read_text())["log"]["entries"]:
        tag, *rest = urlsplit(entry["request"]["url"]).path.removeprefix(f"{API}/").split("/")
        if rest and entry["response"]["status"] < 300:
            found.add(f"{entry['request']['method']} {'/'.join([tag, *rest[1:]])}")
    return found


@pytest.mark.timeout(600)
async def test_each_response_to_generated_requests_is_as_documented(serve: Serve, tmp_path: Path) -> None:
    """No request of an operator makes the server fail, or send what the document does not describe."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, usage=QuotaStore(tmp_path / "quotas.db")) as web,
        web.program() as program,
    ):
        invocation, call = await begun(env.client, "payer")
        configure(tmp_path / "schemathesis.toml", await create_objects(program, call, invocation.id))
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "run", f"{web.url}{API}/openapi.json", "--header", f"Authorization: Bearer {TOKEN}"),
            *("--checks", CHECKS, "--report-har-path", "report.har", *OPTIONS),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    successful = find_successful(tmp_path / "report.har")
    assert {f"GET {tag}" for tag in ("calls", "invocations", "sessions", "schedules")} <= successful
    assert "GET invocations/events/stream" in successful
    assert len(successful) > 15
