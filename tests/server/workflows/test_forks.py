"""Forks continue from an event of another invocation without repeating its work."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    catch_failure,
    reject_and_finish,
    start_and_finish,
    start_and_get_call,
    start_and_wait,
    wait_for_calls,
    wait_for_ignored_answers,
    wait_until,
)
from waystation.agents import Agent
from waystation.approvers.audit import create_account
from waystation.core.contract import Event, Settings
from waystation.core.errors import InvalidInput
from waystation.history import format_saved_history
from waystation.models import LlmRequest, LlmResponse
from waystation.models.google_llm import Gemini
from waystation.replay import Recording, replay
from waystation.testing import FakeGemini, FunctionModel, calls, responses, says, user_text
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def shape(events: list[Event]) -> list[object]:
    """Return the content of events without their authors' invocations and times."""
    return [(event.author, event.content, event.actions.state_delta) for event in events]


class Shop:
    """Tools that count their runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def price(self, item: str) -> dict[str, int]:
        """Look a price up."""
        self.ran.append(f"price {item}")
        return {"price": 7}

    def pay(self, amount: int) -> dict[str, str]:
        """Pay."""
        self.ran.append(f"pay {amount}")
        return {"paid": f"{amount}"}

    def buyer(self, **options: Any) -> Agent:
        """Return an agent that looks up a price, pays, and reports it."""

        def act(request: LlmRequest) -> LlmResponse:
            tools_run = [name for name, _ in responses(request)]
            if "price" not in tools_run:
                return calls(("price", {"item": user_text(request)}))
            if "pay" not in tools_run:
                return calls(("pay", {"amount": dict(responses(request))["price"]["price"]}))
            return says(f"Bought {user_text(request)}: {dict(responses(request))['pay']}")

        paying = FunctionTool(self.pay, **options)
        return Agent(name="buyer", model=FunctionModel(act), tools=[self.price, paying])


async def test_recorded_work_before_the_event_is_reused(serve: Serve) -> None:
    """Work before the event does not run again; the first new step is the one after the event."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        fork = await env.client.forks.start(source.id, 3)
        assert (await fork.result()).text == (await source.result()).text
        assert shop.ran == ["price tea", "pay 7", "pay 7"]
        ours, theirs = (await fork.log()).state.events, (await source.log()).state.events
        assert shape(ours) == shape(theirs)
        assert {event.invocation_id for event in ours} == {fork.id}


async def test_an_approval_of_the_source_lets_nothing_run_in_the_fork(serve: Serve) -> None:
    """One approval pays once: a call that had not run by the event is pending again, and its answer may differ."""
    shop = Shop()
    async with serve(shop.buyer(require_confirmation=True)) as env:
        source = await start_and_wait(env.client.start("buyer", "tea"), "fc-2")
        await approve_and_finish(source, "fc-2")
        assert shop.ran == ["price tea", "pay 7"]
        approved = len((await source.log()).state.events)
        for event in range(4, approved - 1):  # from the call to just before its response
            fork = await start_and_wait(env.client.forks.start(source.id, event), "fc-2")
            await reject_and_finish(fork, "fc-2")
        assert shop.ran == ["price tea", "pay 7"]


async def test_a_fork_of_a_waiting_invocation_leaves_it_waiting(serve: Serve) -> None:
    """Source and fork each wait for their own answer, with the time that was left at the event."""
    shop = Shop()
    async with serve(shop.buyer(require_confirmation=True)) as env:
        source, theirs = await start_and_get_call(env.client.start("buyer", "tea"), "fc-2")
        fork = await env.client.forks.start(source.id, len((await source.log()).state.events))
        [ours] = await wait_for_calls(fork, "fc-2")
        assert ours.digest == theirs.digest
        assert ours.deadline > theirs.deadline
        await approve_and_finish(fork, "fc-2")
        assert shop.ran == ["price tea", "pay 7"]
        assert [call.function_call_id for call in await source.pending()] == ["fc-2"]
        await reject_and_finish(source, "fc-2")


