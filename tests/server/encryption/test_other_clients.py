"""Programs with other Temporal SDKs, and with the plain one for Python, work beside encrypting workers."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

import waystation
from tests.documents import blocks, section
from tests.paths import ROOT
from tests.programs import command
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.steps import wait_until
from waystation import ActivityTool, Agent, WorkflowTool
from waystation.embedded import EmbeddedServer
from waystation.history import PendingRetry, fetch_retries
from waystation.presentation import words
from waystation.storage import ENCRYPTION_VARIABLE
from waystation.testing import AgentEnvironment, ScriptedModel, calls, responses, says

PAGE = (ROOT / "docs" / "reference" / "encryption-format.md").read_text()
VECTORS = json.loads(blocks(section(PAGE, "## Test vectors"), "json")[0])
NODE = Path(sys.executable).with_name("node")
ORDER = {"type": "object", "properties": {"order": {"type": "string"}}}

READ_VECTORS = """
const { keys, vectors } = JSON.parse(process.env.VECTORS);
const codec = await EncryptionCodec.fromSource(async () => JSON.stringify({ keys }));
for (const { name, key, payload, data } of vectors) {
  const metadata = { encoding: Buffer.from('binary/encrypted'), 'encryption-key-id': Buffer.from(key) };
  const [decrypted] = await codec.decode([{ metadata, data: Buffer.from(data, 'base64') }]);
  const found = [decrypted.metadata.encoding, decrypted.data ?? ''].map((part) => Buffer.from(part).toString('base64'));
  console.log(name, found[0] === payload.metadata.encoding && found[1] === (payload.data ?? ''));
}
"""
START_AND_APPROVE = """
import { Client, Connection } from '@temporalio/client';
const codec = await EncryptionCodec.fromFile(process.env.WAYSTATION_ENCRYPTION_KEYS);
const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS });
const client = new Client({ connection, dataConverter: { payloadCodecs: [codec] } });
const start = { agent: 'payer', message: 'Pay 5 to Grüße.' };
const handle = await client.workflow.start('AgentInvocation', { args: [start], taskQueue: 'other', workflowId: 'ts' });
console.log('started');
let waiting = [];
while (waiting.length === 0) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  waiting = (await handle.describe()).memo?.waystation_pending ?? [];
}
const [{ function_call_id, args }] = waiting;
const answer = { function_call_id, action: 'approve', by: 'dana' };
const receipt = await handle.executeUpdate('submit_answer', { args: [answer] });
console.log(JSON.stringify([args, receipt.accepted, (await handle.result()).text]));
await connection.close();
"""


def typescript(folder: Path, program: str) -> Path:
    """Write a program that uses the codec of `clients/typescript`, and return its file."""
    (folder / "node_modules").symlink_to(ROOT / ".node" / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    # Node reads no TypeScript below `node_modules`, where an installed package has its compiled form.
    for file in (ROOT / "clients" / "typescript" / "src").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    file = folder / "program.ts"
    file.write_text(f"import {{ EncryptionCodec }} from './index.ts';\n{program}")
    return file


async def run_node(file: Path, **environment: str) -> asyncio.subprocess.Process:
    """Start a TypeScript program."""
    return await asyncio.create_subprocess_exec(
        NODE, file, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def test_typescript_decrypts_the_test_vectors(tmp_path: Path) -> None:
    """TypeScript decrypts each test vector, also under a key that is not the first."""
    file = typescript(tmp_path, READ_VECTORS)
    out, err = await (await run_node(file, VECTORS=json.dumps(VECTORS))).communicate()
    assert out.decode().splitlines() == [f"{vector['name']} true" for vector in VECTORS["vectors"]], err.decode()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("{}", "not a JSON Web Key Set"),
        ('{"keys": []}', "has no keys"),
        ('{"keys": [{"kty": "oct", "kid": "a", "k": "c2hvcnQ"}]}', "at least 32 bytes"),
        ('{"keys": [{"kty": "oct", "kid": "a", "kms": "x", "wrapped": "secret"}]}', "wrapped by a KMS"),
        ("secret", "not a JSON Web Key Set"),
    ],
)
async def test_typescript_names_the_problem_of_keys_and_quotes_no_secret(
    tmp_path: Path, keys: str, problem: str
) -> None:
    """TypeScript's error names the remedy."""
    file = typescript(tmp_path, "await EncryptionCodec.fromSource(async () => process.env.KEYS);")
    _, err = await (await run_node(file, KEYS=keys)).communicate()
    assert problem in err.decode()
    assert "secret" not in err.decode().replace("SecretKey", "")


