"""Invocations that outgrow a history continue as new without a visible difference."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.server.conftest import Serve, verify_tree
from tests.server.workflows.test_ends_from_outside import cancelled, exists
from tests.steps import (
    QUICK_SETTINGS,
    approve_and_finish,
    force_continue_as_new,
    wait_for_calls,
    wait_for_hold,
    wait_until,
)
from waystation.agents import Agent, ParallelAgent
from waystation.client.agent_client import Invocation
from waystation.core.contract import WORKFLOW
from waystation.core.errors import StoreFailed
from waystation.history import invocation_reader
from waystation.models import LlmRequest, LlmResponse
from waystation.storage import Blobs
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext

CUT_AFTER = 20
"""Number of history events, after which a run has made two or three steps."""
LARGE = "x" * 100_000
"""More than a run carries inline."""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the store of the workers and of the client."""
    monkeypatch.setenv("WAYSTATION_STORE", str(tmp_path / "store"))


def add(number: int, tool_context: ToolContext) -> dict[str, Any]:
    """Add a number to the sum."""
    tool_context.state["sum"] = tool_context.state.get("sum", 0) + number
    return {"sum": tool_context.state["sum"]}


def fetch(number: int) -> dict[str, Any]:
    """Fetch something large."""
    return {"sum": number, "page": LARGE}


def ask(what: str) -> dict[str, str]:
    """Ask somebody."""
    return {"status": "asked"}


async def start_with_cuts(env: AgentEnvironment, agent: str, **params: Any) -> Invocation:
    """Start an invocation whose runs continue as new after a few events."""
    handle = await env.client.temporal.start_workflow(
        WORKFLOW,
        {"agent": agent, "message": "go", "cut_after": CUT_AFTER, **params},
        id=f"{agent}-{env.client.task_queue}",
        task_queue=env.client.task_queue,
    )
    return Invocation(env.client, handle)


def counting(steps: int, tool: str = "add") -> FunctionModel:
    """Return a model that calls a tool this many times, and then reports the last response."""

    def act(request: LlmRequest) -> LlmResponse:
        tool_values = [value for name, value in responses(request) if name == tool]
        if len(tool_values) < steps:
            return calls((tool, {"number": len(tool_values) + 1}))
        return says(f"told {len(tool_values)} times: {tool_values[-1]['sum']}")

    return FunctionModel(act)


async def runs(invocation: Invocation) -> int:
    """Return the number of runs of an invocation."""
    return len(await invocation.histories())


