"""Sessions that go on in further runs, and invocations of theirs that do, at hostile moments."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflow.v1 import PendingActivityInfo

from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, heard_events, new_session, verify
from tests.server.sessions.test_conversation import words
from tests.server.sessions.test_sending import Held, echo
from tests.server.sessions.test_waiting import parked, paying
from tests.server.workflows.outside import Gate, heard_joined, until, waiting
from waystation.agents import Agent
from waystation.client import Session
from waystation.core import COLLECT, Busy, Retries, SessionInput, Settings, WorkflowSettings
from waystation.history import read_json_payloads
from waystation.models import LlmRequest
from waystation.storage import Blobs
from waystation.testing import FunctionModel, calls, responses, says
from waystation.testing.models import Reply, latest_turn
from waystation.tools.function_tool import FunctionTool

LARGE = "x" * 60_000
"""Two of these are more than a run of a session carries as it stands."""


async def given(session: Session) -> SessionInput:
    """Return what the present run of a session was given."""
    first = (await session.handle.fetch_history()).events[0]
    return SessionInput.model_validate_json(
        read_json_payloads(first.workflow_execution_started_event_attributes.input.payloads)[0]
    )


class HeldBlobs(Blobs):
    """A store that keeps whoever brings something waiting, once it is closed."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.gate: Gate | None = None

    async def put(self, data: bytes) -> str:
        """Keep bytes when the gate is open."""
        if self.gate:
            await self.gate.passed()
        return await super().put(data)


async def test_messages_that_come_while_a_session_is_cut_are_answered_once(serve: Serve, tmp_path: Path) -> None:
    """In the order in which they came; a repeated one counts once, and a closed session takes no more."""
    blobs = HeldBlobs(tmp_path / "store")
    async with serve(echo(), blobs=blobs, verify=False) as env:
        session = new_session(env, "clerk", cut_after=2)
        await session.say(LARGE)
        blobs.gate = Gate()
        await session.say(LARGE)
        await blobs.gate.reached()
        sent = [await session.send(f"m{n // 2}", message_id=f"m{n // 2}", when_busy="join") for n in range(8)]
        await session.handle.signal("send", {"message": "by signal"})
        await session.handle.signal("send", {"message": 5})
        await session.close()
        blobs.gate.open()
        assert [(await one.result()).text for one in sent] == [f"heard m{n // 2}" for n in range(8)]
        assert (await session.handle.result())["status"] == "closed"
        assert (await given(session)).carried
        assert [said for said in words(await session.events())[4:]] == [
            line for text in ("m0", "m1", "m2", "m3", "by signal") for line in (f"user: {text}", f"clerk: heard {text}")
        ]
        assert (await given(session)).segments
        await verify(session, invocations=False)


async def test_no_message_is_lost_between_runs(serve: Serve) -> None:
    """Four clients send while the session goes on in a new run after every other answer."""
    async with serve(echo(), verify=False) as env:  # replaying all of them takes a minute
        session = new_session(env, "clerk", cut_after=2)
        await session.create()
        name = session.given.session_id
        clients = [Session(session.client, agent="clerk", session_id=name, user_id="ann") for _ in range(4)]

        async def talk(client: Session, number: int) -> list[str]:
            return [(await client.say(f"{number}.{n}")).text for n in range(2)]

        heard = await asyncio.gather(*(talk(client, number) for number, client in enumerate(clients)))
        assert heard == [[f"heard {number}.{n}" for n in range(2)] for number in range(4)]
        assert (await given(session)).carried
        shown = words(await heard_events(session))
        assert (len(shown), len(set(shown))) == (16, 16)


async def test_a_message_for_an_invocation_that_is_gone_begins_another(serve: Serve) -> None:
    """It was terminated just before the message came; the session is told of both at once, the message first."""
    async with serve(echo(), activities=False, verify=False) as env:
        session = new_session(env, "clerk")
        first = await session.send("one")
        await first.started()
    await first.handle.terminate()
    await session.handle.signal("send", {"message": "two", "when_busy": "join"})
    async with serve(echo(), task_queue=env.client.task_queue, verify=False):
        assert (await session.invocation(2).result()).text == "heard two"
        assert [line for line in words(await heard_events(session)) if line != "user: one"] == [
            "user: two",
            "clerk: heard two",
        ]
        await verify(session, invocations=False)


