"""Conversations of several messages."""

from collections.abc import Sequence

from tests.server.sessions.conftest import Converse, settled_events
from waystation.agents import Agent
from waystation.core.contract import Event
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.tool_context import ToolContext


def words(events: list[Event]) -> list[str]:
    """Return the texts with their authors."""
    return [
        f"{event.author}: {part['text']}"
        for event in events
        for part in (event.content or {}).get("parts", ())
        if "text" in part
    ]


def texts(contents: Sequence[JsonObject]) -> list[str]:
    """Return the texts of a request, part by part."""
    return [str(part.get("text", part)) for content in contents for part in content["parts"]]


def remember(name: str, tool_context: ToolContext) -> str:
    """Remember a name."""
    tool_context.state["name"] = name
    return "ok"


async def test_the_second_answer_takes_the_first_message_into_account(converse: Converse) -> None:
    """The model sees the earlier conversation."""
    model = ScriptedModel(says("Hello Ann."), says("You are Ann."))
    async with converse(Agent(name="clerk", model=model)) as session:
        assert (await (await session.send("I am Ann.")).result()).text == "Hello Ann."
        assert (await (await session.send("Who am I?")).result()).text == "You are Ann."
        assert texts(model.requests[1].contents) == ["I am Ann.", "Hello Ann.", "Who am I?"]
        assert words(await settled_events(session)) == [
            "user: I am Ann.",
            "clerk: Hello Ann.",
            "user: Who am I?",
            "clerk: You are Ann.",
        ]


async def test_state_lasts_from_message_to_message(converse: Converse) -> None:
    """The next invocation has the state that a tool wrote."""
    model = ScriptedModel(calls(("remember", {"name": "Ann"})), says("Noted."), says("Ann."))
    async with converse(Agent(name="clerk", model=model, tools=[remember])) as session:
        await (await session.send("I am Ann.", state={"lang": "en"})).result()
        await (await session.send("Who am I?")).result()
        await settled_events(session)
        assert await session.state() == {"lang": "en", "name": "Ann"}
