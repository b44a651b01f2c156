"""After every test of sessions, replay them and compare what readers see with the workflow's state."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.server.conftest import Serve, Verification
from tests.steps import find_stuck_tasks, wait_until
from waystation.agents import BaseAgent
from waystation.client import Invocation, Session
from waystation.core.contract import SESSION_WORKFLOW, Event, Settings, WorkflowSettings
from waystation.replay import replay
from waystation.testing import AgentEnvironment, Replays, assert_invocation_holds, assert_replays

Converse: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[Session]]

_names = itertools.count()


async def verify(
    session: Session,
    *,
    replays: Replays = Replays.PRODUCTION,
    invocations: bool = True,
    settings: WorkflowSettings | None = None,
) -> None:
    """Check every run of a session and its invocations, and compare what readers see with the workflow's state.

    Tests with many invocations leave these to the others.
    """
    query = f"WorkflowType = '{SESSION_WORKFLOW}' AND WorkflowId = '{session.id}'"
    runs = [run.run_id async for run in session.client.temporal.list_workflows(query)]
    for run_id in runs:
        history = await session.client.temporal.get_workflow_handle(session.id, run_id=run_id).fetch_history()
        if replays is Replays.STRICT:
            await assert_replays(history, session.client.temporal.data_converter, settings)
        else:
            await replay(history, converter=session.client.temporal.data_converter, settings=settings)
        assert find_stuck_tasks(history) == []
        for event in history.events:
            child = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            if child and invocations:
                invocation = Invocation.from_id(session.client, child)
                await assert_invocation_holds(invocation, replays=replays, settings=settings)

    # Work in flight continues between the two reads.
    looks = list[object]()

    async def agree() -> bool:
        held = await session.handle.query("events", 0)
        events_read = [event.to_json() for event in await session.events()]
        state, held_state = await session.state(), dict(await session.handle.query("state"))
        looks[:] = events_read, held, state, held_state
        is_same = held["archived"] or [_timeless(event) for event in events_read] == [
            _timeless(e) for e in held["events"]
        ]
        return is_same and state == held_state

    try:
        await wait_until(agree, "readers see the events and the state that the workflow holds")
    except AssertionError as error:
        error.add_note(f"events, held events, state, held state: {looks}")
        raise


def _timeless(event: dict[str, Any]) -> dict[str, Any]:
    # A message's time is that of its start in history for readers, and that of the workflow's clock for the workflow.
    return {key: value for key, value in event.items() if key != "timestamp"}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a folder of the test for payloads outside the history."""
    monkeypatch.setenv("WAYSTATION_STORE", str(tmp_path / "store"))


@pytest.fixture
def converse(serve: Serve, verification: Verification) -> Converse:
    """Serve agents, and yield a new session with the first of them."""

    @contextlib.asynccontextmanager
    async def conversing(
        *agents: BaseAgent, cut_after: int | None = None, invocations: bool = True, **options: Any
    ) -> AsyncIterator[Session]:
        async with serve(*agents, verify=False, **options) as env:
            session = new_session(env, agents[0].name, cut_after=cut_after)
            yield session
            workflow_settings = (options.get("settings") or Settings()).workflow
            replays = verification.next_replays()
            await verify(session, replays=replays, invocations=invocations, settings=workflow_settings)

    return conversing


def new_session(env: AgentEnvironment, agent: str, *, cut_after: int | None = None) -> Session:
    """Return a session that does not exist yet."""
    session = env.client.session(agent=agent, session_id=f"s{next(_names)}-{env.client.task_queue}", user_id="ann")
    if cut_after is not None:
        session.given = session.given.model_copy(update={"cut_after": cut_after})
    return session


async def settled_events(session: Session) -> list[Event]:
    """Return the events once the session has the end of every finished invocation.

    A client may receive a result a moment before the session does.
    """

    async def look() -> bool:
        reader = await session._read_history()
        return all(log.state.outcome.ended for log in reader.transcript.logs.values())

    await wait_until(look, "every invocation over")
    return await session.events()
