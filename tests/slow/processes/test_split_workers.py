"""Workflows in one process, models and tools in others: each process reads the others' results from history."""

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, Interceptor

from tests.server.conftest import verify_tree
from tests.server.processes.workers import Place, plan, until
from waystation.activities.log_cache import LogCache
from waystation.activities.model_choice import Models
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.client.agent_client import AgentClient
from waystation.core.log import Body, EntryRef
from waystation.storage import Blobs
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.worker import create_worker


async def test_two_activity_workers_see_one_conversation(place: Place, client: AgentClient) -> None:
    """Models and tools are split between two workers; each sees everything before it. Workflows need no agents."""
    async with AsyncExitStack() as stack:
        for options, queue in (
            (("--only", "workflows"), place.task_queue),
            (("--only", "activities"), place.task_queue),
            (("--only", "activities"), f"{place.task_queue}-elsewhere"),
        ):
            await stack.enter_async_context(place.worker(*options, task_queue=queue))
        here, there = "remember", "remember_elsewhere"
        invocation = await client.start(
            "planned",
            plan(
                [(there, {"word": "a"}), (here, {"word": "b"}), (there, {"word": "c"}), (here, {"word": "d"})],
                [(there, {"word": "e"})],
                [(here, {"word": "f"}), (there, {"word": "g"})],
            ),
        )
        result = await invocation.result()
        await verify_tree(invocation)
    told = json.loads(result.text)
    assert [(tool, told["known"]) for tool, told in told] == [
        *((there, []), (here, []), (there, []), (here, [])),
        (there, ["a", "b", "c", "d"]),
        *((here, ["a", "b", "c", "d", "e"]), (there, ["a", "b", "c", "d", "e"])),
    ]
    processes = {tool: {each["pid"] for name, each in told if name == tool} for tool in (here, there)}
    assert len(processes[here]) == len(processes[there]) == 1
    assert processes[here] != processes[there]
    assert sorted(result.state_delta) == ["a", "b", "c", "d", "e", "f", "g"]


async def test_workers_of_one_queue_may_run_any_part(place: Place, client: AgentClient) -> None:
    """The results are the same as in one process, for several simultaneous invocations, too."""
    words = [f"{batch}{call}" for batch in "abc" for call in range(4)]
    batches = [[("remember", {"word": word}) for word in words[start : start + 4]] for start in range(0, 12, 4)]
    async with AsyncExitStack() as stack:
        for only in ("workflows", "activities", "activities"):
            await stack.enter_async_context(place.worker("--only", only))
        results = await asyncio.gather(*(client.run("planned", plan(*batches)) for _ in range(3)))
    told = [[each for _, each in json.loads(result.text)] for result in results]
    for each in told:
        assert [one["known"] for one in each] == [words[:before] for before in range(0, 12, 4) for _ in range(4)]
    assert len({one["pid"] for each in told for one in each}) == 2


async def test_eight_branches_of_five_tools_are_one_log_to_every_process(place: Place, client: AgentClient) -> None:
    """Each branch receives its own five results, and no write of the forty calls is lost."""
    async with AsyncExitStack() as stack:
        for only in ("workflows", "activities", "activities"):
            await stack.enter_async_context(place.worker("--only", only))
        invocation = await client.start("wide", "go")
        result = await invocation.result()
        await verify_tree(invocation)
        log = await invocation.log()
    words = {f"m{member}-{number}" for member in range(8) for number in range(5)}
    assert set(result.state_delta) == words
    assert sorted(log.state.calls) == sorted(f"fc-{turn}-{number}" for turn in range(1, 9) for number in range(1, 6))
    said = {event.author: event for event in log.state.events if event.content and "text" in event.content["parts"][0]}
    for member in range(8):
        event = said[f"m{member}"]
        assert event.branch == f"wide.m{member}"
        known = json.loads((event.content or {})["parts"][0]["text"])
        # The five ran at once: each saw whole batches of other branches, and no results of its own batch.
        assert len(known) == 5
        for each in known:
            assert set(each) <= words
            assert len(each) % 5 == 0
            assert not any(word.startswith(f"m{member}-") for word in each)


class Silent(Interceptor):
    """Keeps a worker's heartbeats from the server, so that it counts as lost although it works."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Intercept the activities."""

        class Outbound(ActivityOutboundInterceptor):
            def heartbeat(self, *details: Any) -> None:
                pass

        class Inbound(ActivityInboundInterceptor):
            def init(self, outbound: ActivityOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound(next)


class WatchedLogs(LogCache):
    """A cache that records the references of results from its process."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.made: list[str] = []

    def put(self, run_id: str, ref: EntryRef, body: Body, size: int) -> None:
        """Store a result."""
        self.made.append(str(ref))
        super().put(run_id, ref, body, size)


async def test_a_late_result_is_not_used(place: Place, client: AgentClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that counts as lost finishes its call after another one did; later it uses the recorded result."""
    views: list[WatchedLogs] = []

    def watched(client: Client, _blobs: Blobs) -> WatchedLogs:
        views.append(WatchedLogs(client))
        return views[-1]

    monkeypatch.setattr("waystation.worker.plugin.LogCache", watched)
    begun, given_up, taken_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> dict[str, str]:
        """Return when its call is no longer awaited."""
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):  # the SDK cancels it if this takes long
            await given_up.wait()
        return {"by": "slow"}

    async def fast() -> dict[str, str]:
        """Return when the worker stops, so that it receives no more work."""
        taken_over.set()
        await activity.wait_for_worker_shutdown()
        return {"by": "fast"}

    model = ScriptedModel(calls(("race", {})), says("done"))

    def registry(race: Any) -> Registry:
        race.__name__ = "race"
        tool = FunctionTool(race, heartbeat_timeout=timedelta(seconds=1))
        return Registry.of(Agent(name="racer", model=model, tools=[tool]))

    options: dict[str, Any] = {"models": Models(), "task_queue": place.task_queue, "workflows": False}
    deciding = create_worker(client.temporal, Registry(), task_queue=place.task_queue, activities=False)
    late = create_worker(
        client.temporal, registry(slow), max_concurrent_activities=1, interceptors=[Silent()], **options
    )
    # A client serves a task queue with one worker.
    other = create_worker((await place.client()).temporal, registry(fast), **options)
    of_late, of_other = views  # a worker without activities reads no history
    async with deciding, late:
        invocation = await client.start("racer", "go")
        # The only place of the slow worker is taken from here on, so the other one gets the second attempt.
        await begun.wait()
        async with other:
            await taken_over.wait()
            given_up.set()
            await until(lambda: len(of_late.made) == 2, "the result that nobody waits for")
        assert (await invocation.result()).text == "done"
        await verify_tree(invocation)
    assert responses(model.requests[-1]) == [("race", {"by": "fast"})]
    assert [ref.partition(".")[0] for ref in of_late.made] == ["m1", "fc-1", "m2"]
    assert [ref.partition(".")[0] for ref in of_other.made] == ["fc-1"]
    assert [each.reads for each in views] == [2, 1]
