"""A call that one interface opened is answered in another one, weeks later, and nothing that ran then still runs."""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import httpx2 as httpx
import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest as MakeCurrent
from temporalio.service import RPCError

from tests.fakes.openid import FakeOpenId
from tests.server.interfaces.drivers import call_a2a, make_message
from tests.server.interfaces.test_ag_ui_client import PRELUDE, run
from tests.server.processes.workers import Process, WorkerProcess, until
from tests.unit.identity.conftest import installed
from tests.unit.identity.test_bearer import RESOURCE, write
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.testing import Clock
from waystation.testing.time_skipping import SKIPS_TIME, TimeSkipper

QUEUE = "weeks"
AGENT = """
import os
from datetime import timedelta
from pathlib import Path

from waystation import Agent, ApprovalPolicy, FunctionTool
from waystation.testing import FunctionModel, calls, responses


def pay(amount: int) -> str:
    with Path(os.environ["LEDGER"]).open("a") as file:
        file.write(f"{amount} by build {os.environ['BUILD']}\\n")
    return "paid"


def reply(request):
    return "Paid." if responses(request) else calls(("pay", {"amount": 5}))


policy = ApprovalPolicy(approvers=("role:finance",), reminders=(timedelta(days=7), timedelta(days=14)))
root_agent = Agent(name="clerk", model=FunctionModel(reply), tools=[FunctionTool(pay, approval=policy)])
"""
TABLES = '[oidc.grant]\nauthor = ["role:authors"]\n[envelope]\npublic_key = "envelope-public.json"\n'
APPROVE = """
const agent = open('clerk');
await agent.runAgent();
const [interrupt] = agent.pendingInterrupts;
const { id, metadata } = interrupt;
await agent.runAgent({ resume: [{ interruptId: id, status: 'resolved', payload: { approved: true }, metadata }] });
console.log(JSON.stringify({ args: metadata.args, text: agent.messages.at(-1).content }));
"""


class Deployment:
    """A Temporal server, a worker of one build, and a web process. Each `running` starts all three anew."""

    def __init__(self, folder: Path, openid: FakeOpenId) -> None:
        self.folder, self.openid = folder, openid
        self.there = installed(folder / "identity", openid, {"audience": RESOURCE})
        write(self.there.folder / "tokens.toml", openid, tables=TABLES)
        (folder / "agents" / "clerk").mkdir(parents=True)
        (folder / "agents" / "clerk" / "agent.py").write_text(AGENT)

    @property
    def token(self) -> str:
        """A fresh token of the person."""
        return self.openid.token("ann", roles=["authors", "finance"])

    @property
    def ledger(self) -> list[str]:
        """Payments, each with the build that made it."""
        file = self.folder / "ledger"
        return file.read_text().splitlines() if file.exists() else []

    @asynccontextmanager
    async def running(self, build: str) -> AsyncIterator[tuple[AgentClient, str]]:
        """Run all processes, and kill them at the end. Return a client, and the address of the web process."""
        environment = {
            "BUILD": build,
            "LEDGER": str(self.folder / "ledger"),
            "WAYSTATION_STORE": str(self.folder / "store"),
        }
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                EmbeddedServer(db_filename=self.folder / "temporal.db", dynamic_config=SKIPS_TIME)
            )
            stack.callback(os.kill, server.pid, signal.SIGKILL)
            options = ["--agents", str(self.folder / "agents"), "--address", server.address, "--task-queue", QUEUE]
            options += [
                "--identity",
                str(self.there.folder / "workers.toml"),
                "--deployment-version",
                f"{QUEUE}.{build}",
            ]
            await stack.enter_async_context(WorkerProcess(*options, environment=environment))
            client = await AgentClient.connect(address=server.address, task_queue=QUEUE)
            await make_current(client, build)
            web = await stack.enter_async_context(Process(*self._web(server), environment=environment))
            url = await until(lambda: re.search(r"Serving at (\S+);", " ".join(web.other)), "the address")
            assert url
            yield client, url[1]

    def _web(self, server: EmbeddedServer) -> list[str]:
        command = [sys.executable, "-m", "waystation.cli", "--address", server.address, "--task-queue", QUEUE, "web"]
        command += ["--port", "0", "--identity", str(self.there.folder / "tokens.toml")]
        return [*command, "--interface", "a2a", "--interface", "ag-ui"]


