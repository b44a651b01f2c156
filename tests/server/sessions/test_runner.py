"""Runners and session services of a program, on a server."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from tests.steps import wait_until
from waystation.agents import Agent, RunConfig
from waystation.agents.run_config import StreamingMode
from waystation.core.errors import AuthoringError, InvocationError, ModelRefused
from waystation.embedded import EmbeddedServer
from waystation.errors import AlreadyExistsError, SessionNotFoundError
from waystation.events import Event, EventActions
from waystation.runners import InMemoryRunner, Runner
from waystation.sessions import BACKGROUND, DatabaseSessionService, InMemorySessionService, Session
from waystation.sessions.base_session_service import GetSessionConfig
from waystation.sessions.program_run import ProgramRun
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools import FunctionTool, LongRunningFunctionTool, ToolContext

APP, USER = "app", "ann"
DATABASE = "sqlite:///sessions.db"


@pytest.fixture(autouse=True)
def _program(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ProgramRun, "_opened", {})


@pytest.fixture(scope="module", autouse=True)
async def _workers() -> AsyncIterator[None]:
    yield
    await BACKGROUND.call(BACKGROUND.stop_workers())


def ask() -> dict[str, str]:
    """Ask a person."""
    return {"status": "pending"}


def text(message: str) -> types.Content:
    """Return a user's message."""
    return types.Content(role="user", parts=[types.Part(text=message)])


def answer(*responses: types.FunctionResponse) -> types.Content:
    """Return a message with function responses."""
    return types.Content(role="user", parts=[types.Part(function_response=response) for response in responses])


def texts(events: list[Event]) -> list[str]:
    """Return the texts of the agents."""
    return [part.text for event in events for part in (event.content and event.content.parts) or () if part.text]


def kill(run: ProgramRun) -> None:
    """End the program's run as if its process were killed."""
    assert run._lock is not None
    run._lock.close()
    run._lock = None
    ProgramRun._opened.clear()


def end(run: ProgramRun) -> None:
    """End the program's run as its process does."""
    run._file.end()
    kill(run)


async def runner_of(agent: Agent, *sessions: str) -> Runner:
    """Return a runner with these sessions."""
    service = InMemorySessionService()
    for session_id in sessions:
        await service.create_session(app_name=APP, user_id=USER, session_id=session_id, state={"city": "Bern"})
    return Runner(agent=agent, app_name=APP, session_service=service)


async def send(runner: Runner, message: types.Content, session_id: str = "s") -> list[Event]:
    """Send a message and return the events."""
    return [e async for e in runner.run_async(user_id=USER, session_id=session_id, new_message=message)]


@pytest.mark.slow
async def test_session_has_the_events_and_the_state_of_its_runs() -> None:
    """As soon as the events of a run end, the session contains them."""
    runner = await runner_of(
        Agent(name="writer", model=ScriptedModel(says("Hi."), says("Bye.")), output_key="last"), "s"
    )
    assert texts(await send(runner, text("Hello."))) == ["Hi."]
    first = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id="s")
    assert texts([*runner.run(user_id=USER, session_id="s", new_message=text("Ciao."))]) == ["Bye."]
    second = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id="s")
    assert first is not None
    assert second is not None
    assert texts(first.events) == ["Hello.", "Hi."]
    assert texts(second.events) == ["Hello.", "Hi.", "Ciao.", "Bye."]
    assert second.state == {"city": "Bern", "last": "Bye."}


async def test_final_function_response_closes_the_call() -> None:
    """A client may first send responses that announce others. After the final one, the invocation has ended."""
    model = ScriptedModel(calls(("ask", {})), says("I asked."), says("Still waiting."), says("Approved."))
    runner = await runner_of(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)]), "s")
    events = await send(runner, text("Go."))
    (call_id,) = next(event.long_running_tool_ids for event in events if event.long_running_tool_ids)
    replies = []
    for status, will_continue in (("seen", True), ("approved", None)):
        response = types.FunctionResponse(
            id=call_id, name="ask", response={"status": status}, will_continue=will_continue
        )
        replies.append(texts(await send(runner, answer(response))))
    assert (texts(events), replies) == (["I asked."], [["Still waiting."], ["Approved."]])
    with pytest.raises(ValueError, match=r"has its final response.*`will_continue=True`"):
        await send(runner, answer(types.FunctionResponse(id=call_id, name="ask", response={})))


