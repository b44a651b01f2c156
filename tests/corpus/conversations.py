"""Sessions whose histories are kept, with each of their runs and invocations."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowFailureError

from tests.agents import Gate
from tests.corpus.machine import without_machine
from tests.server.sessions.conftest import settled_events
from tests.server.sessions.test_sending import Held
from tests.server.sessions.test_waiting import parked, paying
from tests.server.sessions.turnstile import HeldReadings, decided
from tests.steps import wait_for_joined_messages
from waystation.agents import Agent
from waystation.client import Session
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, assert_replays

HERE = Path(__file__).parent / "sessions"


@dataclass(frozen=True)
class Holds:
    """Events that the test sets to release the model and the session's reads."""

    model: Held
    readings: HeldReadings


@dataclass(frozen=True)
class Conversation:
    """A session to play and keep."""

    act: Callable[[Session, Holds], Awaitable[None]]
    cut_after: int | None = None
    held: bool = False
    """Whether the model waits for the scenario before it replies."""
    cached: int = 10
    """The number of workflows that the worker caches. Without a cache, messages wait for timers."""


async def _over(session: Session) -> None:
    await settled_events(session)
    await session.close()
    await session.handle.result()


async def talk(session: Session, _holds: Holds) -> None:
    """Send a message that waits for a person, and another that is answered in the meantime."""
    first = await session.send("pay")
    await parked(session, first)
    await session.say("hello", message_id="hello", state={"greeted": True})
    await (await first.invocation()).approve()
    await first.result()
    await _over(session)


async def talk_at_length(session: Session, _holds: Holds) -> None:
    """Send messages until the session continues as new, while the first message waits for a person."""
    first = await session.send("pay")
    await parked(session, first)
    for number in range(4):
        await session.say(f"message {number}")
    await (await first.invocation()).approve()
    await first.result()
    await session.say("last")
    await _over(session)


async def interrupt(session: Session, holds: Holds) -> None:
    """Join a message to the running invocation, and queue another."""
    first = await session.send("one")
    await holds.model.asked.wait()
    await session.send("two", when_busy="join")
    last = await session.send("three")
    await wait_for_joined_messages(await first.invocation())
    holds.model.go.set()
    await last.result()
    await _over(session)


async def talk_after_reading(session: Session, holds: Holds) -> None:
    """Send a message while the session reads an ended invocation of an earlier run."""
    first = await session.send("pay")
    await parked(session, first)
    await session.say("hello")
    holds.readings.gate = Gate()
    await first.approve()
    await first.result()
    await holds.readings.gate.reached()
    last = await session.send("thanks")
    await decided(session)
    holds.readings.gate.open()
    await last.result()
    await _over(session)


async def give_up(session: Session, _holds: Holds) -> None:
    """Cancel the session while one of its messages waits."""
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
    "talk-heard-out": Conversation(talk, cached=0),
    "talk-after-reading": Conversation(talk_after_reading, cut_after=1),
    "give-up": Conversation(give_up),
}


async def record(name: str, conversation: Conversation, server: EmbeddedServer) -> None:
    """Play a conversation, and keep Temporal's histories of it."""
    holds = Holds(Held(), HeldReadings())
    agent: Agent = holds.model.agent() if conversation.held else paying()
    options: dict[str, Any] = {"interceptors": [holds.readings], "max_cached_workflows": conversation.cached}
    async with AgentEnvironment(agent, server=server, task_queue=f"record-{name}", **options) as env:
        session = env.client.session(agent="clerk", session_id=name)
        if conversation.cut_after is not None:
            session.given = session.given.model_copy(update={"cut_after": conversation.cut_after})
        await conversation.act(session, holds)
        query = f"WorkflowId STARTS_WITH '{session.id}'"
        runs = [(run.id, run.run_id, run.start_time) async for run in env.temporal.list_workflows(query)]
        for number, (id, run_id, _) in enumerate(sorted(runs, key=lambda run: run[2])):
            history = await env.temporal.get_workflow_handle(id, run_id=run_id).fetch_history()
            await assert_replays(history)
            kept = {"id": id, "history": without_machine(history.to_json_dict())}
            HERE.mkdir(exist_ok=True)
            (HERE / f"{name}.{number:02}.json").write_text(json.dumps(kept, indent=1) + "\n")
