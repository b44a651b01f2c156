"""The MCP interface as programs: a web server that is killed, standard input and output, and a client in TypeScript."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult

from tests.agents import Till
from tests.documents import blocks
from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.server.interfaces.mcp_clients import Person, accepts, ask, connected, settle, start_task, text_of
from tests.server.interfaces.test_mcp_server import FINANCE, site_of
from tests.server.processes.workers import Process, until
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN
from waystation.testing import AgentEnvironment

NODE = Path(sys.executable).with_name("node")
PROGRAM = """
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const requestInit = { headers: { Authorization: `Bearer ${process.env.TOKEN}` } };
const client = new Client({ name: 'test', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(process.env.URL), { requestInit }));
const { tools } = await client.listTools();
const call = async (name, args) => (await client.callTool({ name, arguments: args }));
const { structuredContent: waiting } = await call('payer', { message: 'Pay.' });
const [{ id, digest }] = waiting.calls;
await call('agent_answer', { call_id: id, action: 'edit', args: { amount: 4 }, digest });
const ended = await call('agent_get', { invocation_id: waiting.invocation_id, wait_s: 50 });
const refused = await call('agent_get', { invocation_id: 'no/such' });
console.log(JSON.stringify({
  has: tools.some(({ name }) => name === 'payer'), text: ended.content[0].text, isError: refused.isError,
}));
await client.close();
"""


def command_of(env: AgentEnvironment, *options: str) -> list[str]:
    """Return the command that starts a program at the server of an environment."""
    places = ["--address", env.server.address, "--task-queue", env.client.task_queue, "--store", str(env.store)]
    return [sys.executable, "-m", "waystation.cli", *places, *options]


async def find_address(web: Process) -> str:
    """Return the address of a web server."""

    def serving() -> re.Match[str] | None:
        return re.search(r"Serving at (\S+);", " ".join(web.other))

    found = await until(serving, "the address")
    assert found
    return str(found[1])


@pytest.mark.slow
async def test_a_task_outlives_the_web_server(serve: Serve) -> None:
    """The server is killed after it has created the task, and again after an answer."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env:
        command = command_of(env, "web", "--port", "0", "--interface", "mcp")
        id, task = "", dict[str, Any]()
        for step in ("start", "answer", "read"):
            async with (
                Process(*command, environment={"WAYSTATION_WEB_TOKEN": TOKEN}) as web,
                connected(await find_address(web), person=Person(), tasks=True) as client,
            ):
                if step == "start":
                    id = (await start_task(client, "payer", message="Pay."))["taskId"]
                    continue
                task = await settle(client, id)
                if step == "answer":
                    [key] = task["inputRequests"]
                    await ask(client, "tasks/update", id, input_responses={key: accepts(confirm=True).model_dump()})
        assert (task["status"], task["result"]["content"][0]["text"], till.paid) == ("completed", "Done.", [5])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_over_standard_input_the_local_user_answers_in_a_form(serve: Serve, mode: Any) -> None:
    """The client shows forms while it waits for the tool. The call whose form was closed still waits."""
    till, person = Till(), Person(ElicitResult(action="cancel"), accepts(confirm=True))
    async with serve(payer(till, {"amount": 5}, {"amount": 6})) as env:
        command, *args = command_of(env, "mcp", "--url", "https://inbox.example")
        server = StdioServerParameters(command=command, args=args, env={**os.environ}, cwd=ROOT)
        async with Client(server, elicitation_callback=person, mode=mode) as client:
            state = (await client.call_tool("payer", {"message": "Pay."})).structured_content
            [call] = state["calls"]
            assert (call["args"], call["link"][:24]) == ({"amount": 5}, "https://inbox.example/ap")
            answer = {"call_id": call["id"], "action": "approve", "digest": call["digest"]}
            await client.call_tool("agent_answer", answer)
            ended = await client.call_tool("agent_get", {"invocation_id": state["invocation_id"], "wait_s": 50})
        assert (text_of(ended), sorted(till.paid)) == ("Done.", [5, 6])


@pytest.mark.slow
async def test_over_standard_input_nobody_is_verified(serve: Serve) -> None:
    """A call that requires a verified identity has no form, and an answer is refused."""
    till, person = Till(), Person()
    async with serve(payer(till, {"amount": 5}, approval=FINANCE), verify=False) as env:
        command, *args = command_of(env, "mcp")
        server = StdioServerParameters(command=command, args=args, env={**os.environ}, cwd=ROOT)
        async with Client(server, elicitation_callback=person) as client:
            state = (await client.call_tool("payer", {"message": "Pay."})).structured_content
            [call] = state["calls"]
            answer = {"call_id": call["id"], "action": "approve", "digest": call["digest"]}
            refused = await client.call_tool("agent_answer", answer)
            await client.call_tool("agent_cancel", {"invocation_id": state["invocation_id"]})
    assert (call["allowed"], call.get("link"), person.asked, refused.is_error) == ([], None, [], True)
    assert "verified identity" in text_of(refused)


async def test_the_documented_program_calls_an_agent(serve: Serve) -> None:
    """It prints what waits, and how to read the result later."""
    [program] = blocks((ROOT / "docs" / "how-to" / "serve-agents-over-mcp.md").read_text(), "python")
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site_of(env.client) as web:
        source = program.replace("http://127.0.0.1:8288", web.url)
        environment = os.environ | {"WAYSTATION_WEB_TOKEN": TOKEN}
        out = await asyncio.to_thread(
            subprocess.check_output, [sys.executable, "-c", source], env=environment, text=True
        )
    assert "The call pay waits for your answer" in out


async def test_the_client_of_the_typescript_sdk_approves_with_other_arguments(serve: Serve) -> None:
    """It speaks an older revision, which begins with a handshake."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site_of(env.client) as web:
        environment = os.environ | {"URL": f"{web.url}/mcp", "TOKEN": TOKEN}
        process = await asyncio.create_subprocess_exec(
            NODE,
            "--input-type=module",
            "-e",
            PROGRAM,
            cwd=ROOT / ".node",
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert json.loads(out) == {"has": True, "text": "Done.", "isError": True}
    assert till.paid == [4]