async def test_responses_in_one_message_call_the_model_once() -> None:
    """As in ADK, the model sees all responses of a message together."""
    model = ScriptedModel(calls(("ask", {}), ("ask", {})), says("I asked."), says("Both."))
    runner = await runner_of(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)]), "s")
    events = await send(runner, text("Go."))
    ids = sorted(next(event.long_running_tool_ids for event in events if event.long_running_tool_ids))
    responses = [types.FunctionResponse(id=id, name="ask", response={"status": "approved"}) for id in ids]
    assert texts(await send(runner, answer(*responses))) == ["Both."]


async def test_confirmations_in_one_message_yield_all_responses() -> None:
    """The tool of the first one may return before the second one is recorded. Nothing is sent if one is not valid."""

    def pay(amount: int) -> int:
        """Pay."""
        return amount

    model = ScriptedModel(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), says("Paid."))
    runner = await runner_of(
        Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)]), "s"
    )
    asked = await send(runner, text("Go."))
    (ids,) = (sorted(event.long_running_tool_ids) for event in asked if event.long_running_tool_ids)

    def confirm(*confirmed: object) -> types.Content:
        bodies = [{"response": json.dumps({"confirmed": value})} for value in confirmed]
        make = partial(types.FunctionResponse, name="adk_request_confirmation")
        return answer(*(make(id=id, response=body) for id, body in zip(ids, bodies, strict=True)))

    with pytest.raises(ValueError, match="still pending"):
        await send(runner, confirm(True, "maybe"))
    events = await send(runner, confirm(True, "no"))
    responses = [response.response for event in events for response in event.get_function_responses()]
    assert responses == [{"result": 1}, {"error": "This tool call is rejected."}]
    assert texts(events) == ["Paid."]


async def test_state_next_to_a_function_response_is_refused() -> None:
    """The state of a waiting invocation cannot be changed from outside, so the change is not dropped silently."""
    runner = await runner_of(Agent(name="stateful", model=ScriptedModel()), "s")
    message = answer(types.FunctionResponse(id="fc-1", name="ask", response={}))
    with pytest.raises(ValueError, match="`state_delta` cannot be sent with function responses"):
        async for _ in runner.run_async(user_id=USER, session_id="s", new_message=message, state_delta={"a": 1}):
            pass


async def test_appended_state_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next invocation starts with appended state. No worker must run, and a resumed program does not repeat it."""

    async def begin() -> tuple[InMemorySessionService, Session]:
        service = InMemorySessionService()
        session = await service.create_session(app_name=APP, user_id=USER, session_id="s", state={"city": "Bern"})
        actions = EventActions(state_delta={"city": "Basel", "seen": 1, "temp:x": 1})
        await service.append_event(session, Event(author="system", actions=actions))
        return service, session

    async def read(service: InMemorySessionService) -> dict[str, Any] | None:
        session = await service.get_session(app_name=APP, user_id=USER, session_id="s")
        return session.state if session else None

    def move(tool_context: ToolContext) -> None:
        """Move to another city."""
        tool_context.state["city"] = f"not {tool_context.state['city']}"

    service, session = await begin()
    assert await read(service) == session.state == {"city": "Basel", "seen": 1}
    agent = Agent(name="mover", model=ScriptedModel(calls(("move", {})), says("Done.")), tools=[move])
    await send(Runner(agent=agent, app_name=APP, session_service=service), text("Go."))
    assert await read(service) == {"city": "not Basel", "seen": 1}
    handle = await BACKGROUND.call(service.handle(APP, USER, "s"))
    assert await BACKGROUND.call(handle.handle.query("state")) == {"city": "not Basel", "seen": 1}

    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    kill(service.run)
    monkeypatch.setattr(InMemorySessionService, "_numbers", itertools.count(service._number))
    assert await read((await begin())[0]) == {"city": "not Basel", "seen": 1}


@pytest.mark.parametrize(
    ("id", "problem"),
    [
        ("fc-9", "Function call not found for function response ids"),
        (None, r"The function response of 'ask' has no ID\. Copy the `id` of its call"),
    ],
)
async def test_response_without_a_call_is_refused(id: str | None, problem: str) -> None:
    """A response needs a call with its ID. An unknown ID has ADK's message; ADK ignores a response without one."""
    runner = await runner_of(Agent(name="refuser", model=ScriptedModel()), "s")
    response = types.FunctionResponse(id=id, name="ask", response={})
    with pytest.raises(ValueError, match=problem):
        await send(runner, types.Content(parts=[types.Part(function_response=response)]))


