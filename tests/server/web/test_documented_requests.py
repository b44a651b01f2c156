"""The requests of the page on the JSON API, with curl."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

from tests.agents import Till
from tests.documents import blocks, how_to, section
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN, site

PAGE = how_to("call-agents-over-http")
[START] = blocks(section(PAGE, "## Start an agent and wait for its result"), "sh")
[ANSWER] = blocks(section(PAGE, "## Answer a call"), "sh")


async def run(lines: list[str], folder: Path, url: str, **values: str) -> str:
    """Run lines of the page in a shell, with values for its placeholders."""
    script = "\n".join(lines).replace("http://127.0.0.1:8288", url)
    for name, value in values.items():
        script = script.replace(name, value)
    pipe, environment = subprocess.PIPE, os.environ | {"WAYSTATION_WEB_TOKEN": TOKEN}
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, cwd=folder, env=environment, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_curl_starts_an_agent_and_answers_its_call(serve: Serve, tmp_path: Path) -> None:
    """Each request works as the page shows it."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        *start, wait = START.splitlines()
        id = json.loads(await run(start, tmp_path, web.url))["invocation_id"]
        settings = start[:3]
        waiting = json.loads(await run([*settings, wait], tmp_path, web.url, ID=id))
        assert waiting["status"] == "waiting"
        mine, read, *answer = ANSWER.splitlines()
        assert id in await run([*settings, mine], tmp_path, web.url)
        digest = json.loads(await run([*settings, read], tmp_path, web.url, ID=id))["digest"]
        answered = await run([*settings, *answer], tmp_path, web.url, ID=id, DIGEST=digest)
        assert json.loads(answered)["decided"] is True
        await env.client.invocation(id).result()
    assert till.paid == [5]
