"""Failures and retries are reported to people who follow; histories contain them only afterward."""

import asyncio
import re

import pytest

from tests.programs import TIME
from tests.server.cli.conftest import Command
from tests.server.cli.test_chat import typed
from tests.server.cli.test_run import ask, waits
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.cli import invocations
from waystation.cli.invocations import Watch
from waystation.cli.output import Output
from waystation.core.errors import ModelOverloaded
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

THEN = rf"(next attempt at {TIME}|it is being retried now)\."


class Told:
    """Records the remarks about failures, and lets the model succeed after one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.any = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def take(self, text: str) -> None:
        """Record a remark from any event loop."""
        self.lines.append(text)
        self.loop.call_soon_threadsafe(self.any.set)


@pytest.fixture
async def failure_recorder(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return a recorder of remarks without their usual delay; they are still written."""
    recorder, remark = Told(), Output.remark

    def remarked(out: Output, text: str) -> None:
        remark(out, text)
        if " failed " in text or " has been waiting " in text:
            recorder.take(text)

    monkeypatch.setattr(Output, "remark", remarked)
    monkeypatch.setattr(invocations, "QUIET_S", 0.1)
    return recorder


def struggling(recorder: Told, name: str = "asker") -> Agent:
    """Return an agent whose model fails twice, and succeeds after a failure was reported."""
    failures = [ModelOverloaded("Busy now", retry_after_s=0.01)] * 2

    async def reply(_request: LlmRequest) -> LlmResponse:
        if failures:
            raise failures.pop()
        await recorder.any.wait()
        return says("At last.")

    return Agent(name=name, model=FunctionModel(reply))


@pytest.mark.slow
@pytest.mark.parametrize("json", [(), ("--json",)])
async def test_retries_are_reported_with_the_reason(
    serve: Serve, waystation: Command, failure_recorder: Told, json: tuple[str, ...]
) -> None:
    """The remark on stderr has the model's agent, the number of failures and the reason."""
    async with serve(struggling(failure_recorder), verify=False) as env:
        ran = await waystation(env, "run", "asker", "hi", *json)
        assert (ran.code, failure_recorder.lines[0] in ran.err, "failed" in ran.out) == (0, True, False)
        [line] = failure_recorder.lines
        assert re.fullmatch(rf"The model of asker failed twice; {THEN} ModelUnavailable: Busy now", line)


@pytest.mark.slow
async def test_a_conversation_reports_retries(serve: Serve, failure_recorder: Told) -> None:
    """A chat reports retries like a single invocation."""
    async with serve(struggling(failure_recorder), verify=False) as env:
        ran = await typed(env, "hi\n")
        assert (ran.code, "asker: At last." in ran.out) == (0, True)
        assert [line.split("; ")[0] for line in failure_recorder.lines] == ["The model of asker failed twice"]


@pytest.mark.slow
async def test_retries_of_called_agents_are_reported(serve: Serve, waystation: Command, failure_recorder: Told) -> None:
    """Called agents are named by their invocation ids, which other commands accept."""
    called = struggling(failure_recorder, "asked")
    model = ScriptedModel(calls(("asked", {"request": "continue"})), says("done"))
    async with serve(Agent(name="asker", model=model, tools=[AgentTool(called)]), verify=False) as env:
        invocation = await env.client.start("asker", "hi")
        ran = await waystation(env, "events", invocation.id, "--follow")
        assert (ran.code, failure_recorder.lines[0].split("; ")[0]) == (
            0,
            f"The model of {invocation.id}/fc-1 failed twice",
        )


async def test_a_retry_with_a_long_delay_is_reported_after_the_first_failure(
    serve: Serve, waystation: Command, failure_recorder: Told
) -> None:
    """The remark has the time of the next attempt, also from commands that do not follow."""
    model = ScriptedModel(ModelOverloaded("Busy now", retry_after_s=300))
    async with serve(Agent(name="asker", model=model), verify=False) as env:
        invocation = await env.client.start("asker", "hi")
        await failed(env, invocation.id)
        for command in ("events", "pending"):
            ran = await waystation(env, command, invocation.id)
            line = rf"The model of \S+ failed once; next attempt at {TIME}\. ModelUnavailable: Busy now\n"
            assert re.fullmatch(line, ran.err), ran.err
        await invocation.handle.terminate()