async def test_a_message_that_joins_too_late_is_answered_all_the_same(converse: Converse) -> None:
    """The turn that it was to join has just ended, or ends meanwhile: each message is answered once."""
    async with converse(echo(), invocations=False) as session:
        sent = []
        for number in range(4):
            sent.append(await session.send(f"first {number}", when_busy="join"))
            if number % 2:
                await sent[-1].result()
            sent.append(await session.send(f"second {number}", when_busy="join"))
        for one in sent:
            await one.result()
        await session.close()
        await session.handle.result()
        said = [line for line in words(await session.events()) if line.startswith("user")]
        expected = [f"user: {which} {number}" for number in range(4) for which in ("first", "second")]
        assert sorted(said) == sorted(expected)


@pytest.mark.parametrize("when_busy", ["join", "reject"])
async def test_an_idle_session_is_known_to_be_idle_after_a_restart(serve: Serve, when_busy: Busy) -> None:
    """A cold worker is given the end of the turn, long known, together with the message, and the message first."""
    async with serve(echo(), verify=False) as env:
        session = new_session(env, "clerk")
        for text in ("one", "two"):
            await session.say(text)
        await heard_events(session)
        await until(lambda: at_rest(session), "a session that knows of the end")
    async with serve(echo(), task_queue=env.client.task_queue, verify=False):
        third = await session.send("three", when_busy=when_busy)
        assert (third.status, third.id) == ("started", f"{session.id}/3")
        assert (await third.result()).text == "heard three"
        assert (await session.say("four")).text == "heard four"
        await verify(session, invocations=False)


async def at_rest(session: Session) -> bool:
    """Whether a session has nothing to do."""
    last = (await session.handle.fetch_history()).events[-1].event_type
    return last == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


async def test_forged_nudges_change_nothing(converse: Converse) -> None:
    """Of an invocation at work, of one that is queued, of another session's, of none: its own history decides."""
    held = Held()
    forged: list[tuple[str, list[Any]]] = [
        (name, [{"invocation": number, "at": at, "id": "session/waystation/bob/other/1"}])
        for name in ("parked", "child_ended")
        for number in (1, 2, 3, 0, -1, 10**30)
        for at in (None, 0, 1, 2, -5, 10**9)
    ]
    async with converse(held.agent(), invocations=False) as session:
        first = await session.send("one")
        await held.asked.wait()
        for name, args in forged:
            await session.handle.signal(name, args=args)
        await session.send("two")
        listed = await session.invocations()
        assert [one["status"] for one in listed] == ["running", "queued"]
        held.go.set()
        assert (await first.result()).text == "heard one"
        assert (await session.say("three")).text == "heard three"
        assert words(await heard_events(session)) == [
            line for text in ("one", "two", "three") for line in (f"user: {text}", f"clerk: heard {text}")
        ]


async def test_forged_ends_hold_up_nothing_when_a_session_is_to_be_cut(converse: Converse) -> None:
    """An invocation that waits since an earlier run is said to be over, again and again."""
    async with converse(paying(), cut_after=2, invocations=False) as session:
        first = await session.send("pay")
        await parked(session, first)
        for number in range(3):
            await session.say(f"m{number}")
        for _ in range(5):
            await session.handle.signal("child_ended", {"invocation": 1})
        async with asyncio.timeout(15):
            assert (await session.say("next")).text == "heard next"
            assert (await session.say("last")).text == "heard last"
        await (await first.invocation()).approve()
        assert (await first.result()).text == "paid: {'paid': 5}"

        async def heard() -> bool:
            return (await session.state()).get("paid") == 5

        await until(heard, "the end of the first invocation")


async def test_many_forged_nudges_have_an_invocation_read_a_few_times(serve: Serve) -> None:
    """Each reading costs the session history, of which the server allows only so much."""
    async with serve(paying(), verify=False) as env:
        session = new_session(env, "clerk")
        first = await session.send("pay")
        await parked(session, first)
    for number in range(200):
        await session.handle.signal("parked", {"invocation": 1, "at": 10**6 + number})
    async with serve(paying(), task_queue=env.client.task_queue, verify=False):
        assert (await session.say("hello")).text == "heard hello"
        await until(lambda: at_rest(session), "a session that has read what it had to")
        assert await readings_in(session) < 5
        await first.approve()
        assert (await first.result()).text == "paid: {'paid': 5}"
        await heard_events(session)
        await verify(session, invocations=False)


async def readings_in(session: Session) -> int:
    """How often the present run of a session has had invocations read."""
    events = (await session.handle.fetch_history()).events
    return sum(e.activity_task_scheduled_event_attributes.activity_type.name == COLLECT.name for e in events)


PAGE = "x" * 250_000
"""Nine of these, and a run of an invocation is cut."""


