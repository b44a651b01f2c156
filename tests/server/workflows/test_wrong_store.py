"""Workers with another store neither lose large messages silently nor process them twice."""

import re
from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.test_continuing import add, ask, runs, start_with_cuts
from tests.server.workflows.test_store_ids import asker
from tests.steps import (
    approve_and_finish,
    catch_failure,
    start_and_wait,
    wait_for_calls,
    wait_for_ignored_answers,
    wait_until,
    wait_until_quiet,
)
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.errors import InvalidAnswer, NotReplayable
from waystation.core.log import NOT_FOUND
from waystation.models import LlmRequest, LlmResponse
from waystation.replay import replay
from waystation.storage import Blobs
from waystation.storage.driver import offloading
from waystation.testing import AgentEnvironment, FunctionModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool

LARGE = {"x": "x" * 500_000}


async def asking(env: AgentEnvironment) -> Invocation:
    """Start an invocation that waits for an answer."""
    invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
    await wait_until_quiet(invocation)
    return invocation


async def without_store(invocation: Invocation, store: Path) -> str:
    """Return the failure of the workflow task on a worker with another store; the server retries the task."""
    with pytest.raises(NotReplayable) as caught:
        await replay(await invocation.history(), converter=offloading(Blobs(store)))
    return str(caught.value)


async def test_a_large_signal_that_is_not_found_is_recorded_once(serve: Serve, tmp_path: Path) -> None:
    """The signal is recorded as ignored with a reason; a worker that finds it later continues from there."""
    agent = asker()
    async with serve(agent, verify=False) as env:
        queue, invocation = env.client.task_queue, await asking(env)
    await invocation.approve("fc-1", response=LARGE, signal=True)
    async with serve(agent, task_queue=queue, store=tmp_path, verify=False):
        assert await wait_for_ignored_answers(invocation, 1) == ["NotInStore"]
        await wait_until_quiet(invocation)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        assert (await approve_and_finish(invocation, "fc-1")).text == "Done."
        [notes] = [e.custom_metadata for e in (await invocation.log()).state.events if e.custom_metadata]
        assert notes["ignored_answer"]["message"] == NOT_FOUND.message


async def test_a_counted_signal_is_not_skipped_by_a_worker_without_its_store(serve: Serve, tmp_path: Path) -> None:
    """The workflow task fails with the remedy until a worker has the store."""
    async with serve(asker()) as env:
        invocation = await asking(env)
        await invocation.answer("progress", "fc-1", response=LARGE, wake=False, signal=True)
        await wait_until_quiet(invocation)
        reason = await without_store(invocation, tmp_path)
        assert re.search(r"cannot be read: the store does not have .*\. Use the same store", reason)
        assert (await approve_and_finish(invocation, "fc-1", signal=True)).text == "Done."


async def test_a_large_update_that_is_not_found_is_refused_and_leaves_no_trace(serve: Serve, tmp_path: Path) -> None:
    """The sender gets an error with the remedy."""
    async with serve(asker(), store=tmp_path / "workers") as env:
        invocation = await asking(env)
        other = await AgentClient.connect(address=env.server.address, store=tmp_path / "senders")
        before = len((await invocation.history()).events)
        with pytest.raises(InvalidAnswer, match=r"the store does not have .*\. Use the same store as the workers"):
            await other.invocation(invocation.id).approve("fc-1", response=LARGE)
        assert len((await invocation.history()).events) == before
        assert (await approve_and_finish(invocation, "fc-1")).text == "Done."


async def test_an_answer_over_the_limit_is_refused_at_the_sender(serve: Serve) -> None:
    """The client refuses a large answer, even as a signal, to which no worker can respond."""
    async with serve(asker()) as env:
        invocation = await asking(env)
        before = len((await invocation.history()).events)
        for signal in (True, False):
            with pytest.raises(InvalidAnswer, match="at most 1000000 can be recorded"):
                await invocation.approve("fc-1", response={"x": "x" * 1_000_000}, signal=signal)
        assert len((await invocation.history()).events) == before
        assert (await approve_and_finish(invocation, "fc-1")).text == "Done."


async def test_a_large_message_that_is_not_found_fails_its_invocation(serve: Serve, tmp_path: Path) -> None:
    """The invocation fails at once, with a type and the remedy, before it starts anything."""
    async with serve(asker(), store=tmp_path / "workers", verify=False) as env:
        other = await AgentClient.connect(
            address=env.server.address, store=tmp_path / "senders", task_queue=env.client.task_queue
        )
        failed = await catch_failure(await other.start("asker", "x" * 500_000))
        assert (failed.type, failed.message) == ("InvalidInput", NOT_FOUND.message)


async def test_a_continued_run_waits_for_a_worker_with_its_input(serve: Serve, tmp_path: Path) -> None:
    """Carried state is trusted, so the run waits instead of failing."""

    def act(request: LlmRequest) -> LlmResponse:
        tool_results = [name for name, _ in responses(request)]
        if len(tool_results) < 5:
            return calls(("add", {"number": 1}))
        return says("Done.") if "ask" in tool_results else calls(("ask", {"what": "now?"}))

    agent = Agent(name="adder", model=FunctionModel(act), tools=[add, LongRunningFunctionTool(ask)])
    async with serve(agent, verify=False) as env:
        invocation = await start_with_cuts(env, "adder", state={"text": "x" * 300_000})
        await wait_for_calls(invocation, "fc-6")

        async def taken_up() -> bool:  # a run that has just continued as new has no workflow task yet
            return len((await invocation.history()).events) > 3

        await wait_until_quiet(invocation)  # it may wait first, and continue as new later
        await wait_until(taken_up, "the latest run taken up")
        await wait_until_quiet(invocation)
        assert await runs(invocation) > 1
        assert "A payload cannot be read: the store does not have" in await without_store(invocation, tmp_path)
        assert (await approve_and_finish(invocation, "fc-6", signal=True)).text == "Done."
