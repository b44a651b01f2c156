"""A conversation of several messages."""

import asyncio
from collections.abc import Sequence

from tests.server.sessions.conftest import Converse, heard_events
from waystation.agents import Agent
from waystation.core import Event, JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.tool_context import ToolContext


def words(events: list[Event]) -> list[str]:
    """Return who said what."""
    return [
        f"{event.author}: {part['text']}"
        for event in events
        for part in (event.content or {}).get("parts", ())
        if "text" in part
    ]


def texts(contents: Sequence[JsonObject]) -> list[str]:
    """Return what a model was shown, part by part."""
    return [str(part.get("text", part)) for content in contents for part in content["parts"]]


def remember(name: str, tool_context: ToolContext) -> str:
    """Remember a name."""
    tool_context.state["name"] = name
    return "ok"


async def test_the_second_message_is_answered_in_the_light_of_the_first(converse: Converse) -> None:
    """The model is shown what was said before."""
    model = ScriptedModel(says("Hello Ann."), says("You are Ann."))
    async with converse(Agent(name="clerk", model=model)) as session:
        assert (await (await session.send("I am Ann.")).result()).text == "Hello Ann."
        assert (await (await session.send("Who am I?")).result()).text == "You are Ann."
        assert texts(model.requests[1].contents) == ["I am Ann.", "Hello Ann.", "Who am I?"]
        assert words(await heard_events(session)) == [
            "user: I am Ann.",
            "clerk: Hello Ann.",
            "user: Who am I?",
            "clerk: You are Ann.",
        ]


async def test_messages_are_answered_one_after_the_other(converse: Converse) -> None:
    """Those that come meanwhile wait, in the order in which they came."""
    model = ScriptedModel(*(says(f"answer {n}") for n in range(3)))
    async with converse(Agent(name="clerk", model=model)) as session:
        sent = await asyncio.gather(*(session.send(f"message {n}") for n in range(3)))
        for one in sent:
            await one.result()
        shown = words(await heard_events(session))
        assert [said.split(": ")[0] for said in shown] == ["user", "clerk"] * 3
        assert [said for said in shown if said.startswith("clerk")] == [f"clerk: answer {n}" for n in range(3)]


async def test_state_lasts_from_message_to_message(converse: Converse) -> None:
    """What a tool wrote is there for the next invocation."""
    model = ScriptedModel(calls(("remember", {"name": "Ann"})), says("Noted."), says("Ann."))
    async with converse(Agent(name="clerk", model=model, tools=[remember])) as session:
        await (await session.send("I am Ann.", state={"lang": "en"})).result()
        await (await session.send("Who am I?")).result()
        await heard_events(session)
        assert await session.state() == {"lang": "en", "name": "Ann"}