async def test_session_that_exists_is_attached_to_only_if_it_is_unfinished() -> None:
    """A session with an open invocation is continued; for any other, ADK's error is raised."""
    model = ScriptedModel(calls(("ask", {})), says("I asked."), says("Hi."))
    agent = Agent(name="attached", model=model, tools=[LongRunningFunctionTool(ask)])
    runner = await runner_of(agent, "open", "idle")
    await send(runner, text("Go."), "open")
    service = runner.session_service
    session = await service.create_session(app_name=APP, user_id=USER, session_id="open")
    assert texts(session.events) == ["Go.", "I asked."]
    with pytest.raises(AlreadyExistsError, match="Session with id idle already exists"):
        await service.create_session(app_name=APP, user_id=USER, session_id="idle")


async def test_session_that_does_not_exist_is_refused() -> None:
    """The error is ADK's, and a `ValueError`."""
    runner = await runner_of(Agent(name="lonely", model=ScriptedModel()))
    with pytest.raises(SessionNotFoundError, match="Session not found: s"):
        await send(runner, text("Hi."))
    assert await runner.session_service.get_session(app_name=APP, user_id=USER, session_id="s") is None


async def test_program_may_stop_reading_events() -> None:
    """The invocation ends anyway, the session has what the program read, and takes the next message."""
    runner = await runner_of(Agent(name="quitter", model=ScriptedModel(says("One."), says("Two."))), "s")
    async for _ in runner.run_async(user_id=USER, session_id="s", new_message=text("1")):
        break
    session = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id="s")
    assert session is not None
    assert texts(session.events) == ["1", "One."]
    assert texts(await send(runner, text("2"))) == ["Two."]


@pytest.mark.slow
async def test_program_may_create_a_runner_for_each_message() -> None:
    """Each message goes to the agent of its runner, even if another agent has had the same name."""
    first = await runner_of(Agent(name="same", model=ScriptedModel(says("One."), says("Three."))), "s")
    second = Runner(
        agent=Agent(name="same", model=ScriptedModel(says("Two."))), app_name=APP, session_service=first.session_service
    )
    replies = [texts(await send(runner, text("Go."))) for runner in (first, second, first)]
    assert replies == [["One."], ["Two."], ["Three."]]


async def test_failure_is_raised() -> None:
    """The program receives the events and then the error."""
    runner = await runner_of(Agent(name="failing", model=ScriptedModel(ModelRefused("too long"))), "s")
    with pytest.raises(InvocationError, match="ModelFailed"):
        await send(runner, text("Hi."))


async def test_agent_that_cannot_run_is_refused_before_the_message_is_sent() -> None:
    """The error names the agent, and the session has no message."""
    runner = await runner_of(Agent(name="foreign", model="claude-9"), "s")
    with pytest.raises(AuthoringError, match="Agent 'foreign'"):
        await send(runner, text("Hi."))
    session = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id="s")
    assert session is not None
    assert session.events == []


