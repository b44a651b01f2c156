"""`waystation chat`, `sessions` and `session`: conversations in a terminal and in scripts."""

import asyncio
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner

from tests.programs import Ran, command, without_time
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.server.sessions.test_client import asking, waits
from waystation.agents import Agent
from waystation.cli.program import app
from waystation.cli.terminal_input import create_message_prompt
from waystation.core.errors import ModelRefused
from waystation.testing import AgentEnvironment, ScriptedModel, says


async def typed(env: AgentEnvironment, text: str, *arguments: str) -> Ran:
    """Chat with piped lines."""
    where = ["--address", env.server.address, "--task-queue", env.client.task_queue]
    command = [*where, "chat", "asker", *arguments]
    result = await asyncio.to_thread(CliRunner().invoke, app, command, input=text, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)


def output_lines(ran: Ran) -> list[str]:
    """Return the output without times and placeholders."""
    return [line for line in map(without_time, ran.out.splitlines()) if line.startswith(("user: ", "asker: "))]


async def test_lines_are_answered_one_after_the_other(serve: Serve) -> None:
    """Blank lines are ignored, and a later command resumes the conversation."""
    async with serve(asking(), verify=False) as env:
        name = env.client.task_queue
        first = await typed(env, "one\n\ntwo\n", "--session", name)
        assert (first.code, output_lines(first)) == (
            0,
            ["user: one", "asker: You said one.", "user: two", "asker: You said two."],
        )
        resumed = await typed(env, "three", "--session", name)
        assert output_lines(resumed)[-3:] == ["asker: You said two.", "user: three", "asker: You said three."]


async def test_two_slashes_send_a_message_that_begins_with_one(serve: Serve) -> None:
    """A line with two slashes is a message; a line with one would be a command."""
    async with serve(asking(), verify=False) as env:
        ran = await typed(env, "//etc/hosts // is what?\n")
        assert (ran.code, output_lines(ran)[-1]) == (0, "asker: You said /etc/hosts // is what?.")


async def test_the_first_line_can_answer_a_call_from_before(serve: Serve) -> None:
    """A resumed conversation knows its pending calls before the first line."""
    async with serve(asking(), verify=False) as env:
        name = env.client.task_queue
        assert (await typed(env, "buy\n", "--session", name)).code == 0
        ran = await typed(env, "/approve fine\n", "--session", name)
        assert (ran.code, output_lines(ran)[-1]) == (0, "asker: They said approved.")
        assert "/approve 1/fc-1" in ran.out


async def test_another_agents_session_is_refused(serve: Serve) -> None:
    """A session of another agent is refused, because the other agent would answer."""
    async with serve(asking(), verify=False) as env:
        name = env.client.task_queue
        await typed(env, "one\n", "--session", name)
        where = ["--address", env.server.address, "--task-queue", env.client.task_queue]
        ran = await command(*where, "chat", "asked", "--session", name)
        assert (ran.code, "belongs to the agent 'asker', not to 'asked'" in ran.err) == (2, True)
        assert (await command(*where, "chat", "asker", "--session", "")).code == 2


async def test_an_unavailable_store_is_named_with_the_option(serve: Serve, waystation: Command) -> None:
    """The command names --artifacts, because only workers know where they keep artifacts."""
    async with serve(asking(), verify=False) as env:
        ran = await waystation(env, "session", "delete", "any", "--artifacts", "nowhere://x")
        assert (ran.code, "nowhere://x" in ran.err, "--artifacts" in ran.err) == (1, True, True)


