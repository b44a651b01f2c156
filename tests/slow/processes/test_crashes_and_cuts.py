"""Workers that are killed during continue-as-new or a summary lose nothing and repeat nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from tests.server.conftest import verify_tree
from tests.server.processes import ledger
from tests.server.processes.agents.collecting.agent import root_agent as collecting
from tests.server.processes.workers import SOON_LOST, Place, WorkerProcess, until
from tests.unit.activities.object_server import ObjectServer, object_server
from waystation.apps.registry import Registry
from waystation.client import Session
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.contract import WORKFLOW, WorkflowSettings
from waystation.worker import create_worker

CUT_AFTER = 40
"""Number of events in three steps, whose pages together are too large to be carried inline."""
PARTS = ("activities", "workflows")

Process: TypeAlias = Callable[[], AbstractAsyncContextManager[WorkerProcess]]
Killed: TypeAlias = Callable[[str], AbstractAsyncContextManager[Process]]


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """Return the store of all workers and clients here, which a test can block."""
    with object_server() as server:
        for name, value in {**server.environment, "WAYSTATION_STORE": "s3://bucket/store"}.items():
            monkeypatch.setenv(name, value)
        yield server
        server.open.set()


@pytest.fixture
def killed(place: Place, client: AgentClient, monkeypatch: pytest.MonkeyPatch) -> Killed:
    """Run workers in this process, except for one part that other processes run until they are killed."""
    monkeypatch.setenv(ledger.VARIABLE, str(place.ledger.folder))

    @asynccontextmanager
    async def killing(part: str) -> AsyncIterator[Process]:
        here = create_worker(
            client.temporal,
            Registry.of(collecting),
            task_queue=place.task_queue,
            workflows=part == "activities",
            activities=part == "workflows",
            settings=SOON_LOST if part == "activities" else None,
        )
        async with here:
            yield lambda: place.worker("--only", part)

    return killing


async def start_with_cuts(client: AgentClient, *batches: Any) -> Invocation:
    """Start an invocation whose runs continue as new after a few events."""
    given = {"agent": "collecting", "message": json.dumps(batches), "cut_after": CUT_AFTER}
    id = f"cut-{client.task_queue}"
    return Invocation(
        client, await client.temporal.start_workflow(WORKFLOW, given, id=id, task_queue=client.task_queue)
    )


def conversation(client: AgentClient) -> Session:
    """Return a session that continues as new after two messages."""
    session = client.session(agent="collecting", session_id=client.task_queue)
    session.given = session.given.model_copy(update={"cut_after": 2})
    return session


async def has_continued(client: AgentClient, id: str) -> bool:
    """Return whether a workflow is in a later run, without visibility, which lags."""
    described = await client.temporal.get_workflow_handle(id).describe()
    return described.run_id != described.raw_description.workflow_execution_info.first_run_id


async def assert_whole(
    invocation: Invocation, pages: list[int], ledger: ledger.Ledger, settings: WorkflowSettings | None = None
) -> None:
    """Verify that all events are there in order, and that each page was fetched and paid for once."""
    log = await invocation.log()
    assert [event.id.rpartition("/e")[2] for event in log.state.events] == [
        str(n + 1) for n in range(len(log.state.events))
    ]
    told = [part["response"] for event in log.state.events for part in event.function_responses()]
    assert [each["number"] for each in told if "number" in each] == pages
    keys = [line["key"] for line in ledger.lines("fetched") if line["key"].startswith(f"{invocation.id}/")]
    assert len(keys) == len(set(keys)) == len(pages)
    assert [line["key"] for line in ledger.lines("paid")] == [f"{invocation.id}/fc-{pages.index(4) + 1}"]
    await verify_tree(invocation, settings)


@pytest.mark.parametrize("part", PARTS)
async def test_an_invocation_survives_workers_killed_around_continue_as_new(
    place: Place, client: AgentClient, store: ObjectServer, killed: Killed, part: str
) -> None:
    """One worker is killed while it stores the log, and the next right after continue-as-new; the third one pays."""
    async with killed(part) as process, AsyncExitStack() as stack:
        first = await stack.enter_async_context(process())
        store.open.clear()
        invocation = await start_with_cuts(client, [1], [2], [3], "pay", [4], [5], [6])
        await until(store.knocked.is_set, "a log on its way to the store")
        await until(invocation.pending, "the call to confirm")
        await first.kill()
        second = await stack.enter_async_context(process())
        store.open.set()
        await until(lambda: has_continued(client, invocation.id), "a cut")
        await second.kill()
        await stack.enter_async_context(process())
        await invocation.approve()
        assert (await invocation.result()).text == '[1, 2, 3, "paid", 4, 5, 6]'
        settings = SOON_LOST.workflow if part == "activities" else None
        await assert_whole(invocation, [1, 2, 3, 4, 5, 6], place.ledger, settings)


@pytest.mark.parametrize("part", PARTS)
async def test_a_session_survives_workers_killed_around_continue_as_new(
    place: Place, client: AgentClient, store: ObjectServer, killed: Killed, part: str
) -> None:
    """The third worker answers messages that arrived in between, with all earlier ones."""
    async with killed(part) as process, AsyncExitStack() as stack:
        first = await stack.enter_async_context(process())
        session = conversation(client)
        await session.say("[[1, 2]]")
        store.open.clear()
        await session.say("[[3, 4]]")
        await until(store.knocked.is_set, "a transcript on its way to the store")
        late_answer = asyncio.create_task(session.say("[[5]]", message_id="late"))
        await first.kill()
        second = await stack.enter_async_context(process())
        store.open.set()
        await until(lambda: has_continued(client, session.id), "a cut")
        await second.kill()
        await stack.enter_async_context(process())
        assert (await late_answer).text == "[1, 2, 3, 4, 5]"
        assert (await session.say("[[6]]")).text == "[1, 2, 3, 4, 5, 6]"
        await session.close()
        assert await session.handle.result() == {"status": "closed", "invocations": 4}
        said = [event.invocation_id.rpartition("/")[2] for event in await session.events()]
        assert said == [number for number in "1234" for _ in range(4)]
        assert (await session.state())["latest"] == 6
        assert sorted(line["number"] for line in place.ledger.lines("fetched")) == [1, 2, 3, 4, 5, 6]


async def test_a_summary_of_a_killed_worker_is_made_again(place: Place, client: AgentClient) -> None:
    """A summary of a killed worker is made again; one is recorded, and the model sees one."""
    deciding = create_worker(client.temporal, Registry(), task_queue=place.task_queue, activities=False)
    async with deciding, AsyncExitStack() as stack:
        first = await stack.enter_async_context(place.worker("--only", "activities"))
        invocation = await client.start("digesting", "Read all.")
        await until(lambda: place.ledger.lines("thinking"), "a model that is shown a summary")
        await first.kill()
        place.ledger.open("thought")
        await stack.enter_async_context(place.worker("--only", "activities"))
        assert (await invocation.result()).text == "pages were read; Read all."
        assert [line["attempt"] for line in place.ledger.lines("thinking")] == [1, 2]
        assert len(place.ledger.lines("summarized")) == 2
        events = (await invocation.log()).state.events
        assert [event.author for event in events if event.covered] == ["user"]
        read = [part["response"]["page"] for event in events for part in event.function_responses()]
        assert read == list(range(1, len(read) + 1))
        await verify_tree(invocation)


async def test_two_cold_workers_continue_the_work_of_another(
    place: Place, client: AgentClient, store: ObjectServer
) -> None:
    """Two cold workers read an invocation and a session, both continued as new, from history and store."""
    session = conversation(client)
    async with place.worker() as first:
        invocation = await start_with_cuts(client, [1], [2], [3], "pay", [4, 5, 6, 7])
        for batch in ("[[10, 11]]", "[[12, 13]]", "[[14, 15]]"):
            await session.say(batch)
        await until(lambda: has_continued(client, invocation.id), "a cut")
        await until(lambda: has_continued(client, session.id), "another cut")
        await until(invocation.pending, "the call to confirm")
        await first.stop()
    assert store.objects
    async with AsyncExitStack() as stack:
        for part in ("workflows", "activities", "activities"):
            await stack.enter_async_context(place.worker("--only", part))
        before = len(place.ledger.lines("fetched"))
        sent = [await session.send(f"[{batch}]") for batch in ([16, 17, 18, 19], [20, 21, 22, 23])]
        await invocation.approve()
        said = await asyncio.gather(invocation.result(), *(message.result() for message in sent))
        assert [result.text for result in said] == [
            '[1, 2, 3, "paid", 4, 5, 6, 7]',
            str([*range(10, 20)]),
            str([*range(10, 24)]),
        ]
        assert len({line["pid"] for line in place.ledger.lines("fetched")[before:]}) == 2
        await assert_whole(invocation, [1, 2, 3, 4, 5, 6, 7], place.ledger)