async def test_text_is_streamed_as_partial_events() -> None:
    """With `SSE`, partial events precede the complete one."""
    model = FunctionModel(lambda _: "one two three", pace_s=0.2)
    runner = await runner_of(Agent(name="streamer", model=model), "s")
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    stream = runner.run_async(user_id=USER, session_id="s", new_message=text("Go."), run_config=config)
    events = [event async for event in stream]
    shown = "".join(texts([event for event in events if event.partial]))  # the last words may come with the whole text
    assert shown.startswith("one")
    assert "one two three".startswith(shown)
    assert texts([event for event in events if not event.partial]) == ["one two three"]


@pytest.mark.slow
async def test_abort_signal_cancels_the_invocation() -> None:
    """The stream ends, the tool is cancelled, and the session takes the next message."""

    async def hang() -> None:
        """Never return."""
        await asyncio.sleep(60)

    model = ScriptedModel(calls(("hang", {})), says("Next."))
    runner, abort = await runner_of(Agent(name="hanging", model=model, tools=[hang]), "s"), asyncio.Event()
    stream = runner.run_async(user_id=USER, session_id="s", new_message=text("Go."), abort_signal=abort)
    async for event in stream:
        if event.get_function_calls():
            asyncio.get_running_loop().call_later(0.1, abort.set)
    assert texts(await send(runner, text("Hi."))) == ["Next."]


async def start_program(agent: Agent, session_id: str = "s", *, creates: bool = True) -> Runner:
    """Return the runner of a new run of a program with a database. It creates the session, or expects it."""
    service = DatabaseSessionService(DATABASE)
    if creates:
        await service.create_session(app_name=APP, user_id=USER, session_id=session_id)
    else:
        assert await service.get_session(app_name=APP, user_id=USER, session_id=session_id) is not None
    return Runner(agent=agent, app_name=APP, session_service=service)


async def test_program_with_a_database_continues_the_sessions_of_earlier_runs() -> None:
    """A session outlives the run that created it, with its events and its state."""
    agent = Agent(name="durable", model=ScriptedModel(says("One."), says("Two.")), output_key="last")
    first = await start_program(agent)
    await send(first, text("1"))
    end(first.session_service.run)
    second = await start_program(agent, creates=False)
    await send(second, text("2"))
    session = await second.session_service.get_session(app_name=APP, user_id=USER, session_id="s")
    assert session is not None
    assert (texts(session.events), session.state) == (["1", "One.", "2", "Two."], {"last": "Two."})


async def test_same_message_in_another_run_is_a_new_message() -> None:
    """Whether an interactive program ended or was killed, the next run's first message is answered by the model."""
    agent = Agent(name="polite", model=ScriptedModel(says("One."), says("Two."), says("Three.")))
    replies = []
    for nth, leave in enumerate((end, kill, end)):
        runner = await start_program(agent, creates=nth == 0)
        replies.append(texts(await send(runner, text("Hello."))))
        leave(runner.session_service.run)
    assert replies == [["One."], ["Two."], ["Three."]]


async def test_a_killed_program_with_a_database_starts_over_if_nothing_is_open() -> None:
    """As in ADK, the session that it created exists and cannot be created again."""
    agent = Agent(name="killed", model=ScriptedModel(says("One.")))
    first = await start_program(agent)
    await send(first, text("1"))
    kill(first.session_service.run)
    with pytest.raises(AlreadyExistsError):
        await start_program(agent)


async def test_a_killed_program_with_a_database_may_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed program creates its session again, and its messages yield the recorded replies."""
    agent = Agent(name="resumed", model=ScriptedModel(says("One."), says("Two.")))
    first = await start_program(agent)
    await send(first, text("1"))
    kill(first.session_service.run)
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    second = await start_program(agent)
    assert [texts(await send(second, text(message))) for message in ("1", "2")] == [["One."], ["Two."]]


async def test_resumed_program_does_not_take_over_a_session_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program can create again only what the interrupted run created."""
    agent = Agent(name="earlier", model=ScriptedModel())
    end((await start_program(agent, "old")).session_service.run)
    kill((await start_program(agent, "new")).session_service.run)
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    service = (await start_program(agent, "new")).session_service
    with pytest.raises(AlreadyExistsError):
        await service.create_session(app_name=APP, user_id=USER, session_id="old")


