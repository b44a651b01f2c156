"""Attempts at a workflow task: the server shows the one under way as events, whose ids other events get."""

import uuid
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskFailedRequest
from temporalio.client import WorkflowHandle

from waystation.client.agent_client import AgentClient
from waystation.client.connect import connect
from waystation.core.facts import Fact, Signalled, Started
from waystation.core.wire import ANSWER_SIGNAL
from waystation.embedded import EmbeddedServer
from waystation.history import HistoryReader
from waystation.history_pages import events_after


@pytest.fixture
async def client(server: EmbeddedServer) -> AgentClient:
    """A client whose invocations no worker serves."""
    return AgentClient(await connect(address=server.address), task_queue=f"nobody-{uuid.uuid4().hex[:8]}")


async def fail_a_task(client: AgentClient) -> None:
    """Do as a worker whose attempt at a workflow task fails; the next attempt begins at once."""
    service, namespace = client.temporal.workflow_service, client.temporal.namespace
    polled = await service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=client.task_queue))
    )
    await service.respond_workflow_task_failed(
        RespondWorkflowTaskFailedRequest(namespace=namespace, task_token=polled.task_token)
    )


async def signalled(handle: WorkflowHandle[Any, Any]) -> int:
    """Send a signal; return its id in the history."""
    await handle.signal(ANSWER_SIGNAL, "anything")
    events = (await handle.fetch_history()).events
    signal = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return next(event.event_id for event in events if event.event_type == signal)


async def test_what_gets_the_id_of_an_attempt_is_read(client: AgentClient) -> None:
    """A reader that looked during a further attempt sees the signal that came then."""
    invocation = await client.start("nobody", "go")
    await fail_a_task(client)
    shown = (await invocation.handle.fetch_history()).events
    seen = await events_after(client.temporal, invocation.id, "", 0)
    signal = await signalled(invocation.handle)
    assert signal == shown[-1].event_id
    new = await events_after(client.temporal, invocation.id, "", seen[-1].event_id)
    assert signal in [event.event_id for event in new]


async def test_a_stream_tells_what_gets_the_id_of_an_attempt(client: AgentClient) -> None:
    """The long-poll shows the attempt, too, and then the signal."""
    invocation = await client.start("nobody", "go")
    await fail_a_task(client)
    reader, facts = HistoryReader(), list[Fact]()
    pages = invocation.handle.fetch_history_events(wait_new_event=True)
    await pages.fetch_next_page()
    shown = list(pages.current_page or ())
    facts.extend(reader.read(shown))
    assert await signalled(invocation.handle) == shown[-1].event_id
    await pages.fetch_next_page()
    facts.extend(reader.read(pages.current_page or ()))
    assert [type(fact) for fact in facts] == [Started, Signalled]
