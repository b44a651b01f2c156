"""Requests that schemathesis generates from the OpenAPI document, with valid and invalid values."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.sites import TOKEN, site
from waystation.storage import QuotaStore

PROGRAM = Path(sys.executable).with_name("schemathesis")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
STREAMS = "/events(/stream)?$"
"""Streams do not end by themselves. Reading events in pages is tested with them, too."""
OPTIONS = ("--phases", "fuzzing", "--max-time", "45", "--max-examples", "4", "--no-shrink", "--seed", "1", "--no-color")


@pytest.mark.timeout(600)
async def test_each_response_to_generated_requests_is_as_documented(serve: Serve, tmp_path: Path) -> None:
    """No request of an operator makes the server fail, or send what the document does not describe."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, usage=QuotaStore(tmp_path / "quotas.db")) as web,
    ):
        await begun(env.client, "payer")
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "run", f"{web.url}/api/v1/openapi.json", "--header", f"Authorization: Bearer {TOKEN}"),
            *("--checks", CHECKS, "--exclude-path-regex", STREAMS, *OPTIONS),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert "Tested: " in out.decode()
