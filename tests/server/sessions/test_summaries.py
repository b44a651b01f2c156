"""Older messages of long conversations are summarized; the session keeps them all."""

import pytest

from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session, settled_events, verify
from tests.server.sessions.test_conversation import texts, words
from waystation.agents import Agent
from waystation.apps import App, EventsCompactionConfig, LlmEventSummarizer
from waystation.client import Session
from waystation.core.contract import text_of
from waystation.core.conversation import estimate
from waystation.models import LlmRequest
from waystation.testing import AgentEnvironment, FunctionModel, says
from waystation.testing.models import Reply, latest_turn

FILLER = " " + "x" * 1_200
"""300 tokens."""


class Talk:
    """An agent that repeats its message, a summarizer that numbers its summaries, and the prompts of both."""

    def __init__(self, **config: int) -> None:
        self.shown: list[list[str]] = []
        self.sizes: list[int] = []
        self.summarized: list[str] = []
        settings = EventsCompactionConfig(summarizer=LlmEventSummarizer(FunctionModel(self._summarize)), **config)
        agent = Agent(name="clerk", model=FunctionModel(self._reply))
        self.app = App(name="talk", root_agent=agent, events_compaction_config=settings)

    def _reply(self, request: LlmRequest) -> Reply:
        self.shown.append([text.removesuffix(FILLER) for text in texts(request.contents)])
        self.sizes.append(estimate(request.contents))
        return says(f"heard {latest_turn(request)[0].removesuffix(FILLER)}")

    def _summarize(self, request: LlmRequest) -> Reply:
        self.summarized.append(text_of(request.contents[0]))
        return says(f"summary {len(self.summarized)}")


async def send_messages(env: AgentEnvironment, count: int, cut_after: int | None) -> Session:
    """Send this many messages, one after the other."""
    session = new_session(env, "clerk", cut_after=cut_after)
    for number in range(1, count + 1):
        assert (await session.say(f"m{number}{FILLER}")).text == f"heard m{number}"
    return session


def texts_of_messages(count: int) -> list[str]:
    """Return the texts of this many messages."""
    return [line for n in range(1, count + 1) for line in (f"user: m{n}{FILLER}", f"clerk: heard m{n}")]


@pytest.mark.slow
@pytest.mark.parametrize("cut_after", [None, 2], ids=["in one run", "in four runs"])
async def test_a_window_slides_over_the_messages_of_a_conversation(serve: Serve, cut_after: int | None) -> None:
    """Every two messages are summarized together with the one before them; newer messages stay unchanged."""
    talk = Talk(compaction_interval=2, overlap_size=1)
    async with serve(talk.app, verify=False) as env:
        session = await send_messages(env, 7, cut_after)
        events = await settled_events(session)
        await verify(session, invocations=False)
    assert talk.shown == [
        ["m1"],
        ["m1", "heard m1", "m2"],
        ["summary 1", "m3"],
        ["summary 1", "m3", "heard m3", "m4"],
        ["summary 1", "summary 2", "m5"],
        ["summary 1", "summary 2", "m5", "heard m5", "m6"],
        ["summary 1", "summary 2", "summary 3", "m7"],
    ]
    covered = [[f"m{n}" for n in range(1, 8) if f"m{n}{FILLER}" in text] for text in talk.summarized]
    assert covered == [["m1", "m2"], ["m2", "m3", "m4"], ["m4", "m5", "m6"]]
    assert [line for line in words(events) if "summary" not in line] == texts_of_messages(7)
