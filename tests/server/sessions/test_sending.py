"""A session accepts or refuses messages."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, new_session, settled_events
from tests.server.sessions.test_conversation import texts, words
from tests.server.sessions.turnstile import Late
from tests.steps import make_raw_payload, wait_for_joined_messages
from waystation.agents import Agent
from waystation.client import Sent, Session
from waystation.core.contract import MESSAGE_SIGNAL, SESSION_WORKFLOW
from waystation.core.errors import ModelRefused, QueueFull, SessionBusy, SessionClosed, SessionExists, UnknownSession
from waystation.core.log import AnswerIgnored, intake
from waystation.models import LlmRequest
from waystation.testing import FunctionModel, ScriptedModel, says
from waystation.testing.models import Reply, latest_turn


def echo() -> Agent:
    return Agent(name="clerk", model=FunctionModel(lambda request: says(f"heard {latest_turn(request)[0]}")))


class Held:
    """A model that answers its first message only when the test allows it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.seen: list[list[str]] = []

    async def __call__(self, request: LlmRequest) -> Reply:
        self.seen.append(texts(request.contents))
        self.asked.set()
        await self.go.wait()
        return says(f"heard {self.seen[-1][-1]}")

    def agent(self) -> Agent:
        return Agent(name="clerk", model=FunctionModel(self))


@pytest.mark.slow
async def test_a_message_id_counts_once(converse: Converse) -> None:
    """Sending can be repeated; the receipt reports the repetition."""
    async with converse(echo()) as session:
        first = await session.send("hi", message_id="m-1")
        await first.result()
        repeated = await session.send("hi", message_id="m-1")
        assert (repeated.invocation_id, repeated.duplicate) == (first.invocation_id, True)
        assert words(await settled_events(session)) == ["user: hi", "clerk: heard hi"]


@pytest.mark.slow
async def test_a_busy_session_refuses_a_message_with_reject(converse: Converse) -> None:
    """The refusal has a type and leaves no trace in the conversation."""
    held = Held()
    async with converse(held.agent()) as session:
        first = await session.send("one")
        with pytest.raises(SessionBusy):
            await session.send("two", when_busy="reject")
        held.go.set()
        await first.result()
        assert words(await settled_events(session)) == ["user: one", "clerk: heard one"]


async def test_a_joined_message_reaches_the_running_agent(converse: Converse) -> None:
    """The agent receives it with its next model call, in the same invocation."""
    held = Held()
    async with converse(held.agent()) as session:
        first = await session.send("one")
        await held.asked.wait()
        second = await session.send("two", when_busy="join", requester="bob")
        assert (second.status, second.invocation_id) == ("joined", first.invocation_id)
        invocation = await first.invocation()
        await wait_for_joined_messages(invocation)
        assert "bob" in (await invocation.log()).state.requesters
        held.go.set()
        assert (await first.result()).text == "heard two"
        assert held.seen[-1] == ["one", "heard one", "two"]
        assert words(await settled_events(session)) == [
            "user: one",
            "clerk: heard one",
            "user: two",
            "clerk: heard two",
        ]


async def test_joined_messages_arrive_in_order(serve: Serve) -> None:
    """Joined messages keep their order, although the first one takes a second to arrive."""
    held = Held()
    async with serve(held.agent(), interceptors=[Late("message", 1)], verify=False) as env:
        session = new_session(env, "clerk")
        first = await session.send("one")
        await held.asked.wait()
        for text in ("two", "three"):
            await session.send(text, when_busy="join")
        await wait_for_joined_messages(await first.invocation(), 2)
        held.go.set()
        await first.result()
        assert held.seen[-1] == ["one", "heard one", "two", "three"]