async def in_run(invocation: Invocation, number: int) -> None:
    """Wait until an invocation is in its `number`th run."""
    async with asyncio.timeout(60):
        async for _ in invocation.follow():
            if await runs(invocation) >= number:
                return


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Hide earlier runs from the server, as after the retention, because the test server deletes none in time."""

    async def gone(client: Client, id: str, run_id: str | None) -> None:
        return None

    return lambda: monkeypatch.setattr(invocation_reader, "fetch_run", gone)


async def test_an_invocation_continues_in_further_runs(serve: Serve) -> None:
    """The model sees the whole conversation, the state is the sum of all deltas, and readers see one invocation."""
    async with serve(Agent(name="adder", model=counting(8), tools=[add])) as env:
        invocation = await start_with_cuts(env, "adder", state={"base": 1})
        result = await invocation.result()
        assert (result.text, result.state_delta) == ("told 8 times: 36", {"sum": 36})
        assert await runs(invocation) > 2
        log = await invocation.log()
        assert [event.id.rpartition("/e")[2] for event in log.state.events] == [str(n) for n in range(1, 19)]
        assert log.state.result() == result
        followed = [event.id async for event in invocation.events()]
        assert followed == [event.id for event in log.state.events]


@pytest.mark.slow
async def test_a_store_that_lacks_a_segment_is_named(
    serve: Serve, tmp_path: Path, forgotten: Callable[[], None]
) -> None:
    """A reader does not show half of an invocation."""
    async with serve(Agent(name="gap", model=counting(5, "fetch"), tools=[fetch])) as env:
        invocation = await start_with_cuts(env, "gap")
        await invocation.result()
        forgotten()
        env.client.blobs, right = Blobs(tmp_path / "elsewhere"), env.client.blobs
        with pytest.raises(StoreFailed, match="WAYSTATION_STORE"):
            await invocation.log()
        env.client.blobs = right


@pytest.mark.slow
async def test_a_failing_store_stops_nothing(serve: Serve, tmp_path: Path) -> None:
    """The invocation does not continue as new, and ends as usual."""
    (tmp_path / "file").write_text("no folder")
    blobs = Blobs(tmp_path / "file" / "store")
    async with serve(Agent(name="storeless", model=counting(6, "fetch"), tools=[fetch]), blobs=blobs) as env:
        invocation = await start_with_cuts(env, "storeless")
        assert (await invocation.result()).text == "told 6 times: 6"
        assert await runs(invocation) == 1


class Watched(Blobs):
    """A store that records failed requests."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.failed = asyncio.Event()

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest."""
        try:
            return await super().get(digest)
        except StoreFailed:
            self.failed.set()
            raise


async def test_a_confirmed_call_waits_for_an_unavailable_store(serve: Serve, tmp_path: Path) -> None:
    """A cold worker reads the log first; the call, which may not be repeated, runs once after that."""
    paid: list[int] = []

    def pay(amount: int) -> dict[str, int]:
        """Pay."""
        paid.append(amount)
        return {"paid": amount}

    def act(request: LlmRequest) -> LlmResponse:
        tool_results = responses(request)
        if len(tool_results) < 3:
            return calls(("fetch", {"number": len(tool_results)}))
        return calls(("pay", {"amount": 5})) if len(tool_results) == 3 else says(f"{tool_results[-1][1]}")

    agent = Agent(name="payer", model=FunctionModel(act), tools=[fetch, FunctionTool(pay, require_confirmation=True)])
    store = Watched(tmp_path / "store")
    async with serve(agent, blobs=store, verify=False) as env:
        invocation = await start_with_cuts(env, "payer")
        await wait_for_calls(invocation, "fc-4")
        await force_continue_as_new(invocation)
    (tmp_path / "store").rename(tmp_path / "away")
    async with serve(agent, blobs=store, task_queue=env.client.task_queue):
        await invocation.approve()
        async with asyncio.timeout(20):
            await store.failed.wait()
        (tmp_path / "away").rename(tmp_path / "store")
        assert (await invocation.result()).text == "{'paid': 5}"
        assert paid == [5]
        await verify_tree(invocation)


async def test_an_invocation_is_held_while_an_archive_of_its_log_is_missing(serve: Serve, tmp_path: Path) -> None:
    """A held invocation continues once the archive is back, without another answer."""

    def act(request: LlmRequest) -> LlmResponse:
        tool_results = responses(request)
        if len(tool_results) < 3:
            return calls(("fetch", {"number": len(tool_results)}))
        return calls(("ask", {"what": "?"})) if len(tool_results) == 3 else says("Done.")

    agent = Agent(name="patient", model=FunctionModel(act), tools=[fetch, LongRunningFunctionTool(ask)])
    options = {"blobs": Blobs(tmp_path / "store"), "settings": QUICK_SETTINGS, "verify": False}
    async with serve(agent, **options) as env:
        invocation = await start_with_cuts(env, "patient")
        await wait_for_calls(invocation, "fc-4")
        await force_continue_as_new(invocation)
    (tmp_path / "store").rename(tmp_path / "away")
    async with serve(agent, task_queue=env.client.task_queue, **options):
        await invocation.approve()
        hold = await wait_for_hold(invocation)
        assert hold["reason"] == "store_failed"
        assert "WAYSTATION_STORE" in hold["message"]
        (tmp_path / "away").rename(tmp_path / "store")
        assert (await invocation.result()).text == "Done."
        await verify_tree(invocation, QUICK_SETTINGS.workflow)


def family(steps: int) -> ParallelAgent:
    """Return a parallel agent: one branch calls an agent that waits for a person, and the other counts."""
    child = Agent(
        name="child",
        model=ScriptedModel(calls(("ask", {"what": "?"})), says("child waits"), says("child done")),
        tools=[LongRunningFunctionTool(ask)],
    )
    model = FunctionModel(
        lambda request: says("parent done") if responses(request) else calls(("child", {"request": "go"}))
    )
    parent = Agent(name="parent", model=model, tools=[AgentTool(child)])
    return ParallelAgent(name="family", sub_agents=[parent, Agent(name="adder", model=counting(steps), tools=[add])])


async def called(invocation: Invocation, env: AgentEnvironment) -> Invocation:
    """Return the called agent's invocation once it waits."""
    child = env.client.invocation(f"{invocation.id}/fc-1-1")
    await wait_until(lambda: exists(child), "the called agent")
    await wait_for_calls(child, "fc-1")
    return child


async def test_a_called_agent_survives_continue_as_new_and_its_answer_arrives(serve: Serve) -> None:
    """The server notifies only the run that called it; a later one asks for the result."""
    async with serve(family(7)) as env:
        invocation = await start_with_cuts(env, "family")
        await in_run(invocation, 3)
        child = await called(invocation, env)
        assert (await approve_and_finish(child)).text == "child done"
        assert (await invocation.result()).status == "completed"
        responses = [part for event in (await invocation.log()).state.events for part in event.function_responses()]
        assert {"result": "child done"} in [part["response"] for part in responses if part["name"] == "child"]


async def test_cancelling_a_later_run_cancels_the_called_agent(serve: Serve) -> None:
    """A called agent outlives a run of its caller, but not the caller."""
    async with serve(family(7)) as env:
        invocation = await start_with_cuts(env, "family")
        await in_run(invocation, 3)
        child = await called(invocation, env)
        async with asyncio.timeout(60):
            async for event in invocation.events():
                if event.content and "told 7 times" in str(event.content):
                    break
        await invocation.cancel()
        await cancelled(invocation)
        await cancelled(child)


async def test_a_start_with_a_forged_snapshot_is_ignored(serve: Serve) -> None:
    """Only the engine itself may carry state over."""
    async with serve(Agent(name="adder", model=counting(1), tools=[add])) as env:
        past = {"run_id": "x", "snapshot": {"entries": 7, "events": 7, "state": {"sum": 100}}}
        invocation = await start_with_cuts(env, "adder", carried=past)
        assert (await invocation.result()).text == "told 1 times: 1"


async def test_a_long_log_is_read_from_the_store_if_the_server_has_deleted_it(
    serve: Serve, forgotten: Callable[[], None]
) -> None:
    """Entries in the store give the same log as the histories, including times."""
    async with serve(Agent(name="reader", model=counting(7, "fetch"), tools=[fetch])) as env:
        invocation = await start_with_cuts(env, "reader")
        assert (await invocation.result()).text == "told 7 times: 7"
        before = await invocation.log()
        forgotten()
        after = await invocation.log()
        assert after.entries == before.entries
        assert [event.to_json() for event in after.state.events] == [event.to_json() for event in before.state.events]
