"""The official client of AG-UI in Node, whose `verifyEvents` refuses wrong sequences, against the real server."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from examples.payments.agent import demo_model, root_agent
from tests.agents import Till
from tests.documents import blocks, how_to
from tests.paths import ROOT
from tests.server.conftest import Serve
from tests.server.interfaces.test_ag_ui import AG_UI, chooser
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN, site

NODE = Path(sys.executable).with_name("node")
PRELUDE = """
import { HttpAgent, buildResumeArray } from '@ag-ui/client';
import { isDeepStrictEqual } from 'node:util';
const [url, threadId] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const open = (agent) => new HttpAgent({ url: `${url}/agui/${agent}`, threadId, headers });
const shown = [];
const show = (agent) => agent.subscribe({ onEvent: ({ event }) => { shown.push(event); } });
const last = () => shown.at(-1);
"""
PAY = """
const agent = open('payer');
show(agent);
agent.addMessage({ id: 'm1', role: 'user', content: 'Pay.' });
await agent.runAgent();
const [first, second] = agent.pendingInterrupts;
const uncovered = await agent.runAgent({ resume: [] }).catch((error) => error.message);
await agent.runAgent({ resume: buildResumeArray([first, second], {
  [first.id]: { status: 'resolved', payload: { approved: true, editedArgs: { amount: 7 } }, metadata: first.metadata },
  [second.id]: { status: 'resolved', payload: { approved: false, comment: 'Twice.' } },
}) });
const again = open('payer');  // as after a reload
await again.runAgent();
const same = isDeepStrictEqual(again.messages, agent.messages);
if (!same) console.error(JSON.stringify(again.messages), '\\n', JSON.stringify(agent.messages));
console.log(JSON.stringify({ uncovered, same, open: agent.pendingInterrupts.length,
  roles: agent.messages.map((each) => each.role), text: agent.messages.at(-1).content,
  starts: shown.filter((each) => each.type === 'TOOL_CALL_START').map((each) => each.toolCallId),
  results: shown.filter((each) => each.type === 'TOOL_CALL_RESULT').map((each) => each.toolCallId),
  schema: Object.keys(first.responseSchema.properties) }));
"""
CHOOSE = """
const agent = open('chooser');
show(agent);
agent.addMessage({ id: 'm1', role: 'user', content: 'Which color?' });
const tools = [{ name: 'pick_color', description: 'Ask for a color.', parameters: { type: 'object' } }];
await agent.runAgent({ tools });
const [id] = last().outcome.pendingToolCallIds;
const call = agent.messages.at(-1).toolCalls[0];
agent.addMessage({ id: 'own', role: 'tool', toolCallId: id, content: '{"color": "red"}' });
await agent.runAgent({ tools });
console.log(JSON.stringify({ own: call.id === id, name: call.function.name, text: agent.messages.at(-1).content,
  results: agent.messages.filter((each) => each.role === 'tool').map((each) => each.content),
  outcome: last().outcome }));
"""


async def run(folder: Path, program: str, url: str, *, token: str = TOKEN, thread: str = "") -> dict[str, Any]:
    """Run a program beside the packages, and return the JSON that it prints. By default, the thread is a new one."""
    (folder / "node_modules").symlink_to(ROOT / ".node" / "node_modules")
    file = folder / "program.mjs"
    file.write_text(program)
    pipe, environment = asyncio.subprocess.PIPE, os.environ | {"TOKEN": token}
    thread = thread or f"agui-{uuid4().hex}"
    process = await asyncio.create_subprocess_exec(NODE, file, url, thread, env=environment, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    result: dict[str, Any] = json.loads(out)
    return result


async def test_the_client_edits_and_denies_calls_and_reads_the_thread_again(serve: Serve, tmp_path: Path) -> None:
    """Each call starts once and gets one result, and a client without memory finds the same messages."""
    till = Till()
    async with serve(payer(till, {"amount": 5}, {"amount": 6})) as env, site(env.client, interfaces=AG_UI) as web:
        result = await run(tmp_path, PRELUDE + PAY, web.url)
    assert till.paid == [7]
    assert result.pop("uncovered").startswith("Thread has 2 pending interrupt(s)")
    assert sorted(result.pop("starts")) == sorted(result.pop("results"))
    assert result == {
        "same": True,
        "open": 0,
        "roles": ["user", "assistant", "tool", "tool", "assistant"],
        "text": "Done.",
        "schema": ["comment", "approved", "editedArgs"],
    }


async def test_the_client_runs_a_tool_that_the_agent_declares(serve: Serve, tmp_path: Path) -> None:
    """The run leaves the call to the client, and its result reaches the model in the next run."""
    async with serve(chooser()) as env, site(env.client, interfaces=AG_UI) as web:
        result = await run(tmp_path, PRELUDE + CHOOSE, web.url)
    assert result == {
        "own": True,
        "name": "pick_color",
        "text": "You chose it.",
        "results": ['{"color": "red"}'],
        "outcome": {"type": "success"},
    }


async def test_the_documented_client_approves(serve: Serve, tmp_path: Path) -> None:
    """The program of the page pays with the example and its demo model."""
    [program] = blocks(how_to("use-ag-ui"), "js")
    program = program.replace("'order-42'", "process.argv[3]").replace("http://127.0.0.1:8288", "${process.argv[2]}")
    program = program.replace("'${process.argv[2]}/agui/payments_agent'", "`${process.argv[2]}/agui/payments_agent`")
    program = f"const token = process.env.TOKEN;{program}console.log(JSON.stringify(agent.messages.at(-1)));"
    async with serve(root_agent, model=demo_model) as env, site(env.client, interfaces=AG_UI) as web:
        message = await run(tmp_path, program, web.url)
    assert "500" in message["content"]
    assert "Rose" in message["content"]