@pytest.mark.slow
async def test_a_message_that_joins_too_late_gets_its_own_invocation(
    converse: Converse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`result` never returns the result of an invocation that missed the message, even to a sender that repeats it."""
    missed, decide = AnswerIgnored("InvalidAnswer", "It arrived after the end."), intake.decide_signal
    monkeypatch.setattr(intake, "decide_signal", lambda *args: missed if args[1] == MESSAGE_SIGNAL else decide(*args))
    held = Held()
    async with converse(held.agent(), invocations=False) as session:
        first = await session.send("one")
        await held.asked.wait()
        second = await session.send("two", when_busy="join", message_id="m-2")
        repeated = await session.send("two", when_busy="join", message_id="m-2")
        assert [(sent.id, sent.duplicate) for sent in (second, repeated)] == [(first.id, False), (first.id, True)]
        held.go.set()
        for sent in (second, repeated, await session.send("two", message_id="m-2")):
            result = await sent.result()
            assert (result.text, result.invocation_id) == ("heard two", f"{session.id}/2")
        assert (await first.result()).text == "heard one"


@pytest.mark.slow
async def test_ten_thousand_messages_are_not_queued(converse: Converse) -> None:
    """The queue is bounded, and the refusal has the remedy."""
    held = Held()
    async with converse(held.agent()) as session:
        await session.send("one")
        results: list[Any] = []
        for batch in range(0, 110, 10):  # the server takes so many updates of one workflow at a time
            batch_of = (session.send(f"m{n}") for n in range(batch, batch + 10))
            results += await asyncio.gather(*batch_of, return_exceptions=True)
        full = [result for result in results if isinstance(result, QueueFull)]
        assert len(full) == 10
        assert "send again" in str(full[0])
        held.go.set()


async def test_a_closed_session_accepts_no_messages(converse: Converse) -> None:
    """The running invocation is finished first; then the session ends."""
    held = Held()
    async with converse(held.agent()) as session:
        first = await session.send("one")
        await session.close()
        with pytest.raises(SessionClosed):
            await session.send("two")
        held.go.set()
        await first.result()
        assert await session.handle.result() == {"status": "closed", "invocations": 1}
        with pytest.raises(SessionClosed):
            await session.send("three")


async def test_an_unknown_session_is_reported(serve: Serve) -> None:
    """An unknown session is reported if the message must not create it."""
    async with serve(echo()) as env:
        with pytest.raises(UnknownSession):
            await new_session(env, "clerk").send("hi", create=False)


@pytest.mark.slow
async def test_two_clients_that_create_a_session_get_the_same(converse: Converse) -> None:
    """The session has both messages."""
    async with converse(echo()) as session:
        one, two = await asyncio.gather(session.send("a"), session.send("b"))
        await one.result()
        await two.result()
        assert len(await settled_events(session)) == 4


@pytest.mark.slow
async def test_creating_a_session_twice_is_refused(converse: Converse) -> None:
    """A second creation is refused with and without state."""
    async with converse(echo()) as session:
        await session.create({"lang": "de"})
        with pytest.raises(SessionExists):
            await session.create({"lang": "en"})
        await (await session.send("hi")).result()
        assert await session.state() == {"lang": "de"}


BAD: dict[str, Any] = {
    "no object": make_raw_payload(b'"hi"'),
    "no message": {"text": "hi"},
    "broken": make_raw_payload(b'{"message": '),
    "a state that is not JSON": make_raw_payload(b'{"message": "hi", "state": {"n": NaN}}'),
    "a function call": {"message": {"parts": [{"functionCall": {"name": "pay", "args": {}}}]}},
    "a policy that there is not": {"message": "hi", "when_busy": "shout"},
    "a message of half a megabyte": {"message": "x" * 500_000},
}


@pytest.mark.slow
async def test_an_invalid_message_is_refused_or_recorded(converse: Converse) -> None:
    """An update fails with a type, a signal is counted, and the session continues."""
    async with converse(echo()) as session:
        await session.create()
        for number, payload in enumerate(BAD.values(), 1):
            with pytest.raises(Exception, match="Workflow update failed") as caught:
                await session.handle.execute_update("send", payload)
            assert isinstance(caught.value.__cause__, ApplicationError)
            assert caught.value.__cause__.type == "InvalidInput"
            await session.handle.signal("send", payload)
            assert (await (await session.send("hi")).result()).text == "heard hi"
            assert (await session.handle.query("invocations"))["refused"] == number


async def test_no_signal_blocks_a_session(converse: Converse) -> None:
    """Forged nudges, unknown names and missing arguments do not block a session."""
    async with converse(echo()) as session:
        await session.create()
        for name, args in (
            ("parked", [{"invocation": 1, "at": 7}]),
            ("parked", ["x"]),
            ("child_ended", [{"invocation": 99}]),
            ("nonsense", []),
            ("send", []),
            ("message", [{"message": "x"}]),
        ):
            await session.handle.signal(name, args=args)
        assert (await (await session.send("hi")).result()).text == "heard hi"


async def test_a_signal_can_start_a_session(serve: Serve) -> None:
    """Signal-with-start is for senders that need no receipt."""
    async with serve(echo()) as env:
        session = new_session(env, "clerk")
        await env.temporal.start_workflow(
            SESSION_WORKFLOW,
            session.given.model_dump(mode="json", exclude_defaults=True),
            id=session.id,
            task_queue=env.client.task_queue,
            start_signal="send",
            start_signal_args=[{"message": "hi"}],
        )
        assert (await Sent(session, f"{session.id}/1", "queued").result()).text == "heard hi"


BAD_STARTS: list[Any] = [{}, "x", {"agent": "clerk", "session_id": "other"}, {"agent": 5, "session_id": "s"}]


async def test_an_invalid_start_fails_with_a_type(serve: Serve) -> None:
    """An invalid start fails with a type, even under the ID of another session."""
    async with serve(echo(), verify=False) as env:
        queue = env.client.task_queue
        id = f"session/waystation/user/bad-{queue}"
        for argument in BAD_STARTS:
            handle = await env.temporal.start_workflow(SESSION_WORKFLOW, argument, id=id, task_queue=queue)
            with pytest.raises(WorkflowFailureError) as caught:
                await handle.result()
            assert isinstance(caught.value.cause, ApplicationError)
            assert caught.value.cause.type == "InvalidInput"


def test_names_do_not_affect_each_others_ids() -> None:
    """Slashes in names are escaped, and names that are too long are refused."""
    client: Any = SimpleNamespace(blobs=None, temporal=None)
    assert Session(client, agent="a", session_id="b/c").id == "session/waystation/user/b%2Fc"
    with pytest.raises(ValueError, match="900"):
        Session(client, agent="a", session_id="ü" * 400)
    with pytest.raises(ValueError, match="empty"):
        Session(client, agent="a", session_id="")


@pytest.mark.slow
async def test_a_failed_invocation_stays_in_the_conversation(converse: Converse) -> None:
    """The conversation has the user's message and the failure; the next message is answered."""
    model = ScriptedModel(ModelRefused("no"), says("fine"))
    async with converse(Agent(name="clerk", model=model)) as session:
        first = await session.send("one")
        with pytest.raises(WorkflowFailureError):
            await first.result()
        assert (await (await session.send("two")).result()).text == "fine"
        assert texts(model.requests[1].contents) == ["one", "two"]
        assert [event.error_code for event in await settled_events(session)] == [None, "ModelFailed", None, None]
        assert [one["status"] for one in await session.invocations()] == ["failed", "completed"]


@pytest.mark.slow
async def test_cancelling_a_session_cancels_its_invocations(converse: Converse) -> None:
    """No invocation of a cancelled session is left."""
    held = Held()
    async with converse(held.agent()) as session:
        first = await session.send("one")
        await held.asked.wait()
        await session.handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await session.handle.result()
        status = (await (await first.invocation()).handle.describe()).status
        assert status is WorkflowExecutionStatus.CANCELED
        assert [error.error_code for error in await session.events() if error.error_code] == ["INVOCATION_CANCELLED"]


@pytest.mark.slow
async def test_an_invocation_whose_start_is_late_is_cancelled_with_its_session(serve: Serve) -> None:
    """The cancellation arrives before the start."""
    async with serve(Held().agent(), interceptors=[Late("start", 1)], verify=False) as env:
        session = new_session(env, "clerk")
        sent = await session.send("one")
        await session.cancel()
        with pytest.raises(WorkflowFailureError):
            await session.handle.result()
        assert (await sent.handle.describe()).status is WorkflowExecutionStatus.CANCELED


@pytest.mark.slow
async def test_a_message_waits_for_a_late_start_in_a_closed_session(serve: Serve) -> None:
    """The session closes before the server has the invocation, which does not count as failed."""
    held = Held()
    held.go.set()
    async with serve(held.agent(), interceptors=[Late("start", 1)], verify=False) as env:
        session = new_session(env, "clerk")
        for text in ("one", "two"):
            await session.send(text)
        await session.close()
        await session.handle.result()
        assert held.seen == [["one"], ["one", "heard one", "two"]]