async def test_a_fork_of_a_fork_continues_from_it(serve: Serve) -> None:
    """Each fork names the previous one as its source."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        first = await env.client.forks.start(source.id, 3)
        await first.result()
        second = await env.client.forks.start(first.id, 5)
        assert (await second.result()).text == (await source.result()).text
        assert shop.ran == ["price tea", "pay 7", "pay 7"]
        assert second.id == f"{source.id}~1~1"


async def test_lineage_is_visible_in_both(serve: Serve) -> None:
    """The source lists its forks, and a fork names its source in its input, its memo and its audit."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        forks = [await env.client.forks.start(source.id, event) for event in (3, 5)]
        for fork in forks:
            await fork.result()

        async def known() -> bool:
            return [(each.id, each.event) for each in await env.client.forks.of(source.id)] == [
                (forks[0].id, 3),
                (forks[1].id, 5),
            ]

        await wait_until(known, "both forks found")
        started = (await forks[0].log()).state.input
        assert started is not None
        assert started.fork is not None
        assert (started.fork.invocation_id, started.fork.event) == (source.id, 3)
        memo = await (await forks[0].handle.describe()).memo()
        assert memo["waystation_fork"] == {"invocation_id": source.id, "event": 3}
        account = create_account(await forks[0].log())
        assert account[0]["fork"] == {"invocation_id": source.id, "event": 3}
        assert [(each["kind"], each.get("call")) for each in account if "forked" in each] == [
            ("began", None),
            ("started", "fc-1"),
            ("finished", "fc-1"),
        ]


async def test_scope_writes_of_the_source_are_not_sent_again(serve: Serve) -> None:
    """Scope writes from before the event are not sent again."""

    def visit(tool_context: ToolContext) -> dict[str, int]:
        """Count a visit."""
        count = int(tool_context.state.get("user:visits", 0)) + 1
        tool_context.state["user:visits"] = count
        return {"visits": count}

    def act(request: LlmRequest) -> LlmResponse:
        return says(str(dict(responses(request)))) if responses(request) else calls(("visit", {}))

    agent = Agent(name="visitor", model=FunctionModel(act), tools=[visit], instruction="{user:visits?}")
    async with serve(agent) as env:
        source = await start_and_finish(env.client.start("visitor", "go", user_id="ann", app=env.client.task_queue))
        fork = await env.client.forks.start(source.id, 3)
        await fork.result()
        log = await fork.log()
        assert log.state.session.values["user:visits"] == 1
        types = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for history in await fork.histories()
            for event in history.events
        ]
        assert [kind for kind in types if kind] == ["take_over", "call_model"]


async def test_a_long_invocation_is_taken_over_through_the_store(serve: Serve) -> None:
    """Large entries do not pass through the fork's history."""
    model = FunctionModel(
        lambda request: says("Done.") if len(responses(request)) == 6 else calls(("read", {"size": 60_000}))
    )

    def read(size: int) -> dict[str, str]:
        """Read a lot."""
        return {"text": "x" * size}

    async with serve(Agent(name="reader", model=model, tools=[read])) as env:
        source = await start_and_finish(env.client.start("reader", "go"))
        fork = await env.client.forks.start(source.id, 13)
        assert (await fork.result()).text == "Done."
        ours, theirs = [
            sum(event.ByteSize() for run in await each.histories() for event in run.events) for each in (fork, source)
        ]
        assert ours < theirs / 1.5
        assert shape((await fork.log()).state.events) == shape((await source.log()).state.events)


async def test_an_unanswered_called_agent_is_called_by_the_fork(serve: Serve) -> None:
    """The fork calls the agent again, in another invocation below the fork."""
    helper_requests: list[str] = []

    def helped(request: LlmRequest) -> LlmResponse:
        helper_requests.append(user_text(request))
        return says("42")

    helper = Agent(name="helper", model=FunctionModel(helped), description="Helps.")
    model = FunctionModel(
        lambda request: says("Done.") if responses(request) else calls(("helper", {"request": "help"}))
    )
    async with serve(Agent(name="caller", model=model, tools=[AgentTool(helper)])) as env:
        source = await start_and_finish(env.client.start("caller", "go"))
        fork = await env.client.forks.start(source.id, 2)
        await fork.result()
        assert helper_requests == ["help", "help"]
        assert (await env.client.invocation(f"{fork.id}/fc-1").result()).text == "42"
        later = await env.client.forks.start(source.id, 3)
        await later.result()
        assert helper_requests == ["help", "help"]


IMPOSSIBLE: list[tuple[int, dict[str, Any], str]] = [
    (99, {}, "has 6 events; there is no event 99"),
    (3, {"results": {"fc-1": {"price": 1}}}, "Call 'fc-1' is not about to run"),
    (3, {"results": {"fc-7": {}}}, "Call 'fc-7' is not about to run"),
]