async def test_typescript_starts_and_approves_while_the_key_is_rotated(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads what the program encrypted with the old key, and the program reads what the worker encrypts with
    the new key, which it finds in its key file.
    """
    keys = tmp_path / "keys.json"
    write_keys(keys, "first")
    program = await run_node(
        typescript(tmp_path, START_AND_APPROVE),
        TEMPORAL_ADDRESS=server.address,
        WAYSTATION_ENCRYPTION_KEYS=str(keys),
    )
    assert program.stdout is not None
    assert await program.stdout.readline() == b"started\n"
    write_keys(keys, "second", "first")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(keys))
    async with AgentEnvironment(payer(), server=server, store=tmp_path / "store", task_queue="other") as env:
        out, err = await program.communicate()
        assert program.returncode == 0, err.decode()
        saved = await env.client.invocation("ts").saved()
    assert json.loads(out) == [{"amount": 5}, True, "Paid."]
    started = saved.histories[0].events[0].workflow_execution_started_event_attributes
    assert dict(started.input.payloads[0].metadata)["encryption-key-id"] == b"first"
    receipts = [
        e for e in saved.histories[0].events if e.HasField("workflow_execution_update_completed_event_attributes")
    ]
    (receipt,) = receipts[0].workflow_execution_update_completed_event_attributes.outcome.success.payloads
    assert dict(receipt.metadata)["encryption-key-id"] == b"second"


def pay(amount: int) -> dict[str, int]:
    """Pay an amount."""
    return {"paid": amount}


def payer() -> Agent:
    """Return an agent that pays after an approval."""
    tool = waystation.FunctionTool(pay, require_confirmation=True)
    return Agent(name="payer", model=ScriptedModel(calls(("pay", {"amount": 5})), says("Paid.")), tools=[tool])


@activity.defn(name="ship")
async def ship_order(order: dict[str, Any]) -> dict[str, Any]:
    """Ship an order."""
    return {"shipped": order["order"]}


async def test_a_plain_client_and_worker_in_python_use_the_same_keys(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool's activity runs on a worker of Temporal's SDK with `waystation.data_converter()`."""
    write_keys(tmp_path / "keys.json", "first")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(tmp_path / "keys.json"))
    model = ScriptedModel(calls(("ship", {"order": "A1"})), says("Shipped."))
    agent = Agent(name="seller", model=model, tools=[ActivityTool("ship", schema=ORDER, task_queue="plain")])
    converter = waystation.data_converter(store=tmp_path / "store")
    plain = await Client.connect(server.address, data_converter=converter)
    async with (
        AgentEnvironment(agent, server=server, store=tmp_path / "store") as env,
        Worker(plain, task_queue="plain", activities=[ship_order]),
    ):
        start = {"agent": "seller", "message": "go"}
        queue = env.client.task_queue
        result = await plain.execute_workflow("AgentInvocation", start, id="plain", task_queue=queue)
    assert result["text"] == "Shipped."
    assert responses(model.requests[-1]) == [("ship", {"shipped": "A1"})]


@workflow.defn(name="Pack", sandboxed=False)
class Pack:
    """Packs an order."""

    @workflow.run
    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Pack the order."""
        return order


@asynccontextmanager
async def running_plainly(
    server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch, model: ScriptedModel, queue: str, **ship: Any
) -> AsyncIterator[AgentEnvironment]:
    """Run an encrypting agent, and a worker of Temporal's SDK without a codec that has its tools `ship` and `pack`."""
    write_keys(folder / "keys.json", "first")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(folder / "keys.json"))
    tools = [
        ActivityTool("ship", schema=ORDER, task_queue=queue, **ship),
        WorkflowTool("Pack", name="pack", schema=ORDER, task_queue=queue),
    ]
    async with (
        AgentEnvironment(
            Agent(name="seller", model=model, tools=tools),
            server=server,
            store=folder / "store",
            task_queue=f"{queue}-e",
        ) as env,
        Worker(await Client.connect(server.address), task_queue=queue, activities=[ship_order], workflows=[Pack]),
    ):
        yield env


async def test_calls_of_a_worker_that_cannot_decrypt_are_reported_while_they_are_retried(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of the invocation and `waystation doctor` name the activity or workflow, the queue and the remedy."""
    queue = f"plain-{uuid.uuid4()}"
    model = ScriptedModel(calls(("ship", {"order": "A1"}), ("pack", {"order": "A1"})))
    async with running_plainly(server, tmp_path, monkeypatch, model, queue, effect="repeatable", retries=9) as env:
        invocation = await env.client.start("seller", "go")

        async def look() -> list[PendingRetry] | None:
            retries, _ = await fetch_retries(env.client.temporal, invocation.id)
            return retries if sum(retry.is_undecrypted for retry in retries) == 2 else None

        retries = await wait_until(look, "both failures")
        assert retries is not None
        shown = sorted(words.describe_retry(retry, None, 0.0) for retry in retries)
        place = ("--address", server.address, "--task-queue", env.client.task_queue)
        checked = await command(*place, "doctor", "--json", "--store", str(env.store))
        for id in (invocation.id, retries[0].workflow_id, retries[1].workflow_id):
            with suppress(RPCError):  # the activity's workflow is the invocation, and closes its workflow
                await env.client.temporal.get_workflow_handle(id).terminate()
    assert [line.partition(" of ")[0].partition(" [")[0] for line in shown] == [
        "The activity ship",
        "The workflow Pack",
    ]
    remedy = f"The worker of task queue {queue} cannot decrypt its input; give it `waystation.data_converter()`"
    assert all(remedy in line for line in shown)
    found = [record for record in checked.records if record["check"] == "decryption" and queue in record["text"]]
    about = f"the worker of task queue {queue} cannot decrypt the input of"
    texts = [f"{about} {kind}, for which {invocation.id} waits" for kind in ("Pack", "ship")]
    assert sorted(record["text"] for record in found) == texts
    assert all("waystation.data_converter()" in record["fix"] for record in found)


async def test_the_model_and_the_log_learn_that_a_worker_cannot_decrypt(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a call without retries has the cause and the remedy instead of the text of the worker's SDK."""
    queue = f"plain-{uuid.uuid4()}"
    model = ScriptedModel(calls(("ship", {"order": "A1"})), says("Not shipped."))
    async with running_plainly(server, tmp_path, monkeypatch, model, queue) as env:
        await (await env.client.start("seller", "go")).result()
    [(name, response)] = responses(model.requests[-1])
    assert (name, f"task queue {queue}" in response["error"]) == ("ship", True)
    assert "decrypt its input; if payloads are encrypted, give it `waystation.data_converter()`" in response["error"]