@pytest.mark.slow
async def test_a_retried_tool_is_named_with_its_call_and_reported_once(
    serve: Serve, waystation: Command, failure_recorder: Told
) -> None:
    """An exception of the tool is named by its class, as in the history."""

    def pay() -> str:
        """Pay."""
        raise ConnectionError("with the password")

    model = ScriptedModel(calls(("pay", {})))
    async with serve(Agent(name="asker", model=model, tools=[FunctionTool(pay, retries=9)]), verify=False) as env:
        invocation = await env.client.start("asker", "hi")
        looking = Watch(env.client, Output(), invocation.id)
        while not failure_recorder.lines:
            await looking.look_for_retries()
            await asyncio.sleep(0.05)
        assert re.fullmatch(
            rf"asker's call pay \[fc-1\] failed twice; {THEN} ConnectionError: pay raised and will be retried\.",
            failure_recorder.lines[0],
        )
        await looking.look_for_retries()
        assert len(failure_recorder.lines) == 1
        await invocation.handle.terminate()


@pytest.mark.slow
async def test_a_retry_without_a_worker_is_reported(
    serve: Serve, failure_recorder: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, the remark has the start of the wait instead of reporting a running attempt."""
    monkeypatch.setattr(invocations, "SOON_S", 0.2)
    model = ScriptedModel(ModelOverloaded("Busy now", retry_after_s=2))
    async with serve(Agent(name="asker", model=model), verify=False) as env:
        invocation = await env.client.start("asker", "hi")
        await failed(env, invocation.id)
    line = rf"The model of \S+ failed once; its next attempt has been waiting for a worker since {TIME}\."
    while not any(re.match(line, each) for each in failure_recorder.lines):
        await Watch(env.client, Output(), invocation.id).look_for_retries()
        await asyncio.sleep(0.2)
    await invocation.handle.terminate()


async def test_a_first_attempt_without_a_worker_is_reported(
    serve: Serve, failure_recorder: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remark names the task queue, which may be a tool's own queue without workers."""

    def draw() -> None:
        """Draw."""

    monkeypatch.setattr(invocations, "SOON_S", 0.2)
    tool = FunctionTool(draw, task_queue="with-graphics")
    async with serve(Agent(name="artist", model=ScriptedModel(calls(("draw", {}))), tools=[tool])) as env:
        invocation = await env.client.start("artist", "hi")
        looking = Watch(env.client, Output(), invocation.id)
        async for log in invocation.follow():
            looking.take(log, ())
            if log.state.calls:
                break
        while not failure_recorder.lines:
            await looking.look_for_retries()
            await asyncio.sleep(0.05)
        await invocation.cancel()
    line = rf"artist's call draw \[fc-1\] has been waiting since {TIME} for a worker that polls 'with-graphics'\."
    assert re.fullmatch(line, failure_recorder.lines[-1])


async def test_pending_calls_cause_no_further_requests(serve: Serve, failure_recorder: Told) -> None:
    """Waiting causes no requests to the server."""
    model = ScriptedModel(calls(("ask", {"purpose": "x"})))
    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)]), verify=False) as env:
        invocation = await env.client.start("asker", "hi")
        await waits(invocation)
        assert (await Watch(env.client, Output(), invocation.id).look_for_retries(), failure_recorder.lines) == (
            None,
            [],
        )


async def failed(env: AgentEnvironment, id: str) -> None:
    """Wait until an activity has failed once."""
    while True:
        described = await env.client.invocation(id).handle.describe()
        if any(each.attempt > 1 for each in described.raw_description.pending_activities):
            return
        await asyncio.sleep(0.02)