async def test_invocations_of_a_session_go_on_in_further_runs(converse: Converse) -> None:
    """A message joins one in its second run, a person answers it there, and the session hears all of it."""
    gate = Gate()

    async def read(request: LlmRequest) -> Reply:
        said, told = latest_turn(request)
        pages = [one for name, one in told if name == "fetch"]
        if said == "what was said?":
            return says(f"{len(responses(request))} responses")
        if said == "read" and len(pages) < 11:
            return calls(("fetch", {"page": len(pages)}))
        if said == "read":
            await gate.passed()
            return says("read all")
        return says(f"paid: {told[-1][1]}") if told else calls(("pay", {"amount": 5}))

    def fetch(page: int) -> dict[str, Any]:
        """Fetch a page."""
        return {"page": page, "text": PAGE}

    def pay(amount: int) -> dict[str, int]:
        """Pay."""
        return {"paid": amount}

    tools = [fetch, FunctionTool(pay, require_confirmation=True)]
    async with converse(Agent(name="reader", model=FunctionModel(read), tools=tools), cut_after=1) as session:
        first = await session.send("read")
        await gate.reached()
        assert len(await first.histories()) == 2
        joined = await session.send("now pay", when_busy="join")
        assert joined.status == "joined"
        await heard_joined(await first.invocation())
        gate.open()
        await waiting(await first.invocation(), "fc-12")
        await parked_at(session, 1)
        assert (await session.say("what was said?")).text == "12 responses"
        await first.approve()
        assert (await first.result()).text == "paid: {'paid': 5}"
        await heard_events(session)
        assert (await session.say("what was said?")).text == "12 responses"
        said = [line[:30] for line in words(await heard_events(session))]
        assert said[:4] == ["user: read", "reader: read all", "user: now pay", "user: what was said?"]


async def parked_at(session: Session, number: int) -> None:
    """Wait until the session knows that an invocation waits."""

    async def look() -> bool:
        return any(one["n"] == number and one["status"] == "waiting" for one in await session.invocations())

    await until(look, "an invocation known to wait")


async def attempts(id: str, session: Session) -> list[PendingActivityInfo]:
    """Return the activities of a workflow that failed and will be tried again."""
    described = await session.client.temporal.get_workflow_handle(id).describe()
    return [each for each in described.raw_description.pending_activities if each.HasField("last_failure")]


async def test_a_store_that_comes_back_is_read_and_what_waited_for_it_goes_on(serve: Serve, tmp_path: Path) -> None:
    """A cold worker needs what was put there; until it is, whoever looks is told which store, and what to set."""
    agent, store = echo(), tmp_path / "store"
    async with serve(agent, blobs=Blobs(store), verify=False) as env:
        session = new_session(env, "clerk", cut_after=2)
        for _ in range(2):
            await session.say(LARGE)
        await until(lambda: _cut(session), "a cut")
    assert (await given(session)).segments
    store.rename(tmp_path / "away")
    async with serve(agent, blobs=Blobs(store), task_queue=env.client.task_queue, verify=False):
        sent = await session.send("hello")

        async def failing() -> list[PendingActivityInfo]:
            return await attempts(sent.id, session)

        await sent.started()
        (failed,) = await until(failing, "a failed attempt")
        assert "WAYSTATION_STORE" in failed.last_failure.message
        assert failed.last_failure.application_failure_info.type in ("StoreFailed", "BlobMissing")
        (tmp_path / "away").rename(store)
        assert (await sent.result()).text == "heard hello"
        assert len(await heard_events(session)) == 6
        await verify(session, invocations=False)


async def test_a_store_that_fails_holds_no_conversation_up(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session stays in its run, and has there what is too large for it elsewhere."""
    defaults = WorkflowSettings()
    quickly = replace(
        defaults.archive_session,
        retries=Retries(initial_interval=timedelta(milliseconds=10), maximum_attempts=3),
    )
    settings = Settings(workflow=replace(defaults, archive_session=quickly))
    (tmp_path / "file").write_text("no folder")
    async with serve(echo(), blobs=Blobs(tmp_path / "file" / "store"), verify=False, settings=settings) as env:
        session = new_session(env, "clerk", cut_after=2)
        for _ in range(4):
            assert (await session.say(LARGE * 2)).text == f"heard {LARGE * 2}"
        assert not (await given(session)).carried
        assert len(await heard_events(session)) == 8
        await verify(session, invocations=False, settings=settings.workflow)


async def _cut(session: Session) -> bool:
    return (await given(session)).carried is not None
