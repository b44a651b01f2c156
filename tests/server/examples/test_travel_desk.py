"""The travel desk: a conversation with its demo model."""

import pytest

from tests.server.conftest import Serve
from tests.server.sessions.test_client import waits
from waystation.apps.registry import Registry


@pytest.mark.slow
async def test_a_conversation_continues_while_a_trip_waits(serve: Serve, examples: Registry) -> None:
    """Every message knows the earlier ones, even one during the manager's decision."""
    root = examples.roots["travel_desk"]
    async with serve(root.agent, model=root.demo_model, verify=False) as env:
        app = env.client.task_queue
        session = env.client.session(agent="travel_desk", session_id="monday", app=app)
        assert "Hello Ann" in (await session.say("I am Ann")).text
        assert "You travel from Oslo" in (await session.say("I live in Oslo.")).text
        trip = await session.send("I need a trip to Lima")
        call = await waits(session, 3)
        assert call.interim is not None
        assert (call.interim["from"], call.interim["to"]) == ("Oslo", "Lima")
        assert (await session.say("Who am I?")).text == "[demo model] You are Ann; you live in Oslo."
        await trip.reject(comment="too far")
        assert (await trip.result()).text == "[demo model] Your manager rejected the trip: too far"
        assert await session.state() == {"trips": ["Lima"], "user:home": "Oslo"}


@pytest.mark.slow
async def test_another_conversation_has_only_the_users_state(serve: Serve, examples: Registry) -> None:
    """The city is stored in `user:` state; the name was only mentioned."""
    root = examples.roots["travel_desk"]
    async with serve(root.agent, model=root.demo_model, verify=False) as env:
        app = env.client.task_queue
        first, second = (env.client.session(agent="travel_desk", session_id=name, app=app) for name in "ab")
        await first.say("I am Ann")
        await first.say("I live in Oslo")
        text = (await second.say("Who am I?")).text
        assert text == "[demo model] You have not said who you are; you live in Oslo."
