"""The programs of the how-to pages in Go, Java and TypeScript work unchanged, with Temporal's SDKs for these languages.

A test is skipped if its tool chain is not installed. If the packages that it needs cannot be downloaded, it fails.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.worker import Worker

from tests.agents import Till
from tests.documents import blocks, how_to, section
from tests.server.approvals.asking import asker
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN, site
from waystation import ActivityTool, Agent
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.worker import AgentService

PROJECT, ANSWERS = how_to("work-in-a-temporal-project"), how_to("answer-from-other-languages")
pytestmark = pytest.mark.timeout(900)
"""Compiling the SDK for Go takes several minutes on a busy machine, unless Go has it in its cache."""

GO_SDK, NODE_SDK = "go.temporal.io/sdk@v1.50.0", "@temporalio/worker@1.24.0"
JAVA_SDK = "1.31.0"
NODE_SDKS = NODE_SDK, "@temporalio/workflow@1.24.0"
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>waystation</groupId> <artifactId>payments</artifactId> <version>1</version>
  <dependencies>
    {dependencies}
  </dependencies>
</project>"""
TYPESCRIPT_WORKFLOW = """
import { executeChild } from '@temporalio/workflow';
export async function returns(request: string): Promise<string> {
  BODY
  return result.text;
}
"""
TYPESCRIPT_WORKER = """
import { NativeConnection, Worker } from '@temporalio/worker';
const connection = await NativeConnection.connect({ address: process.env.TEMPORAL_ADDRESS });
const workflowsPath = new URL('./workflows.ts', import.meta.url).pathname;
const worker = await Worker.create({ connection, taskQueue: 'returns-ts', workflowsPath });
await worker.run();
"""
GO_WORKER = """package main

import (
	"log"
	"os"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

func main() {
	c, err := client.Dial(client.Options{HostPort: os.Getenv("TEMPORAL_ADDRESS")})
	if err != nil {
		log.Fatal(err)
	}
	w := worker.New(c, "returns-go", worker.Options{})
	w.RegisterWorkflow(Returns)
	log.Fatal(w.Run(worker.InterruptCh()))
}

"""
ORDER = {"type": "object", "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}}}


def program(heading: str, language: str, page: str = PROJECT) -> str:
    """Return the first code block of a language in a section of a page."""
    return blocks(section(page, heading), language)[0]


def need(name: str) -> str:
    """Return the path of a program, or skip the test if it is not installed."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return shutil.which(name, path=places) or pytest.skip(f"{name} is not installed")


def download(*command: str, folder: Path) -> None:
    """Run a command that downloads packages."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, f"`{' '.join(command)}` failed: {done.stdout[-300:]} {done.stderr[-300:]}"


def build_go(folder: Path, source: str) -> Path:
    """Build a Go program and return its path."""
    go = need("go")
    (folder / "main.go").write_text(source)
    (folder / "go.mod").write_text("module example\n\ngo 1.23\n")
    download(go, "get", GO_SDK, folder=folder)
    subprocess.run([go, "mod", "tidy"], cwd=folder, check=True, timeout=500)
    subprocess.run([go, "build", "-o", "program", "."], cwd=folder, check=True, timeout=500)
    return folder / "program"


def prepare_java(folder: Path, name: str, source: str, *artifacts: str) -> list[str]:
    """Download the SDK for Java and further artifacts, such as `group:name:1.0`, and return the command to run."""
    maven, java = need("mvn"), need("java")
    needed = (f"io.temporal:temporal-sdk:{JAVA_SDK}", *artifacts)
    dependencies = "".join(DEPENDENCY.format(*artifact.split(":")) for artifact in needed)
    (folder / "pom.xml").write_text(POM.format(dependencies=dependencies))
    (folder / f"{name}.java").write_text(source)
    download(maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", folder=folder)
    return [java, "-cp", "lib/*", f"{name}.java"]


@asynccontextmanager
async def running(*command: str | Path, folder: Path, address: str) -> AsyncIterator[None]:
    """Run a worker, and end it afterwards, with the processes that it started: `.venv/bin/node` starts Node."""
    environment = {**os.environ, "TEMPORAL_ADDRESS": address}
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def verify_refund(serve: Serve, folder: Path, *command: str | Path) -> None:
    """Run the worker of a refund activity behind an agent, and verify that its result reaches the model."""
    model = ScriptedModel(calls(("refund", {"order": "A1", "cents": 5})), says("done"))
    tool = ActivityTool("refund", schema=ORDER, task_queue="payments")
    async with (
        serve(Agent(name="support_agent", model=model, tools=[tool])) as env,
        running(*command, folder=folder, address=env.server.address),
    ):
        assert (await env.client.run("support_agent", "refund A1")).text == "done"
    assert responses(model.requests[-1]) == [("refund", {"order": "A1", "refunded": 5})]


async def test_an_agent_uses_an_activity_in_typescript(serve: Serve, tmp_path: Path) -> None:
    """The worker uses @temporalio/worker from npm."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    download(need("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund", NODE_SDK, folder=tmp_path)
    (tmp_path / "worker.ts").write_text(program("### An activity in TypeScript", "typescript"))
    node = Path(sys.executable).with_name("node")
    model = ScriptedModel(calls(("get_current_time", {"city": "Paris"})), says("done"))
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = ActivityTool("getCurrentTime", name="get_current_time", schema=city, task_queue="clock", effect="read")
    async with (
        serve(Agent(name="support_agent", model=model, tools=[tool])) as env,
        running(node, "worker.ts", folder=tmp_path, address=env.server.address),
    ):
        assert (await env.client.run("support_agent", "What time is it in Paris?")).text == "done"
    report = "The current time in Paris is 10:30 AM"
    assert responses(model.requests[-1]) == [("get_current_time", {"status": "success", "report": report})]


async def test_an_agent_uses_an_activity_in_go(serve: Serve, tmp_path: Path) -> None:
    """The worker uses go.temporal.io/sdk."""
    await verify_refund(serve, tmp_path, build_go(tmp_path, program("### An activity in Go", "go")))


async def test_an_agent_uses_an_activity_in_java(serve: Serve, tmp_path: Path) -> None:
    """The worker uses io.temporal:temporal-sdk."""
    command = prepare_java(tmp_path, "Payments", program("### An activity in Java", "java"))
    await verify_refund(serve, tmp_path, *command)


async def verify_approval(serve: Serve, folder: Path, *command: str | Path) -> None:
    """Run a program that starts an invocation, approves its call and prints the result."""
    async with serve(asker("reimbursement_agent"), task_queue="waystation") as env:
        environment = {**os.environ, "TEMPORAL_ADDRESS": env.server.address}
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
    assert out.decode() == "completed They said {'status': 'approved'}.\n"


async def test_go_starts_approves_and_reads_the_result(serve: Serve, tmp_path: Path) -> None:
    """The program uses go.temporal.io/sdk/client."""
    await verify_approval(serve, tmp_path, build_go(tmp_path, program("## Go", "go", ANSWERS)))


async def test_java_starts_approves_and_reads_the_result(serve: Serve, tmp_path: Path) -> None:
    """The program uses an untyped stub of io.temporal:temporal-sdk."""
    await verify_approval(serve, tmp_path, *prepare_java(tmp_path, "Approve", program("## Java", "java", ANSWERS)))


async def test_a_workflow_in_typescript_runs_an_agent(serve: Serve, tmp_path: Path) -> None:
    """The agent is a child workflow."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    download(need("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund", *NODE_SDKS, folder=tmp_path)
    body = blocks(PROJECT, "typescript")[-1].replace("'waystation'", "QUEUE")
    (tmp_path / "worker.ts").write_text(TYPESCRIPT_WORKER)
    agent = Agent(name="returns_agent", model=ScriptedModel(says("Send a label.")))
    node = Path(sys.executable).with_name("node")
    async with serve(agent) as env:
        body = body.replace("QUEUE", repr(env.client.task_queue))
        (tmp_path / "workflows.ts").write_text(TYPESCRIPT_WORKFLOW.replace("BODY", body))
        async with running(node, "worker.ts", folder=tmp_path, address=env.server.address):
            text = await env.temporal.execute_workflow("returns", "It broke.", id="returns-ts", task_queue="returns-ts")
    assert text == "Send a label."


async def test_a_workflow_in_go_runs_an_agent_through_nexus(serve: Serve, tmp_path: Path) -> None:
    """The operation is asynchronous, and its result is that of the invocation."""
    built = build_go(tmp_path, GO_WORKER + blocks(PROJECT, "go")[-1])
    agent = Agent(name="returns_agent", model=ScriptedModel(says("Send a label.")))
    async with serve(agent) as env:
        queue = env.client.task_queue
        target = EndpointTarget(worker=EndpointTarget.Worker(namespace=env.temporal.namespace, task_queue=queue))
        request = CreateNexusEndpointRequest(spec=EndpointSpec(name="agents", target=target))
        await env.temporal.operator_service.create_nexus_endpoint(request)
        async with (
            Worker(env.temporal, task_queue=queue, nexus_service_handlers=[AgentService()]),
            running(built, folder=tmp_path, address=env.server.address),
        ):
            text = await env.temporal.execute_workflow("Returns", "It broke.", id="returns-go", task_queue="returns-go")
    assert text == "Send a label."


@pytest.mark.parametrize("language", ["go", "java"])
async def test_a_program_starts_an_agent_over_http(serve: Serve, tmp_path: Path, language: str) -> None:
    """The programs of the page on HTTP need no library. They print what the agent waits for."""
    [source] = blocks(how_to("call-agents-over-http"), language)
    command, name = {"go": (("go", "run"), "main.go"), "java": (("java",), "StartPayer.java")}[language]
    (tmp_path / name).write_text(source)
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web:
        environment = os.environ | {"WAYSTATION_URL": web.url, "WAYSTATION_WEB_TOKEN": TOKEN}
        process = await asyncio.create_subprocess_exec(
            need(command[0]), *command[1:], tmp_path / name, env=environment, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert b"waiting" in out