async def test_a_message_may_have_several_lines() -> None:
    """Alt-Enter and pasted line breaks start a new line; Enter sends the message."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text("one\x1b\rtwo\x1b[200~\nthree\x1b[201~\rfour\r")
        typing = create_message_prompt()
        assert await typing.prompt_async() == "one\ntwo\nthree"
        assert await typing.prompt_async() == "four"


@pytest.mark.slow
async def test_a_conversation_continues_while_a_call_waits(serve: Serve) -> None:
    """The call is answered in the chat, and its invocation then completes."""
    async with serve(asking(), verify=False) as env:
        ran = await typed(env, "buy\nhello\n/pending\n/approve 1/fc-1 fine\n/pending\n")
        assert ran.code == 0
        assert output_lines(ran)[-3:] == ["user: hello", "asker: You said hello.", "asker: They said approved."]
        assert ran.out.count("/approve 1/fc-1") == 2
        assert "No calls are waiting for a person in this conversation." in ran.out


async def test_json_is_one_record_for_each_event(serve: Serve) -> None:
    """Standard output has records of sent messages, events, pending calls and answers, and nothing else."""
    async with serve(asking(), verify=False) as env:
        ran = await typed(env, 'buy\n/respond {"status": "ok"}\n/state\n', "--json")
        kinds = [next(iter(record)) for record in ran.records]
        assert kinds[:2] == ["session", "sent"]
        assert set(kinds) == {"session", "sent", "event", "pending", "answered", "state"}
        agent_events = [r["event"] for r in ran.records if "event" in r and r["event"]["author"] == "asker"]
        assert agent_events[-1]["content"]["parts"] == [{"text": "They said ok."}]


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("/nonsense", 2, "Unknown command '/nonsense'. Type /help to list the commands."),
        ("/approve", 6, "No calls are waiting for a person in this conversation."),
        ("buy\n/respond nonsense", 2, "'nonsense' is not valid JSON"),
        ("buy\nbuy\n/reject", 6, "Several calls are pending. Name one of them: 1/fc-1, 2/fc-1."),
    ],
)
async def test_a_mistake_in_a_script_ends_it(serve: Serve, line: str, code: int, text: str) -> None:
    """The script ends with a message that names the mistake."""
    async with serve(asking(), verify=False) as env:
        ran = await typed(env, f"{line}\nhello\n")
        assert ran.code == code
        assert text in ran.err
        assert "You said hello" not in ran.out


async def test_a_failed_agent_is_reported_and_the_conversation_continues(serve: Serve) -> None:
    """The exit code tells a script that an agent failed."""
    model = ScriptedModel(ModelRefused("not this"), says("but that"))
    async with serve(Agent(name="asker", model=model), verify=False) as env:
        ran = await typed(env, "this\nthat\n")
        assert (ran.code, "failed: ModelFailed" in ran.out, output_lines(ran)[-1]) == (1, True, "asker: but that")


@pytest.mark.slow
async def test_an_unknown_agent_ends_the_conversation(serve: Serve) -> None:
    """The message lists the agents that workers have announced, and no session is started."""
    async with serve(asking(), verify=False) as env:
        where = ["--address", env.server.address, "--task-queue", env.client.task_queue]
        command = [*where, "chat", "nobody"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command, input="one\ntwo\n", catch_exceptions=False)
        assert (result.exit_code, "user: two" in result.stdout) == (1, False)
        assert "waystation: No agent is named 'nobody'. Workers in this namespace have announced: " in result.stderr
        assert not [session async for session in env.client.sessions.list(agent="nobody")]


async def test_a_closed_session_accepts_nothing(serve: Serve, waystation: Command) -> None:
    """A closed session refuses messages while a call is still pending, and after its end."""
    async with serve(asking(), verify=False) as env:
        name = env.client.task_queue
        session = env.client.session(agent="asker", session_id=name)
        await session.send("buy")
        await waits(session, 1)
        closed = await waystation(env, "session", "close", name)
        assert (closed.code, closed.out) == (0, f"closed {name}; it will end after 1 open invocation\n")
        refused = await typed(env, "hello\n", "--session", name)
        assert (refused.code, "takes no further message" in refused.err) == (9, True)
        await session.invocation(1).approve()
        await session.handle.result()
        over = await typed(env, "hello\n", "--session", name)
        assert (over.code, "is closed. Use a different --session" in over.err) == (9, True)
        assert (await waystation(env, "session", "close", name)).code == 9


async def test_a_session_is_shown_listed_and_deleted(serve: Serve, waystation: Command, tmp_path: Any) -> None:
    """A session is shown and listed under its name as text and as JSON; after its deletion it is unknown."""
    async with serve(asking(), verify=False) as env:
        name = f"a/b {env.client.task_queue}"
        session = env.client.session(agent="asker", session_id=name, user_id="dana", app=env.client.task_queue)
        await session.send("buy")
        await waits(session, 1)
        who = ("--user", "dana", "--app", env.client.task_queue)
        display = await waystation(env, "session", "show", name, *who)
        assert "user: buy" in display.out
        records = (await waystation(env, "session", "show", name, *who, "--json")).records
        assert [next(iter(record)) for record in records] == [*["event"] * (len(records) - 2), "state", "pending"]
        while not (listed := (await waystation(env, "sessions", *who, "--json")).records):
            await asyncio.sleep(0.05)  # visibility lags
        assert [(entry["session_id"], entry["agent"]) for entry in listed] == [(name, "asker")]
        stores = ("--artifacts", str(tmp_path / "artifacts"), "--memory", str(tmp_path / "memory.db"))
        deleted = await waystation(env, "session", "delete", name, *who, *stores)
        assert deleted.out.splitlines()[0] == f"deleted {name}: 2 workflows, 0 artifacts, 0 memories"
        wrong = await waystation(env, "session", "delete", name, *stores)
        assert (wrong.code, "not found" in wrong.err) == (6, True)


@pytest.mark.parametrize("verb", ["show", "close"])
async def test_an_unknown_session_is_reported(serve: Serve, waystation: Command, verb: str) -> None:
    """The message names the session."""
    async with serve(asking(), verify=False) as env:
        ran = await waystation(env, "session", verb, "nowhere")
        assert (ran.code, "session/waystation/user/nowhere" in ran.err) == (6, True)
        empty = await waystation(env, "session", verb, "")
        assert (empty.code, "one of them is empty" in empty.err) == (2, True)
