"""Long sessions that continue as new."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.agents import Gate
from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, new_session, settled_events, verify
from tests.server.sessions.test_conversation import words
from tests.server.sessions.test_cuts import LARGE, PAGE, HeldBlobs, at_rest, current_input, parked_at, readings_in
from tests.server.sessions.test_sending import Held, echo
from tests.server.sessions.test_summaries import Talk, send_messages, texts_of_messages
from tests.server.sessions.test_waiting import parked, paying
from tests.steps import wait_for_calls, wait_for_joined_messages, wait_until
from waystation.agents import Agent
from waystation.core.contract import Retries, Settings, WorkflowSettings
from waystation.models import LlmRequest
from waystation.storage import Blobs
from waystation.testing import FunctionModel, calls, responses, says
from waystation.testing.models import Reply, latest_turn
from waystation.tools.function_tool import FunctionTool


async def test_messages_during_continue_as_new_are_answered_once(serve: Serve, tmp_path: Path) -> None:
    """Messages keep their order. A repeated one counts once, and a closed session accepts no more."""
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
        assert (await current_input(session)).carried
        assert [said for said in words(await session.events())[4:]] == [
            line for text in ("m0", "m1", "m2", "m3", "by signal") for line in (f"user: {text}", f"clerk: heard {text}")
        ]
        assert (await current_input(session)).segments
        await verify(session, invocations=False)


async def test_a_message_for_a_terminated_invocation_starts_another(serve: Serve) -> None:
    """The session receives the message and the termination together, the message first."""
    async with serve(echo(), activities=False, verify=False) as env:
        session = new_session(env, "clerk")
        first = await session.send("one")
        await first.started()
    await first.handle.terminate()
    await session.handle.signal("send", {"message": "two", "when_busy": "join"})
    async with serve(echo(), task_queue=env.client.task_queue, verify=False):
        assert (await session.invocation(2).result()).text == "heard two"
        assert [line for line in words(await settled_events(session)) if line != "user: one"] == [
            "user: two",
            "clerk: heard two",
        ]
        await verify(session, invocations=False)


async def test_forged_nudges_change_nothing(converse: Converse) -> None:
    """Forged nudges name a running, a queued, a foreign or no invocation; the session's own history decides."""
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
        assert words(await settled_events(session)) == [
            line for text in ("one", "two", "three") for line in (f"user: {text}", f"clerk: heard {text}")
        ]


async def test_forged_ends_do_not_delay_continue_as_new(converse: Converse) -> None:
    """Forged ends repeatedly report the end of an invocation that waits since an earlier run, without effect."""
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

        await wait_until(heard, "the end of the first invocation")


async def test_many_forged_nudges_cause_few_reads(serve: Serve) -> None:
    """Many forged nudges share a few reads, because each read adds to the session's limited history."""
    async with serve(paying(), verify=False) as env:
        session = new_session(env, "clerk")
        first = await session.send("pay")
        await parked(session, first)
    for number in range(200):
        await session.handle.signal("parked", {"invocation": 1, "at": 10**6 + number})
    async with serve(paying(), task_queue=env.client.task_queue, verify=False):
        assert (await session.say("hello")).text == "heard hello"
        await wait_until(lambda: at_rest(session), "a session that has read what it had to")
        assert await readings_in(session) < 5
        await first.approve()
        assert (await first.result()).text == "paid: {'paid': 5}"
        await settled_events(session)
        await verify(session, invocations=False)


async def test_invocations_of_a_session_continue_in_further_runs(converse: Converse) -> None:
    """A message joins one in its second run, a person answers it there, and the session records all of it."""
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
        await wait_for_joined_messages(await first.invocation())
        gate.open()
        await wait_for_calls(await first.invocation(), "fc-12")
        await parked_at(session, 1)
        assert (await session.say("what was said?")).text == "12 responses"
        await first.approve()
        assert (await first.result()).text == "paid: {'paid': 5}"
        await settled_events(session)
        assert (await session.say("what was said?")).text == "12 responses"
        said = [line[:30] for line in words(await settled_events(session))]
        assert said[:4] == ["user: read", "reader: read all", "user: now pay", "user: what was said?"]


async def test_a_failing_store_does_not_delay_a_conversation(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session stays in its run and keeps its large values there."""
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
        assert not (await current_input(session)).carried
        assert len(await settled_events(session)) == 8
        await verify(session, invocations=False, settings=settings.workflow)


async def test_a_waiting_invocation_survives_three_runs_and_is_answered_once(converse: Converse) -> None:
    """The session continues in new runs; each knows the pending call, and the last one receives its end."""
    async with converse(paying(), cut_after=2) as session:
        first = await session.send("pay")
        await parked(session, first)
        for n in range(6):
            await (await session.send(f"m{n}")).result()
        runs = [run async for run in session.client.temporal.list_workflows(f"WorkflowId = '{session.id}'")]
        assert len(runs) >= 3
        await (await first.invocation()).approve()
        assert (await first.result()).text == "paid: {'paid': 5}"

        async def heard() -> bool:
            return (await session.state()).get("paid") == 5

        await wait_until(heard, "the end of the first invocation")
        await (await session.send("last")).result()
        said = words(await settled_events(session))
        assert said[0] == "user: pay"
        assert said[-3:] == ["clerk: paid: {'paid': 5}", "user: last", "clerk: heard last"]
        assert len(said) == 2 + 2 * 6 + 2


@pytest.mark.parametrize("cut_after", [None, 2], ids=["in one run", "in five runs"])
async def test_a_conversation_over_the_threshold_is_summarized_repeatedly(serve: Serve, cut_after: int | None) -> None:
    """Each summary replaces the one before it, prompts stay below the threshold, and every event is kept."""
    talk = Talk(token_threshold=1_000, event_retention_size=2)
    async with serve(talk.app, verify=False) as env:
        session = await send_messages(env, 9, cut_after)
        events = await settled_events(session)
        await verify(session, invocations=False)
    assert max(talk.sizes) < 1_000
    assert talk.shown[2] == ["m1", "heard m1", "m2", "heard m2", "m3"]
    assert talk.shown[3] == ["summary 1", "heard m3", "m4"]
    assert talk.shown[-1][0] == f"summary {len(talk.summarized)}"
    assert [text.count("summary 1") for text in talk.summarized[:2]] == [0, 1]
    assert [line for line in words(events) if "summary" not in line] == texts_of_messages(9)
