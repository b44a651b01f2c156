"""Reading a history while it grows, even if the server shows unsettled events or refuses a position."""

import uuid
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskFailedRequest
from temporalio.client import (
    Client,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowHandle,
    WorkflowHistoryEventAsyncIterator,
)

from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session
from tests.server.sessions.test_client import ask, asking
from tests.steps import wait_for_calls
from waystation.agents import Agent
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.core.contract import ANSWER_SIGNAL
from waystation.core.projection import Fact, Started
from waystation.core.projection.facts import Signalled
from waystation.embedded import EmbeddedServer
from waystation.history import HistoryPoll, HistoryReader, continued_as, decode_events, fetch_events_after, find_run_id
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.worker import announce_agents


@pytest.fixture
async def client(server: EmbeddedServer) -> AgentClient:
    """Return a client without a worker for its invocations."""
    temporal = await connect(address=server.address)
    await announce_agents(temporal, [Agent(name="nobody")])
    return AgentClient(temporal, task_queue=f"nobody-{uuid.uuid4().hex[:8]}")


async def fail_a_task(client: AgentClient) -> None:
    """Fail an attempt at a workflow task as a worker would; the next attempt begins at once."""
    service, namespace = client.temporal.workflow_service, client.temporal.namespace
    polled = await service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=client.task_queue))
    )
    await service.respond_workflow_task_failed(
        RespondWorkflowTaskFailedRequest(namespace=namespace, task_token=polled.task_token)
    )


async def signalled(handle: WorkflowHandle[Any, Any]) -> int:
    """Send a signal; return its ID in the history."""
    await handle.signal(ANSWER_SIGNAL, "anything")
    events = (await handle.fetch_history()).events
    signal = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return next(event.event_id for event in events if event.event_type == signal)


async def test_an_event_that_reuses_the_id_of_an_attempt_is_read(client: AgentClient) -> None:
    """A reader that looked during another attempt sees the signal that arrived then."""
    invocation = await client.start("nobody", "go")
    await fail_a_task(client)
    recorded = (await invocation.handle.fetch_history()).events
    events = await fetch_events_after(client.temporal, invocation.id, "", 0)
    signal = await signalled(invocation.handle)
    assert signal == recorded[-1].event_id
    new = await fetch_events_after(client.temporal, invocation.id, "", events[-1].event_id)
    assert signal in [event.event_id for event in new]


async def test_a_stream_yields_an_event_that_reuses_the_id_of_an_attempt(client: AgentClient) -> None:
    """A stream whose long-poll showed the attempt yields the signal afterward."""
    invocation = await client.start("nobody", "go")
    await fail_a_task(client)
    reader, facts = HistoryReader(), list[Fact]()
    pages = invocation.handle.fetch_history_events(wait_new_event=True)
    await pages.fetch_next_page()
    recorded = list(pages.current_page or ())
    converter = client.temporal.data_converter
    facts.extend(reader.read(await decode_events(recorded, converter)))
    assert await signalled(invocation.handle) == recorded[-1].event_id
    await pages.fetch_next_page()
    facts.extend(reader.read(await decode_events(pages.current_page or (), converter)))
    assert [type(fact) for fact in facts] == [Started, Signalled]


class Ahead(Interceptor):
    """Makes readers claim once per run that they saw more changes than exist, which the server refuses."""

    def __init__(self) -> None:
        self.claimed: set[str] = set()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Intercept the client's own calls."""
        claimed = self.claimed

        class Claiming(WorkflowHistoryEventAsyncIterator):
            async def fetch_next_page(self, *, page_size: int | None = None) -> None:
                await super().fetch_next_page(page_size=page_size)
                page, token = self.current_page, self._next_page_token
                if not page or not token or page[0].event_id != 1:
                    return
                run_id = find_run_id(page)
                if run_id not in claimed:
                    claimed.add(run_id)
                    # The token ends with the number of changes that were seen; those here are fewer than 127.
                    assert token[-4:-1] == b"Z\x02\x10"
                    self._next_page_token = token[:-1] + b"\x7f"

        class Reading(OutboundInterceptor):
            def fetch_workflow_history_events(
                self, input: FetchWorkflowHistoryEventsInput
            ) -> WorkflowHistoryEventAsyncIterator:
                return Claiming(super().fetch_workflow_history_events(input)._client, input)

        return Reading(next)

    def client_of(self, env: AgentEnvironment) -> AgentClient:
        """Return a client with such readers."""
        config = env.temporal.config()
        config["interceptors"] = [self]
        return AgentClient(Client(**config), task_queue=env.client.task_queue, blobs=env.client.blobs)


async def test_a_reader_that_the_server_restarts_continues_in_place(serve: Serve) -> None:
    """A reader whose position the server refuses gets each event once."""
    model = ScriptedModel(calls(("ask", {"purpose": "tea"})), says("Bought."))
    async with serve(Agent(name="buyer", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        ahead = Ahead()
        invocation = await ahead.client_of(env).start("buyer", "Buy tea.")
        numbers = []
        async for event in invocation.stream():
            numbers.append(event)
            if event.long_running_tool_ids:
                await wait_for_calls(invocation, "fc-1")
                await invocation.approve()
        # Not their times: who reads while the history grows cannot know yet that an empty workflow task will be
        # followed by another at once, together with which a replay takes it.
        events = (await invocation.log()).state.events
        assert [(event.id, event.author, event.content) for event in numbers] == [
            (event.id, event.author, event.content) for event in events
        ]
        assert len(ahead.claimed) == 1


async def test_a_run_that_is_read_again_is_complete_despite_later_runs(serve: Serve) -> None:
    """Nothing that it started is missed."""
    async with serve(asking(), verify=False) as env:
        ahead = Ahead()
        session = new_session(env, "asker", cut_after=1)
        await session.say("one")
        growing = HistoryPoll(ahead.client_of(env).temporal, session.id)
        events = list(await growing.page())
        for text in ("two", "three", "four"):
            await session.say(text)
        latest = await session.handle.describe()
        while growing.more:
            events += await growing.page()
        assert find_run_id(events) in ahead.claimed
        assert latest.run_id not in (find_run_id(events), continued_as(events[-1]))
        assert [event.event_id for event in events].count(1) == 2
