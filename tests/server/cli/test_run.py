"""`waystation run`: start an invocation and follow it."""

import asyncio
import json
import signal
import sys

import pytest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from tests.programs import without_time
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.server.user_workflow import InSandbox
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import PendingCall
from waystation.core.errors import ModelRefused
from waystation.core.log import is_working
from waystation.models import LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def add(a: int, b: int, tool_context: ToolContext) -> dict[str, int]:
    """Add two numbers."""
    tool_context.state["sum"] = a + b
    return {"sum": a + b}


def ask(purpose: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending", "purpose": purpose}


def asking() -> Agent:
    """Return an agent that asks a person and then repeats the answer."""

    model = FunctionModel(
        lambda request: (
            says(f"They said {said[-1][1]['status']}.")
            if (said := responses(request))
            else calls(("ask", {"purpose": "x"}))
        )
    )
    return Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])


async def waits(invocation: Invocation) -> PendingCall:
    """Wait until a call waits for a person."""
    async for log in invocation.follow():
        if log.state.waiting() and not is_working(log.state):
            return log.state.pending()[0]
    raise AssertionError("the invocation ended")


async def test_an_invocation_is_followed_to_its_end(serve: Serve, waystation: Command) -> None:
    """The text shows authors, calls, responses, state and the result."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        ran = await waystation(env, "run", "adder", "one and two?", "--id", f"run-{env.client.task_queue}")
        assert (ran.code, ran.err) == (0, "")
        lines = [without_time(line) for line in ran.out.splitlines()]
        assert lines[1:] == [
            "user: one and two?",
            "adder calls add(a=1, b=2) [fc-1]",
            'add answers {"sum": 3}',
            "state: sum = 3",
            "adder: three",
            "completed",
        ]


async def test_json_is_one_record_for_each_event(serve: Serve, waystation: Command) -> None:
    """Standard output has the ID, then events, then the result, and nothing else."""
    model = ScriptedModel(calls(("add", {"a": 1, "b": 2})), says("three"))
    async with serve(Agent(name="adder", model=model, tools=[add])) as env:
        ran = await waystation(env, "run", "adder", "?", "--state", '{"k": [1]}', "--user", "dana", "--json")
        assert ran.code == 0
        assert [next(iter(record)) for record in ran.records] == ["invocation_id", *["event"] * 4, "result"]
        assert ran.records[-1]["result"]["state_delta"] == {"sum": 3}
        invocation = env.client.invocation(ran.records[0]["invocation_id"])
        log = await invocation.log()
        assert log.state.input is not None
        assert (log.state.input.user_id, log.state.input.state) == ("dana", {"k": [1]})
        assert [record["event"] for record in ran.records[1:5]] == [event.to_json() for event in log.state.events]


@pytest.mark.slow
async def test_pending_calls_are_shown_with_the_commands_that_answer_them(serve: Serve, waystation: Command) -> None:
    """With --detach the command returns when a call waits; the printed commands are complete."""
    async with serve(asking()) as env:
        id = f"waits-{env.client.task_queue}"
        ran = await waystation(env, "run", "asker", "go", "--id", id, "--detach")
        assert ran.code == 0
        assert 'waiting for a person  ask(purpose="x")' in ran.out
        assert f"--address {env.server.address}" in ran.out
        assert f"approve {id} fc-1" in ran.out
        assert '\'{"function_call_id": "fc-1", "action": "approve"}\'' in ran.out
        answered = await waystation(env, "approve", id)
        assert answered.code == 0
        assert (await env.client.invocation(id).result()).text == "They said approved."


async def follow_until_pending(env: AgentEnvironment, id: str) -> asyncio.subprocess.Process:
    """Start an invocation with the real command, and return its process once it has written the pending call."""
    target = ("--address", env.server.address, "--task-queue", env.client.task_queue)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.cli", *target, "run", "asker", "go", "--id", id, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    while not (line := await process.stdout.readline()).startswith(b'{"pending"'):
        assert process.returncode is None
    assert json.loads(line)["pending"][0]["tool"] == "ask"
    return process


async def test_a_waiting_invocation_is_followed_until_its_answer(serve: Serve) -> None:
    """Without --detach the command continues, and an answer from another process completes the invocation."""
    async with serve(asking()) as env:
        id = f"followed-{env.client.task_queue}"
        process = await follow_until_pending(env, id)
        await env.client.invocation(id).reject(comment="no")
        written, _ = await process.communicate()
        assert process.returncode == 0
        assert json.loads(written.splitlines()[-1])["result"]["text"] == "They said rejected."


@pytest.mark.slow
async def test_ctrl_c_stops_following_and_not_the_invocation(serve: Serve) -> None:
    """The command prints how to follow again, and exits with the code of an interrupted program."""
    async with serve(asking()) as env:
        id = f"interrupted-{env.client.task_queue}"
        process = await follow_until_pending(env, id)
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert process.returncode == 130
        assert f"events {id} --follow" in errors.decode()
        assert "Traceback" not in errors.decode()
        await env.client.invocation(id).approve()
        assert (await env.client.invocation(id).result()).text == "They said approved."


@pytest.mark.slow
async def test_pending_calls_of_a_called_agent_are_reported(serve: Serve, waystation: Command) -> None:
    """Pending calls of called agents are reported although the caller's history does not contain them."""
    parent = Agent(
        name="boss",
        model=ScriptedModel(calls(("asker", {"request": "please"})), says("done")),
        tools=[AgentTool(agent=asking())],
    )
    async with serve(parent) as env:
        id = f"boss-{env.client.task_queue}"
        ran = await waystation(env, "run", "boss", "go", "--id", id, "--detach", "--json")
        assert ran.code == 0
        assert ran.records[-1]["pending"][0]["invocation_id"] == f"{id}/fc-1"
        listed = await waystation(env, "pending", id, "--json")
        assert [record["invocation_id"] for record in listed.records] == [f"{id}/fc-1"]
        assert (await waystation(env, "approve", f"{id}/fc-1")).code == 0
        assert (await env.client.invocation(id).result()).text == "done"