async def make_current(client: AgentClient, build: str) -> None:
    """Let the server give open and new workflows to a build."""
    request = MakeCurrent(namespace="default", deployment_name=QUEUE, build_id=build)

    async def make() -> bool:
        try:
            return bool(await client.temporal.workflow_service.set_worker_deployment_current_version(request))
        except RPCError:  # the server does not know the build yet
            return False

    await until(make, "the build")


async def skip(client: AgentClient, invocation: str, **by: float) -> None:
    """Skip time for an invocation and its session."""
    started = {invocation, invocation.rpartition("/")[0]}
    skipper = TimeSkipper(client.temporal, Clock(), task_queue=QUEUE, started=started, is_served=lambda: True)
    await skipper.skip(timedelta(**by))


@asynccontextmanager
async def program(url: str, token: str) -> AsyncIterator[httpx.AsyncClient]:
    """Connect a program of the person."""
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        yield http


@pytest.fixture
def deployment(tmp_path: Path, own_openid: FakeOpenId) -> Deployment:
    """Return the deployment, which accepts access tokens of the provider."""
    own_openid.audience = RESOURCE
    return Deployment(tmp_path, own_openid)


def find_state(task: Mapping[str, Mapping[str, str]]) -> str:
    """Return the state of a task."""
    return task["status"]["state"]


async def test_a_task_of_a2a_is_approved_in_an_ag_ui_client_three_weeks_and_two_builds_later(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Worker, web process and Temporal server are killed twice, and the provider has changed its keys.

    The time of the workflows is skipped. The clocks of processes and tokens are not, because they are the computer's.
    """
    context, old = f"order-{uuid4().hex}", deployment.token
    async with deployment.running("1") as (_, url), program(url, old) as http:
        _, sent = await call_a2a(
            http, "clerk", "SendMessage", message=make_message({"text": "Pay."}, contextId=context)
        )
        task = sent["task"]
        assert find_state(task) == "TASK_STATE_INPUT_REQUIRED"
        invocation: str = task["metadata"]["waystation"]["invocationId"]
    async with deployment.running("2") as (client, _):
        await skip(client, invocation, days=10)
    deployment.openid.rotate()
    async with deployment.running("3") as (client, url):
        await skip(client, invocation, days=11)
        async with program(url, old) as http:
            assert (await http.get("/api/v1/calls")).status_code == 401
        shown = await run(tmp_path, PRELUDE + APPROVE, url, token=deployment.token, thread=context)
        async with program(url, deployment.token) as http:
            _, ended = await call_a2a(http, "clerk", "GetTask", id=task["id"])
            audit = (await http.get(f"/api/v1/invocations/{quote(invocation, safe='')}/audit")).json()
        call = (await client.invocation(invocation).log()).state.calls["fc-1"]
    assert (find_state(ended), ended["artifacts"][0]["parts"]) == ("TASK_STATE_COMPLETED", [{"text": "Paid."}])
    assert shown == {"args": {"amount": 5}, "text": "Paid."}
    assert (call.noticed, deployment.ledger) == (2, ["5 by build 3"])
    [line] = [line for line in audit["invocations"][invocation] if line["kind"] == "decided"]
    proof = {"subject": "ann", "roles": ["authors", "finance"], "issuer": deployment.openid.url}
    assert (line["interface"], line["decision"], line["by"], line["verified"]) == ("ag-ui", "approve", "ann", proof)
    assert json.dumps(audit).count('"decided"') == 1