async def test_resumed_program_continues_with_all_services_where_it_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that the killed run had not used yet pays, although the same service paid in an earlier run."""
    paid = list[str]()

    def pay(to: str) -> str:
        """Pay an amount."""
        paid.append(to)
        return "paid"

    replies = [reply for to in "abab" for reply in (calls(("pay", {"to": to})), says("Paid."))]
    agent = Agent(name="payer", model=ScriptedModel(*replies), tools=[pay])

    async def program(*people: str) -> list[ProgramRun]:
        runners = [Runner(agent=agent, app_name=APP, session_service=InMemorySessionService()) for _ in range(2)]
        for runner, person in zip(runners, people, strict=False):
            await runner.session_service.create_session(app_name=APP, user_id=USER, session_id="s")
            assert texts(await send(runner, text(person))) == ["Paid."]
        return [runner.session_service.run for runner in runners[: len(people)]]

    for people, leave, resumes in ((("a", "b"), end, ""), (("a",), kill, ""), (("a", "b"), end, "1")):
        monkeypatch.setenv("WAYSTATION_RESUME", resumes)
        monkeypatch.setattr(InMemorySessionService, "_numbers", itertools.count(1))
        for run in await program(*people):
            leave(run)
    assert paid == ["a", "b", "a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_open_invocation_lets_a_program_with_a_database_resume_unless_a_person_stopped_it(
    is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, the messages yield what is recorded. After Ctrl-C, the same message is sent again."""
    model = ScriptedModel(calls(("ask", {})), says("I asked."), says("Again."))
    agent = Agent(name="waiting", model=model, tools=[LongRunningFunctionTool(ask)])
    first = await start_program(agent)
    await send(first, text("Go."))
    if is_stopped:
        with monkeypatch.context() as patched:
            patched.setattr("sys.last_value", KeyboardInterrupt(), raising=False)
            end(first.session_service.run)
    else:
        kill(first.session_service.run)
    second = await start_program(agent)
    assert texts(await send(second, text("Go."))) == (["Again."] if is_stopped else ["I asked."])


