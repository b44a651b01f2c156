"""Sessions in programs: handles of queued messages, following, and lists."""

import asyncio
import dataclasses
import gc
import uuid
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, new_session, settled_events
from tests.server.sessions.test_conversation import words
from tests.server.streams.held import Held
from waystation.agents import Agent
from waystation.client import Invocation, Session, connect
from waystation.client.agent_client import AgentClient
from waystation.core import errors
from waystation.core.approval import PendingCall
from waystation.core.contract import MAX_KEYWORD, WORKFLOW, Event, text_of
from waystation.core.log import is_working
from waystation.embedded import EmbeddedServer
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def ask(purpose: str) -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


def asking() -> Agent:
    """Return an agent that asks a person for the message `buy`, and repeats any other message."""

    def reply(request: LlmRequest) -> LlmResponse:
        last = request.contents[-1]["parts"][-1]
        if "functionResponse" in last:
            return says(f"They said {responses(request)[-1][1]['status']}.")
        return calls(("ask", {"purpose": "x"})) if "buy" in last["text"] else says(f"You said {last['text']}.")

    return Agent(name="asker", model=FunctionModel(reply), tools=[LongRunningFunctionTool(ask)])


async def waits(session: Session, number: int) -> PendingCall:
    """Wait until a call of an invocation is pending."""
    async for log in session.invocation(number).follow():
        if log.state.waiting() and not is_working(log.state):
            return log.state.pending()[0]
    raise AssertionError("the invocation ended")


async def test_say_sends_a_message_and_returns_its_answer(converse: Converse) -> None:
    """One call sends a message and waits for the answer."""
    async with converse(asking()) as session:
        assert (await session.say("hello")).text == "You said hello."
        assert (await session.say("again", message_id="m")).text == "You said again."
        assert (await session.say("again", message_id="m")).text == "You said again."
        assert len(await settled_events(session)) == 4


@pytest.mark.slow
async def test_a_handle_of_a_queued_message_waits(converse: Converse) -> None:
    """A handle waits for result, events and answers, even if the session continues as new in the meantime."""
    async with converse(asking(), cut_after=1) as session:
        first, second, third = [await session.send(text) for text in ("one", "buy", "three")]
        assert [sent.status for sent in (first, second, third)] == ["started", "queued", "queued"]
        other = Session(session.client, agent="asker", session_id=session.given.session_id, user_id="ann")
        results = asyncio.gather(first.result(), other.invocation(2).result(), third.result())
        call = await waits(session, 2)
        assert (await second.approve(call.function_call_id))["accepted"]
        texts = [result.text for result in await results]
        assert texts == ["You said one.", "They said approved.", "You said three."]
        assert [event.author async for event in third.stream()] == ["user", "asker"]


@pytest.mark.slow
async def test_all_pending_calls_of_a_conversation_are_listed(converse: Converse) -> None:
    """Pending calls can be answered while the conversation continues."""
    async with converse(asking()) as session:
        await session.send("buy")
        await waits(session, 1)
        await session.say("hello")
        while not (waiting := await session.pending()):
            await asyncio.sleep(0.05)  # visibility lags
        (call,) = waiting
        assert call.invocation_id == f"{session.id}/1"
        await session.invocation(1).reject()
        assert (await session.invocation(1).result()).text == "They said rejected."
        await session.close()
        await session.handle.result()
        assert words(await session.events())[-1] == "asker: They said rejected."


async def test_a_conversation_is_followed_through_all_its_invocations(converse: Converse) -> None:
    """A reader gets earlier events first and then new ones, each once, until the session ends."""
    async with converse(asking(), cut_after=2) as session:
        await session.say("one")
        await session.send("buy")
        await waits(session, 2)
        events: list[Event] = []
        known = asyncio.Event()

        async def listen() -> None:
            async for event in session.follow():
                events.append(event)
                known.set()

        listening = asyncio.create_task(listen())
        await known.wait()
        for text in ("three", "four", "five"):
            await session.say(text)
        await session.invocation(2).approve()
        await session.invocation(2).result()
        await session.close()
        await asyncio.wait_for(listening, 30)
        assert sorted(e.id for e in events) == sorted(e.id for e in await session.events())
        assert [event.id async for event in session.events(start=1)] == [e.id for e in (await session.events())[1:]]
        first = session.invocation(1)
        assert await first.events() == await first.events(follow=False) == [e async for e in first.events()]
        assert words(events)[:3] == ["user: one", "asker: You said one.", "user: buy"]
        assert words(events)[-1] == "asker: They said approved."