async def test_an_id_that_exists_is_followed_instead(serve: Serve, waystation: Command) -> None:
    """Running the same command twice runs the agent once, even after the first invocation has ended."""
    model = ScriptedModel(says("once"), says("twice"))
    async with serve(Agent(name="speaker", model=model)) as env:
        id = f"same-{env.client.task_queue}"
        first = await waystation(env, "run", "speaker", "one", "--id", id, "--json")
        second = await waystation(env, "run", "speaker", "two", "--id", id, "--json")
        assert (first.records[0]["existed"], second.records[0]["existed"]) == (False, True)
        assert first.records[1:] == second.records[1:]
        assert "already exists" in second.err


@pytest.mark.slow
async def test_a_failed_invocation_exits_with_1_and_the_reason(serve: Serve, waystation: Command) -> None:
    """The message has the type of the failure and its text."""
    refused = ScriptedModel(*[ModelRefused("no such model", status=404)] * 2)
    async with serve(Agent(name="speaker", model=refused)) as env:
        ran = await waystation(env, "run", "speaker", "hello")
        assert ran.code == 1
        assert "ModelFailed: no such model" in ran.out
        recorded = await waystation(env, "run", "speaker", "hello", "--json")
        assert (recorded.code, recorded.records[-1]["error"]["type"]) == (1, "ModelFailed")


@pytest.mark.slow
async def test_an_agent_without_an_announcement_is_not_started(serve: Serve, waystation: Command) -> None:
    """The message names the agents that workers have announced."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env:
        ran = await waystation(env, "run", "nobody", "hello")
        assert ran.code == 1
        assert "No agent is named 'nobody'. Workers in this namespace have announced: " in ran.err
        assert "speaker" in ran.err


async def test_an_invocation_that_stopped_early_exits_with_1(serve: Serve, waystation: Command) -> None:
    """An invocation whose model refused has a result, but exits with 1."""
    model = ScriptedModel(LlmResponse(error_code="SAFETY", error_message="blocked"))
    async with serve(Agent(name="speaker", model=model)) as env:
        ran = await waystation(env, "run", "speaker", "hello")
        assert ran.code == 1
        assert ran.out.splitlines()[-1] == "stopped: blocked"


@pytest.mark.slow
async def test_a_missing_worker_is_reported(serve: Serve, waystation: Command) -> None:
    """The invocation is started and kept, and the output reports the missing worker."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env:
        ran = await waystation(env, "run", "speaker", "hello", "--detach", "--json", "--task-queue", "deserted")
        assert ran.code == 0
        assert "no worker polls 'deserted'" in ran.err
        await env.client.invocation(ran.records[0]["invocation_id"]).handle.terminate()


@pytest.mark.slow
async def test_a_deployment_without_a_current_version_is_reported(serve: Serve, waystation: Command) -> None:
    """The output has the command that makes a version current, because the workers receive nothing until then."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env:
        version = WorkerDeploymentVersion("prod", "7")
        config = WorkerDeploymentConfig(
            version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
        )
        queue = f"{env.client.task_queue}-versioned"
        async with Worker(env.temporal, task_queue=queue, workflows=[InSandbox], deployment_config=config):
            ran = await waystation(env, "run", "speaker", "hello", "--detach", "--json", "--task-queue", queue)
        await env.client.invocation(ran.records[0]["invocation_id"]).handle.terminate()
    command = "temporal worker deployment set-current-version --deployment-name prod --build-id 7"
    assert f"Started, but deployment prod has no current version. Set it: {command}" in " ".join(ran.err.split())


async def test_mistakes_in_options_are_usage_errors(serve: Serve, waystation: Command) -> None:
    """Each message names the option and the value, and nothing is started."""
    async with serve(Agent(name="speaker", model=ScriptedModel())) as env:
        for arguments, named in {
            ("--state", "{"): "--state",
            ("--state", "[1]"): "not a JSON object",
            ("--state", '{"a": NaN}'): "not valid JSON",
            ("--id", ""): "--id",
        }.items():
            ran = await waystation(env, "run", "speaker", "hello", *arguments)
            assert (ran.code, named in ran.err, ran.out) == (2, True, ""), arguments


async def test_a_pipe_gets_plain_text(serve: Serve, waystation: Command) -> None:
    """Output that is not a terminal has no colors and no wrapping."""
    text = "word " * 60
    async with serve(Agent(name="speaker", model=ScriptedModel(says(text)))) as env:
        ran = await waystation(env, "run", "speaker", "hello")
        assert "\x1b" not in ran.out
        assert f"speaker: {text.strip()}" in ran.out


async def test_events_are_json_for_clients_in_other_languages(serve: Serve, waystation: Command) -> None:
    """JSON escapes control characters and reads back unchanged."""
    text = "\x1b]0;owned\x07 \u202e \x9b2J é 漢"
    async with serve(Agent(name="speaker", model=ScriptedModel(says(text)))) as env:
        ran = await waystation(env, "run", "speaker", "hello", "--json")
        assert not set("\x1b\x07\u202e\x9b") & set(ran.out)
        assert "é 漢" in ran.out
        assert json.loads(ran.out.splitlines()[-1])["result"]["text"] == text
