"""Typical work records a bounded number of events and bytes, so that an increase is noticed."""

import uuid
from functools import partial

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.server.conftest import Serve
from tests.server.processes.workers import until
from tests.steps import approve_and_finish, start_and_finish, start_and_wait
from waystation.agents import Agent
from waystation.core import ids
from waystation.core.contract import MEMO_FILLER
from waystation.history import get_attributes
from waystation.history.history_events import patch_of
from waystation.models import LlmResponse
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools import FunctionTool

QUESTION, ANSWER = "q" * 900, "a" * 900
ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
ENDED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED
TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
}


def look_up(key: str) -> str:
    """Look up a key."""
    return "r" * 100


def pay(key: str) -> str:
    """Pay."""
    return "r" * 100


def clerk(*replies: LlmResponse) -> Agent:
    """Return an agent with a tool that runs at once and one that needs an approval."""
    tools = [look_up, FunctionTool(pay, require_confirmation=True)]
    return Agent(name="clerk", model=ScriptedModel(*replies), tools=tools)


def is_filler(event: HistoryEvent) -> bool:
    """Return whether an event only fills a workflow task; see decision 0039."""
    attributes = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
    memo = event.workflow_properties_modified_event_attributes.upserted_memo.fields
    return patch_of(event) == ids.FILLED or MEMO_FILLER in memo or "TemporalChangeVersion" in attributes


def recorded(events: list[HistoryEvent]) -> tuple[int, int]:
    """Return the number of events and their bytes, except workflow tasks, whose number may depend on the timing, and
    the fillers of empty ones.

    The identities of workers are not counted, because they contain the name of the machine.
    """
    kept = [event for event in events if event.event_type not in TASKS and not is_filler(event)]
    for event in kept:
        attributes = get_attributes(event)
        if "identity" in attributes.DESCRIPTOR.fields_by_name:
            attributes.ClearField("identity")
    return len(kept), sum(event.ByteSize() for event in kept)


async def history_of(env: AgentEnvironment, id: str) -> list[HistoryEvent]:
    """Return the events of a workflow."""
    return list((await env.temporal.get_workflow_handle(id).fetch_history()).events)


async def has_ended(env: AgentEnvironment, session: str, number: int) -> bool:
    """Return whether a session knows that this many invocations have ended. Clients know a moment earlier."""
    return sum(event.event_type == ENDED for event in await history_of(env, session)) == number


@pytest.mark.parametrize(("calls_made", "events", "at_most"), [(1, 11, 2_640), (5, 23, 5_270)])
async def test_an_invocation_with_tool_calls_records_no_more(
    serve: Serve, calls_made: int, events: int, at_most: int
) -> None:
    """Each model call and each tool call is one activity, and no text is recorded more often than necessary."""
    async with serve(clerk(calls(*[("look_up", {"key": "k"})] * calls_made), says("f" * 200))) as env:
        invocation = await start_and_finish(env.client.start("clerk", "go"))
        count, size = recorded(await history_of(env, invocation.id))
        assert count == events
        assert size <= at_most


async def test_an_approval_records_no_more(serve: Serve) -> None:
    """Besides the update, an approval takes a memo, two changes of search attributes, and a timer."""
    async with serve(clerk(calls(("pay", {"key": "k"})), says("f" * 200))) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        await approve_and_finish(invocation)
        count, size = recorded(await history_of(env, invocation.id))
        assert count == 17
        assert size <= 4_100


@pytest.mark.slow
async def test_a_message_of_a_session_records_no_more(serve: Serve) -> None:
    """The session and the invocation each record the message and the answer no more often than Temporal requires."""
    async with serve(clerk(says(ANSWER), says(ANSWER), says(ANSWER))) as env:
        session = env.client.session(agent="clerk", session_id=uuid.uuid4().hex[:8])
        for number in range(1, 4):  # before the second one, the session finds out that there are search attributes
            await session.say(QUESTION)
            await until(partial(has_ended, env, session.id, number), "the end of the invocation")
        await session.close()
        await session.handle.result()
        events = await history_of(env, session.id)
        updates = [i for i, event in enumerate(events) if event.event_type == ACCEPTED]
        of_session, size = recorded(events[updates[2] : updates[3]])
        of_invocation, more = recorded(await history_of(env, f"{session.id}/3"))
        assert (of_session, of_invocation) == (5, 5)
        assert size + more <= 9_000