async def test_a_conversation_is_followed_with_the_text_that_models_are_generating(converse: Converse) -> None:
    """Yields unfinished text of each invocation before its recorded event."""
    model = Held("It rains.", "It snows.")
    async with converse(Agent(name="speaker", model=model)) as session:
        await session.create()
        seen: list[Event] = []
        has_spoken = [asyncio.Event(), asyncio.Event()]

        async def listen() -> None:
            async for event in session.follow(partial=True):
                seen.append(event)
                if event.partial and event.content:
                    has_spoken[int(event.invocation_id[-1]) - 1].set()

        listening = asyncio.create_task(listen())
        for spoken in has_spoken:
            model.go_on.clear()
            sent = await session.send("Weather?", streaming=True)
            await asyncio.wait_for(spoken.wait(), 30)
            model.go_on.set()
            await sent.result()
        await session.close()
        await asyncio.wait_for(listening, 30)
        recorded = [event for event in seen if not event.partial]
        assert [event.id for event in recorded] == [event.id for event in await session.events()]
        for number, text in ((1, "It rains."), (2, "It snows.")):
            own = [event for event in seen if event.invocation_id == f"{session.id}/{number}"]
            shown = "".join(text_of(event.content) for event in own if event.partial)
            assert shown
            assert text.startswith(shown)
            assert (text_of(own[-1].content), own[-1].partial) == (text, None)


async def read_file(name: str, tool_context: ToolContext) -> dict[str, object]:
    """Read a file."""
    part = await tool_context.load_artifact(name)
    if part is None:
        return {"missing": name}
    blob = part.inline_data
    return {"content": blob.data.decode(), "type": blob.mime_type} if blob and blob.data else {"text": part.text}


def file_reader() -> Agent:
    """Return an agent that reads the file that a message names, and repeats what it found."""

    def reply(request: LlmRequest) -> LlmResponse:
        last = request.contents[-1]["parts"][-1]
        if "functionResponse" in last:
            return says(str(responses(request)[-1][1]))
        return calls(("read_file", {"name": last["text"]}))

    return Agent(name="reader", model=FunctionModel(reply), tools=[read_file])


async def test_a_program_saves_a_file_for_the_tools_of_a_session(serve: Serve) -> None:
    """Only the session of the same tenant, app and user finds it, also before its first message."""
    async with serve(file_reader(), verify=False) as env:
        store = env.services.artifacts
        assert store is not None
        acme, globex = (
            Session(env.client, agent="reader", session_id="s", user_id=env.client.task_queue, app="crm", tenant=tenant)
            for tenant in ("acme", "globex")
        )
        assert await acme.save_artifact("a.csv", b"1;2", mime_type="text/csv", artifacts=store) == 0
        assert await acme.save_artifact("note", "hello", artifacts=store) == 0
        assert await acme.save_artifact("note", "hello again") == 1  # the client knows the store
        assert (await acme.say("a.csv")).text == "{'content': '1;2', 'type': 'text/csv'}"
        assert (await acme.say("note")).text == "{'text': 'hello again'}"
        assert (await globex.say("a.csv")).text == "{'missing': 'a.csv'}"
        with pytest.raises(errors.InvalidInput, match="has no name"):
            await acme.save_artifact("", b"", artifacts=store)