@pytest.mark.slow
async def test_resumed_program_sends_its_answer_to_a_call_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of another run do not count as answers of the resumed program."""
    model = ScriptedModel(calls(("ask", {})), says("I asked."), says("Seen."), says("Approved."))
    agent = Agent(name="answered", model=model, tools=[LongRunningFunctionTool(ask)])

    def respond(status: str, *, will_continue: bool) -> types.Content:
        response = types.FunctionResponse(
            id=call_id, name="ask", response={"status": status}, will_continue=will_continue
        )
        return answer(response)

    first = await start_program(agent)
    events = await send(first, text("Go."))
    (call_id,) = next(event.long_running_tool_ids for event in events if event.long_running_tool_ids)
    await send(first, respond("seen", will_continue=True))
    end(first.session_service.run)
    kill((await start_program(agent, creates=False)).session_service.run)
    monkeypatch.setenv("WAYSTATION_RESUME", "1")
    third = await start_program(agent, creates=False)
    assert texts(await send(third, respond("approved", will_continue=False))) == ["Approved."]


async def test_an_in_memory_runner_needs_only_an_agent() -> None:
    """An in-memory runner has its own services, and artifacts that a tool saves can be loaded."""

    async def save(tool_context: ToolContext) -> int:
        """Save a note."""
        return await tool_context.save_artifact("note.txt", types.Part(text="kept"))

    runner = InMemoryRunner(
        Agent(name="noting", model=ScriptedModel(calls(("save", {})), says("Saved.")), tools=[save])
    )
    where: dict[str, Any] = {"app_name": runner.app_name, "user_id": USER, "session_id": "s"}
    await runner.session_service.create_session(**where)
    assert texts(await send(runner, text("Note."))) == ["Saved."]
    assert runner.artifact_service is not None
    note = await runner.artifact_service.load_artifact(**where, filename="note.txt")
    assert note is not None
    assert note.text == "kept"


@pytest.mark.slow
async def test_run_debug_creates_the_session_and_prints_replies(capsys: pytest.CaptureFixture[str]) -> None:
    """All messages go to one session. Calls and their results are printed only with `verbose`."""

    def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(says("One."), calls(("look", {})), says("Two."), says("Three."))
    runner = InMemoryRunner(Agent(name="debugged", model=model, tools=[look]))
    events = await runner.run_debug("1")
    events += await runner.run_debug(["2"], verbose=True)
    events += await runner.run_debug("3", quiet=True)
    assert texts(events) == ["One.", "Two.", "Three."]
    assert capsys.readouterr().out.splitlines() == [
        "debugged > One.",
        "debugged > [Calling tool: look({})]",
        "debugged > [Tool result: {'result': 'seen'}]",
        "debugged > Two.",
    ]
    session = await runner.session_service.get_session(
        app_name=runner.app_name, user_id="debug_user_id", session_id="debug_session_id"
    )
    assert session is not None
    assert texts(session.events) == ["1", "One.", "2", "Two.", "3", "Three."]


@pytest.mark.slow
async def test_configuration_limits_the_events_of_a_session() -> None:
    """`get_session` returns the latest events, or those since a time."""
    runner = await runner_of(Agent(name="talker", model=ScriptedModel(says("One."), says("Two."))), "s")
    await send(runner, text("1"))
    last = await send(runner, text("2"))

    async def read(**config: Any) -> list[str]:
        session = await runner.session_service.get_session(
            app_name=APP, user_id=USER, session_id="s", config=GetSessionConfig(**config)
        )
        assert session is not None
        return texts(session.events)

    assert await read(num_recent_events=3) == ["One.", "2", "Two."]
    assert await read(num_recent_events=0) == []
    assert await read(after_timestamp=last[-1].timestamp) == ["Two."]


async def test_sessions_are_listed_by_app_and_user_until_they_are_deleted() -> None:
    """A service lists its own sessions only, and a deleted session does not exist. New ones may appear later."""
    service, other = InMemorySessionService(), InMemorySessionService()

    async def listed(**filters: str) -> list[str]:
        return sorted(session.id for session in (await service.list_sessions(app_name=APP, **filters)).sessions)

    async def lists(expected: list[str]) -> bool:
        return await listed() == expected

    for user, session_id in (("ann", "a1"), ("ann", "a2"), ("bob", "b1")):
        await service.create_session(app_name=APP, user_id=user, session_id=session_id)
    await other.create_session(app_name=APP, user_id="ann", session_id="other")
    await wait_until(lambda: lists(["a1", "a2", "b1"]), "the sessions are listed")
    read = [await service.get_session(app_name=APP, user_id="ann", session_id="a1") for _ in range(2)]
    assert read[0] == read[1]  # the start is also the last change
    assert await listed(user_id="ann") == ["a1", "a2"]
    await service.delete_session(app_name=APP, user_id="ann", session_id="a1")
    await wait_until(lambda: lists(["a2", "b1"]), "the deleted session is not listed")
    assert await service.get_session(app_name=APP, user_id="ann", session_id="a1") is None


@pytest.mark.slow
async def test_synchronous_methods_do_the_same() -> None:
    """Programs without an event loop create, read, list and delete sessions."""
    service = InMemorySessionService()

    where: dict[str, Any] = {"app_name": APP, "user_id": USER, "session_id": "s"}

    def use() -> tuple[Session | None, Session | None]:
        service.create_session_sync(**where, state={"city": "Bern"})
        service.list_sessions_sync(app_name=APP)
        session = service.get_session_sync(**where)
        service.delete_session_sync(**where)
        return session, service.get_session_sync(**where)

    session, deleted = await asyncio.to_thread(use)
    assert session is not None
    assert session.state == {"city": "Bern"}
    assert deleted is None
