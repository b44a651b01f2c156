"""Sessions and their invocations continue as new at inconvenient moments."""

import asyncio
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflow.v1 import PendingActivityInfo

from tests.agents import Gate
from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, new_session, settled_events, verify
from tests.server.sessions.test_conversation import words
from tests.server.sessions.test_sending import echo
from tests.steps import wait_until
from waystation.client import Session
from waystation.core.projection import COLLECT
from waystation.core.session_log import Busy, SessionInput
from waystation.history import read_json_payloads
from waystation.storage import Blobs

LARGE = "x" * 60_000
"""Two of these are more than a run of a session carries inline."""


async def current_input(session: Session) -> SessionInput:
    """Return the input of the current run of a session."""
    first = (await session.handle.fetch_history()).events[0]
    return SessionInput.model_validate_json(
        read_json_payloads(first.workflow_execution_started_event_attributes.input.payloads)[0]
    )


class HeldBlobs(Blobs):
    """A store that lets writers wait while it is closed."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.gate: Gate | None = None

    async def put(self, data: bytes, *, workflow_id: str = "") -> str:
        """Store bytes when the gate is open."""
        if self.gate:
            await self.gate.passed()
        return await super().put(data, workflow_id=workflow_id)


async def test_no_message_is_lost_between_runs(serve: Serve) -> None:
    """Four clients send while the session continues as new after every second answer."""
    async with serve(echo(), verify=False) as env:  # replaying all of them takes a minute
        session = new_session(env, "clerk", cut_after=2)
        await session.create()
        name = session.given.session_id
        clients = [Session(session.client, agent="clerk", session_id=name, user_id="ann") for _ in range(4)]

        async def talk(client: Session, number: int) -> list[str]:
            return [(await client.say(f"{number}.{n}")).text for n in range(2)]

        answers = await asyncio.gather(*(talk(client, number) for number, client in enumerate(clients)))
        assert answers == [[f"heard {number}.{n}" for n in range(2)] for number in range(4)]
        assert (await current_input(session)).carried
        lines = words(await settled_events(session))
        assert (len(lines), len(set(lines))) == (16, 16)


@pytest.mark.slow
async def test_a_message_that_joins_too_late_is_still_answered(converse: Converse) -> None:
    """A message that arrives when the turn has just ended, or is ending, is answered once."""
    async with converse(echo(), invocations=False) as session:
        sent = []
        for number in range(2):
            sent.append(await session.send(f"first {number}", when_busy="join"))
            if number % 2:
                await sent[-1].result()
            sent.append(await session.send(f"second {number}", when_busy="join"))
        for one in sent:
            await one.result()
        await session.close()
        await session.handle.result()
        user_lines = [line for line in words(await session.events()) if line.startswith("user")]
        expected = [f"user: {which} {number}" for number in range(2) for which in ("first", "second")]
        assert sorted(user_lines) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("when_busy", ["join", "reject"])
async def test_an_idle_session_stays_idle_after_a_restart(serve: Serve, when_busy: Busy) -> None:
    """A cold worker receives the old end of the turn together with the new message, and the message first."""
    async with serve(echo(), verify=False) as env:
        session = new_session(env, "clerk")
        for text in ("one", "two"):
            await session.say(text)
        await settled_events(session)
        await wait_until(lambda: at_rest(session), "a session that knows of the end")
    async with serve(echo(), task_queue=env.client.task_queue, verify=False):
        third = await session.send("three", when_busy=when_busy)
        assert (third.status, third.id) == ("started", f"{session.id}/3")
        assert (await third.result()).text == "heard three"
        assert (await session.say("four")).text == "heard four"
        await verify(session, invocations=False)


async def at_rest(session: Session) -> bool:
    """Return whether a session has no work."""
    last = (await session.handle.fetch_history()).events[-1].event_type
    return last == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


async def readings_in(session: Session) -> int:
    """Return how often the current run of a session has read invocations."""
    events = (await session.handle.fetch_history()).events
    return sum(e.activity_task_scheduled_event_attributes.activity_type.name == COLLECT.name for e in events)


PAGE = "x" * 250_000
"""After nine of these, an invocation continues as new."""


async def parked_at(session: Session, number: int) -> None:
    """Wait until the session knows that an invocation waits."""

    async def look() -> bool:
        return any(one["n"] == number and one["status"] == "waiting" for one in await session.invocations())

    await wait_until(look, "an invocation known to wait")


async def attempts(id: str, session: Session) -> list[PendingActivityInfo]:
    """Return the failed activities of a workflow that will be retried."""
    described = await session.client.temporal.get_workflow_handle(id).describe()
    return [each for each in described.raw_description.pending_activities if each.HasField("last_failure")]


@pytest.mark.slow
async def test_a_session_continues_when_its_store_is_back(serve: Serve, tmp_path: Path) -> None:
    """A cold worker needs the stored data; until then, readers get the name of the store and the setting."""
    agent, store = echo(), tmp_path / "store"
    async with serve(agent, blobs=Blobs(store), verify=False) as env:
        session = new_session(env, "clerk", cut_after=2)
        for _ in range(2):
            await session.say(LARGE)
        await wait_until(lambda: _cut(session), "a cut")
    assert (await current_input(session)).segments
    store.rename(tmp_path / "away")
    async with serve(agent, blobs=Blobs(store), task_queue=env.client.task_queue, verify=False):
        sent = await session.send("hello")

        async def failing() -> list[PendingActivityInfo]:
            return await attempts(sent.id, session)

        await sent.started()
        (failed,) = await wait_until(failing, "a failed attempt")
        assert "WAYSTATION_STORE" in failed.last_failure.message
        assert failed.last_failure.application_failure_info.type in ("StoreFailed", "BlobMissing")
        (tmp_path / "away").rename(store)
        assert (await sent.result()).text == "heard hello"
        assert len(await settled_events(session)) == 6
        await verify(session, invocations=False)


async def _cut(session: Session) -> bool:
    return (await current_input(session)).carried is not None
