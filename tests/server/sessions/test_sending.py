"""What a session takes, and what it refuses."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, heard_events, new_session
from tests.server.sessions.test_conversation import texts, words
from tests.server.sessions.turnstile import Late
from tests.server.workflows.outside import bytes_of, heard_joined
from waystation.agents import Agent
from waystation.client import Sent, Session
from waystation.core import (
    MESSAGE_SIGNAL,
    SESSION_WORKFLOW,
    AnswerIgnored,
    ModelRefused,
    QueueFull,
    SessionBusy,
    SessionClosed,
    SessionExists,
    UnknownSession,
)
from waystation.core.approval import decision
from waystation.models import LlmRequest
from waystation.testing import FunctionModel, ScriptedModel, says
from waystation.testing.models import Reply, latest_turn


def echo() -> Agent:
    return Agent(name="clerk", model=FunctionModel(lambda request: says(f"heard {latest_turn(request)[0]}")))


class Held:
    """A model that answers its first message only when it is let go."""

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


async def test_the_same_message_id_counts_once(converse: Converse) -> None:
    """Sending can be repeated; the receipt says so."""
    async with converse(echo()) as session:
        first = await session.send("hi", message_id="m-1")
        await first.result()
        again = await session.send("hi", message_id="m-1")
        assert (again.invocation_id, again.duplicate) == (first.invocation_id, True)
        assert words(await heard_events(session)) == ["user: hi", "clerk: heard hi"]


async def test_a_busy_session_refuses_what_is_not_to_wait(converse: Converse) -> None:
    """`reject` is typed, and leaves no trace in the conversation."""
    held = Held()
    async with converse(held.agent()) as session:
        first = await session.send("one")
        with pytest.raises(SessionBusy):
            await session.send("two", when_busy="reject")
        held.go.set()
        await first.result()
        assert words(await heard_events(session)) == ["user: one", "clerk: heard one"]


async def test_a_joined_message_reaches_the_agent_at_work(converse: Converse) -> None:
    """It is told at its next model call, in the same invocation."""
    held = Held()
    async with converse(held.agent()) as session:
        first = await session.send("one")
        await held.asked.wait()
        second = await session.send("two", when_busy="join")
        assert (second.status, second.invocation_id) == ("joined", first.invocation_id)
        await heard_joined(await first.invocation())
        held.go.set()
        assert (await first.result()).text == "heard two"
        assert held.seen[-1] == ["one", "heard one", "two"]
        assert words(await heard_events(session)) == ["user: one", "clerk: heard one", "user: two", "clerk: heard two"]


async def test_joined_messages_arrive_in_order(serve: Serve) -> None:
    """The first one takes a second to arrive."""
    held = Held()
    async with serve(held.agent(), interceptors=[Late("message", 1)], verify=False) as env:
        session = new_session(env, "clerk")
        first = await session.send("one")
        await held.asked.wait()
        for text in ("two", "three"):
            await session.send(text, when_busy="join")
        await heard_joined(await first.invocation(), 2)
        held.go.set()
        await first.result()
        assert held.seen[-1] == ["one", "heard one", "two", "three"]


async def test_a_message_that_joins_too_late_is_followed_to_its_own_invocation(
    converse: Converse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`result` is never that of the invocation that missed the message, also for a sender that sent it again."""
    missed, decide = AnswerIgnored("InvalidAnswer", "It arrived after the end."), decision.decide_signal
    monkeypatch.setattr(decision, "decide_signal", lambda *args: missed if args[1] == MESSAGE_SIGNAL else decide(*args))
    held = Held()
    async with converse(held.agent(), invocations=False) as session:
        first = await session.send("one")
        await held.asked.wait()
        second = await session.send("two", when_busy="join", message_id="m-2")
        again = await session.send("two", when_busy="join", message_id="m-2")
        assert [(sent.id, sent.duplicate) for sent in (second, again)] == [(first.id, False), (first.id, True)]
        held.go.set()
        for sent in (second, again, await session.send("two", message_id="m-2")):
            result = await sent.result()
            assert (result.text, result.invocation_id) == ("heard two", f"{session.id}/2")
        assert (await first.result()).text == "heard one"


async def test_ten_thousand_messages_are_not_queued(converse: Converse) -> None:
    """The queue is bounded, and the refusal says what to do."""
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


async def test_a_closed_session_takes_nothing(converse: Converse) -> None:
    """What runs is finished first; then the session is over."""
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


async def test_an_unknown_session_is_told_as_such(serve: Serve) -> None:
    """When it is not to be begun by the message."""
    async with serve(echo()) as env:
        with pytest.raises(UnknownSession):
            await new_session(env, "clerk").send("hi", create=False)