async def test_an_impossible_fork_is_refused_before_anything_starts(serve: Serve) -> None:
    """An impossible fork is refused with the reason."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        for event, options, problem in [*IMPOSSIBLE, (3, {"id": source.id}, "already exists")]:
            with pytest.raises(InvalidInput, match=problem):
                await env.client.forks.start(source.id, event, **options)
            assert shop.ran == ["price tea", "pay 7"]


async def test_an_answer_that_arrives_while_the_fork_starts_is_recorded_as_ignored(serve: Serve) -> None:
    """No answer is lost: the run that continues has it."""
    shop = Shop()
    async with serve(shop.buyer(require_confirmation=True)) as env:
        source = await start_and_wait(env.client.start("buyer", "tea"), "fc-2")
        queue = env.client.task_queue
    fork = await env.client.forks.start(source.id, 4)
    await fork.approve("fc-2", signal=True)
    async with serve(shop.buyer(require_confirmation=True), task_queue=queue, adopt=[source, fork]):
        await wait_for_calls(fork, "fc-2")
        assert await wait_for_ignored_answers(fork, 1) == ["UnknownCall"]
        for each in (fork, source):
            await reject_and_finish(each, "fc-2")


async def test_a_fork_may_have_its_own_instruction_and_model(serve: Serve, gemini: FakeGemini) -> None:
    """Where workers allow it, the model is called by the other name and with the other instruction."""
    agent = Agent(name="writer", model="gemini-3.5-flash", instruction="Be brief.")
    for _ in range(2):
        gemini.reply(text="Hi.")
    model = Gemini(base_url=gemini.url, api_key="key")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(model.close)
        env = await stack.enter_async_context(serve(agent, settings=Settings(allow_overrides=True), model=model))
        source = await start_and_finish(env.client.start("writer", "go"))
        fork = await env.client.forks.start(source.id, 1, instruction="Be long.", model="gemini-3.5-pro")
        await fork.result()
        _, second = gemini.requests
        assert "gemini-3.5-pro" in second.path
        assert "Be long." in str(second.body["systemInstruction"])
        assert "Be brief." not in str(second.body)


@pytest.mark.parametrize("name", ["helper", "nobody"])
async def test_an_instruction_for_an_agent_that_the_fork_never_runs_is_refused(serve: Serve, name: str) -> None:
    """A called agent has its own invocation, so the instruction would have no effect."""
    helper = Agent(name="helper", model=FunctionModel(lambda _: says("Here.")))
    agent = Agent(name="writer", model=FunctionModel(lambda _: says("Hi.")), tools=[AgentTool(helper)])
    async with serve(agent, settings=Settings(allow_overrides=True)) as env:
        source = await start_and_finish(env.client.start("writer", "go"))
        fork = await env.client.forks.start(source.id, 1, agent=name, instruction="Be long.")
        refused = (await catch_failure(fork)).message
        assert refused.startswith(f"'{name}' has no model in an invocation of 'writer'")
        assert "`agent` can be: writer." in refused


async def test_a_fork_is_cancelled_like_any_invocation(serve: Serve) -> None:
    """A fork can be cancelled even before a worker has started it."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        queue = env.client.task_queue
    fork = await env.client.forks.start(source.id, 3)
    await fork.handle.cancel()
    async with serve(shop.buyer(), task_queue=queue, adopt=[fork]):
        with pytest.raises(WorkflowFailureError):
            await fork.result()
        assert (await fork.log()).state.events[-1].error_code == "INVOCATION_CANCELLED"


async def test_a_recording_of_a_fork_contains_the_inherited_entries(serve: Serve, tmp_path: Path) -> None:
    """The file can be inspected like any other, and replays."""
    shop = Shop()
    async with serve(shop.buyer()) as env:
        source = await start_and_finish(env.client.start("buyer", "tea"))
        fork = await env.client.forks.start(source.id, 3)
        await fork.result()
        file = tmp_path / "fork.json"
        file.write_text(json.dumps(format_saved_history(await fork.saved())))
        recording = await Recording.read(file)
        assert shape(recording.at(6).state.events) == shape((await source.log()).state.events)
        assert len(recording.histories) == 2
        for history in recording.histories:
            await replay(history)