async def test_an_invocation_is_described_with_its_owner(serve: Serve) -> None:
    """The names are complete, although search attributes keep only the beginning of long ones and lack the app."""
    async with serve(asking(), verify=False) as env:
        user = env.client.task_queue + "x" * MAX_KEYWORD
        invocation = await env.client.start("asker", "buy", user_id=user, tenant="acme", app="crm")
        async for log in invocation.follow():
            if log.state.waiting() and not is_working(log.state):
                break
        found = await invocation.describe()
        names = (found.id, found.user_id, found.tenant, found.app, found.agent)
        assert names == (invocation.id, user, "acme", "crm", "asker")
        assert found.status == "waiting"
        assert found.started_at == (await invocation.handle.describe()).start_time
        await invocation.approve()
        await invocation.result()
        assert await invocation.describe() == dataclasses.replace(found, status="completed")


async def test_only_invocations_are_described(converse: Converse) -> None:
    """The errors for a session, an ID without a workflow, and an invalid input name the ID and the reason."""
    async with converse(asking()) as session:
        await session.say("hello")
        described = await session.invocation(1).describe()
        assert (described.user_id, described.tenant, described.agent) == ("ann", None, "asker")
        with pytest.raises(
            errors.ForeignHistory, match="is not an invocation, but a workflow of the type 'AgentSession'"
        ):
            await Invocation.from_id(session.client, session.id).describe()
        with pytest.raises(errors.UnknownInvocation, match="nobody"):
            await Invocation.from_id(session.client, "nobody").describe()
        id = f"{session.id}-odd"
        client = session.client.temporal
        odd = await client.start_workflow(WORKFLOW, {"agent": "asker"}, id=id, task_queue=id)
        with pytest.raises(errors.ForeignHistory, match=r"input of .*-odd' is not valid: message"):
            await Invocation.from_id(session.client, id).describe()
        await odd.terminate()


async def test_a_missing_session_cannot_be_followed(serve: Serve) -> None:
    """A missing session can neither be read, nor closed, nor waited for."""
    async with serve(asking(), verify=False) as env:
        session = new_session(env, "asker")
        with pytest.raises(errors.UnknownSession, match="ann"):
            _ = [event async for event in session.follow()]
        with pytest.raises(errors.UnknownSession):
            await session.invocation(1).result()
        with pytest.raises(errors.UnknownSession):
            await session.close()
        with pytest.raises(errors.UnknownSession):
            await session.send("hello", create=False)


async def test_an_ended_session_never_starts_queued_messages(converse: Converse) -> None:
    """A caller that waits for a queued message of an ended session gets an error."""
    async with converse(Agent(name="clerk", model=ScriptedModel(says("Hello.")))) as session:
        await session.say("hi")
        await session.close()
        await session.handle.result()
        with pytest.raises(errors.SessionClosed, match="ended before"):
            await session.invocation(7).result()
        with pytest.raises(errors.SessionClosed):
            await session.send("hi")


async def test_a_caller_that_stops_waiting_gets_its_own_error(server: EmbeddedServer) -> None:
    """A timeout of the caller stays a timeout, and Ctrl-C does not become an unconfirmed message."""
    client = AgentClient(await connect(address=server.address), task_queue=f"nobody-{uuid.uuid4().hex}")
    session = client.session(agent="asker", session_id=client.task_queue)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await session.send("hello")
    with pytest.raises(errors.MessageUnconfirmed):
        await session.send("hello", confirm_within=timedelta(seconds=0.3))


@pytest.mark.slow
async def test_a_refusal_is_raised_only_once(converse: Converse) -> None:
    """The event loop does not report an exception that nobody retrieved."""
    complaints: list[object] = []
    async with converse(asking()) as session:
        await session.say("hello")
        await session.close()
        await session.handle.result()
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        try:
            with suppress(errors.SessionClosed):
                await session.send("one more")
            gc.collect()
            await asyncio.sleep(0)
        finally:
            asyncio.get_running_loop().set_exception_handler(None)
    assert complaints == []


@pytest.mark.parametrize("name", ["", "x" * 2_000])
async def test_an_invalid_name_is_refused_at_once(server: EmbeddedServer, name: str) -> None:
    """The error is one line without the name, which may be long."""
    client = AgentClient(await connect(address=server.address))
    with pytest.raises(ValueError, match=r"\A[^\n]{20,150}\Z"):
        client.session(agent="asker", session_id=name)
