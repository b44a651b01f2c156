"""The official client of A2A for JavaScript drives the server, over both of its transports."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.agents import Till
from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.server.interfaces.test_a2a_server import a2a
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN, site

NODE = Path(sys.executable).with_name("node")
PROGRAM = """
import { randomUUID } from 'node:crypto';
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { Message, SendMessageRequest } from '@a2a-js/sdk';

const { URL: url, TOKEN: token, TRANSPORT: name, CONTEXT: contextId } = process.env;
const fetchImpl = (input, init) => {
  const headers = new Headers(init?.headers);
  headers.set('Authorization', `Bearer ${token}`);
  return fetch(input, { ...init, headers });
};
const Transport = name === 'rest' ? RestTransportFactory : JsonRpcTransportFactory;
const factory = new ClientFactory({ transports: [new Transport({ fetchImpl })] });
const client = await factory.createFromUrl(`${url}/a2a/payer/`);
const send = (part, taskId) => SendMessageRequest.fromJSON({
  message: { messageId: randomUUID(), role: 'ROLE_USER', parts: [part], contextId, ...(taskId && { taskId }) },
});
const states = [];
let id;
for await (const event of client.sendMessageStream(send({ text: 'Pay.' }))) {
  const { $case, value } = event.payload;
  id ??= value.id ?? value.taskId;
  if (value.status) states.push(value.status.state);
}
const task = await client.getTask({ tenant: '', id });
const [call] = task.status.message.metadata.waystation.calls;
const done = await client.sendMessage(send({ data: { action: 'approve', digest: call.digest } }, id));
const [asked, ended] = [task, done.payload?.value ?? done].map((each) => each.status.state);
console.log(JSON.stringify({ asked, ended, tool: call.tool, streamed: states.length > 0 }));
"""


@pytest.mark.parametrize("transport", ["jsonrpc", "rest"])
async def test_the_client_for_javascript_streams_and_approves(serve: Serve, tmp_path: Path, transport: str) -> None:
    """It streams until the question, reads the task, and approves the call."""
    till = Till()
    (tmp_path / "node_modules").symlink_to(ROOT / ".node" / "node_modules")
    program = tmp_path / "program.mjs"
    program.write_text(PROGRAM)
    async with serve(payer(till, {"amount": 5})) as env, site(env.client, **a2a()) as web:
        context = f"a2a-{env.client.task_queue}"
        environment = {"URL": web.url, "TOKEN": TOKEN, "TRANSPORT": transport, "CONTEXT": context}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            NODE, program, env=os.environ | environment, stdout=pipe, stderr=pipe
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
    result = json.loads(out)
    assert (result["tool"], result["streamed"], till.paid) == ("pay", True, [5])
    assert (result["asked"], result["ended"]) == (6, 3)  # TASK_STATE_INPUT_REQUIRED, TASK_STATE_COMPLETED