async def test_two_clients_that_create_a_session_get_the_same(converse: Converse) -> None:
    """Both messages are in it."""
    async with converse(echo()) as session:
        one, two = await asyncio.gather(session.send("a"), session.send("b"))
        await one.result()
        await two.result()
        assert len(await heard_events(session)) == 4


async def test_creating_a_session_twice_is_refused(converse: Converse) -> None:
    """With its state, or not at all."""
    async with converse(echo()) as session:
        await session.create({"lang": "de"})
        with pytest.raises(SessionExists):
            await session.create({"lang": "en"})
        await (await session.send("hi")).result()
        assert await session.state() == {"lang": "de"}


BAD: dict[str, Any] = {
    "no object": bytes_of(b'"hi"'),
    "no message": {"text": "hi"},
    "broken": bytes_of(b'{"message": '),
    "a state that is no JSON": bytes_of(b'{"message": "hi", "state": {"n": NaN}}'),
    "a function call": {"message": {"parts": [{"functionCall": {"name": "pay", "args": {}}}]}},
    "a policy that there is not": {"message": "hi", "when_busy": "shout"},
    "a message of half a megabyte": {"message": "x" * 500_000},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD.keys())
async def test_a_bad_message_is_refused_or_noted(converse: Converse, given: Any) -> None:
    """The update fails typed; the signal is counted; the session goes on."""
    async with converse(echo()) as session:
        await session.create()
        with pytest.raises(Exception, match="Workflow update failed") as caught:
            await session.handle.execute_update("send", given)
        assert isinstance(caught.value.__cause__, ApplicationError)
        assert caught.value.__cause__.type == "InvalidInput"
        await session.handle.signal("send", given)
        assert (await (await session.send("hi")).result()).text == "heard hi"
        assert (await session.handle.query("invocations"))["refused"] == 1


async def test_signals_of_any_kind_do_not_stick_a_session(converse: Converse) -> None:
    """Forged nudges, unknown names, no arguments."""
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


async def test_a_signal_begins_a_session_too(serve: Serve) -> None:
    """Signal-with-start is for those who need no receipt."""
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


@pytest.mark.parametrize("given", [{}, "x", {"agent": "clerk", "session_id": "other"}, {"agent": 5, "session_id": "s"}])
async def test_a_bad_start_fails_typed(serve: Serve, given: Any) -> None:
    """Also one under the id of another session."""
    async with serve(echo(), verify=False) as env:
        queue = env.client.task_queue
        id = f"session/waystation/user/bad-{queue}"
        handle = await env.temporal.start_workflow(SESSION_WORKFLOW, given, id=id, task_queue=queue)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, ApplicationError)
        assert caught.value.cause.type == "InvalidInput"


def test_names_do_not_reach_into_one_another() -> None:
    """A slash in a name is not one in the id; too long ones are refused."""
    client: Any = SimpleNamespace(blobs=None, temporal=None)
    assert Session(client, agent="a", session_id="b/c").id == "session/waystation/user/b%2Fc"
    with pytest.raises(ValueError, match="900"):
        Session(client, agent="a", session_id="ü" * 400)
    with pytest.raises(ValueError, match="empty"):
        Session(client, agent="a", session_id="")


async def test_a_failed_invocation_stays_in_the_conversation(converse: Converse) -> None:
    """What the user said is there, and that it failed; the next message is answered."""
    model = ScriptedModel(ModelRefused("no"), says("fine"))
    async with converse(Agent(name="clerk", model=model)) as session:
        first = await session.send("one")
        with pytest.raises(WorkflowFailureError):
            await first.result()
        assert (await (await session.send("two")).result()).text == "fine"
        assert texts(model.requests[1].contents) == ["one", "two"]
        assert [event.error_code for event in await heard_events(session)] == [None, "ModelFailed", None, None]
        assert [one["status"] for one in await session.invocations()] == ["failed", "completed"]


async def test_cancelling_a_session_cancels_its_invocations(converse: Converse) -> None:
    """None is left behind."""
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


async def test_an_invocation_whose_start_is_late_is_cancelled_with_its_session(serve: Serve) -> None:
    """The request to cancel it overtakes its start."""
    async with serve(Held().agent(), interceptors=[Late("start", 1)], verify=False) as env:
        session = new_session(env, "clerk")
        sent = await session.send("one")
        await session.cancel()
        with pytest.raises(WorkflowFailureError):
            await session.handle.result()
        assert (await sent.handle.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_message_waits_for_an_invocation_whose_start_is_late_in_a_closed_session(serve: Serve) -> None:
    """The session is closed before the server knows the invocation, which has not failed for that reason."""
    held = Held()
    held.go.set()
    async with serve(held.agent(), interceptors=[Late("start", 1)], verify=False) as env:
        session = new_session(env, "clerk")
        for text in ("one", "two"):
            await session.send(text)
        await session.close()
        await session.handle.result()
        assert held.seen == [["one"], ["one", "heard one", "two"]]
