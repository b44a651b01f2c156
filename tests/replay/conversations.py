"""Sessions whose histories are kept: each run of them, and of the invocations that they began."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import WorkflowFailureError

from tests.replay.machine import without_machine
from tests.sessions.conftest import heard_events
from tests.sessions.test_sending import Held
from tests.sessions.test_waiting import parked, paying
from tests.workflows.outside import until
from waystation.agents import Agent
from waystation.client.session_client import Session
from waystation.core.entry import MessageJoined
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, assert_replays

HERE = Path(__file__).parent / "sessions"


@dataclass(frozen=True)
class Conversation:
    """One session, to be had and kept."""

    act: Callable[[Session, Held], Awaitable[None]]
    cut_after: int | None = None
    held: bool = False
    """Whether its model answers only when it is let go."""


async def _over(session: Session) -> None:
    await heard_events(session)
    await session.close()
    await session.handle.result()


async def talk(session: Session, _held: Held) -> None:
    """One message waits for a person, and another is answered meanwhile."""
    first = await session.send("pay")
    await parked(session, first)
    await session.say("hello", message_id="hello", state={"greeted": True})
    await (await first.invocation()).approve()
    await first.result()
    await _over(session)


async def talk_at_length(session: Session, _held: Held) -> None:
    """As before, and the session continues as new meanwhile."""
    first = await session.send("pay")
    await parked(session, first)
    for number in range(4):
        await session.say(f"message {number}")
    await (await first.invocation()).approve()
    await first.result()
    await session.say("last")
    await _over(session)


async def interrupt(session: Session, held: Held) -> None:
    """A message joins the invocation at work, and another waits for its turn."""
    first = await session.send("one")
    await held.asked.wait()
    await session.send("two", when_busy="join")
    last = await session.send("three")

    async def joined() -> bool:
        entries = (await (await first.invocation()).log()).entries
        return any(isinstance(entry.body, MessageJoined) for entry in entries)

    await until(joined, "the joined message")
    held.go.set()
    await last.result()
    await _over(session)


async def give_up(session: Session, _held: Held) -> None:
    """The session is cancelled while a message of it waits."""
    await parked(session, await session.send("pay"))
    await session.cancel()
    try:
        await session.handle.result()
    except WorkflowFailureError:
        return
    raise AssertionError("a cancelled session completed")


CONVERSATIONS = {
    "talk": Conversation(talk),
    "talk-at-length": Conversation(talk_at_length, cut_after=2),
    "interrupt": Conversation(interrupt, held=True),
    "give-up": Conversation(give_up),
}


async def record(name: str, conversation: Conversation, server: EmbeddedServer) -> None:
    """Have a conversation, and keep what Temporal recorded of it."""
    held = Held()
    agent: Agent = held.agent() if conversation.held else paying()
    async with AgentEnvironment(agent, server=server, task_queue=f"record-{name}") as env:
        session = env.client.session(agent="clerk", session_id=name)
        if conversation.cut_after is not None:
            session.given = session.given.model_copy(update={"cut_after": conversation.cut_after})
        await conversation.act(session, held)
        query = f"WorkflowId STARTS_WITH '{session.id}'"
        found = [(run.id, run.run_id, run.start_time) async for run in env.temporal.list_workflows(query)]
        for number, (id, run_id, _) in enumerate(sorted(found, key=lambda run: run[2])):
            history = await env.temporal.get_workflow_handle(id, run_id=run_id).fetch_history()
            await assert_replays(history)
            kept = {"id": id, "history": without_machine(history.to_json_dict())}
            HERE.mkdir(exist_ok=True)
            (HERE / f"{name}.{number:02}.json").write_text(json.dumps(kept, indent=1) + "\n")
