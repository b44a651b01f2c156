"""An operator resets a session."""

import pytest

from tests.server.conftest import Serve
from tests.server.sessions.conftest import new_session
from tests.server.sessions.test_sending import echo
from tests.steps import reset_run, wait_until
from waystation.testing import assert_replays


@pytest.mark.slow
async def test_a_session_that_was_reset_replays(serve: Serve) -> None:
    """The invocations of the session receive the new run ID, and a replay uses the earlier one."""
    async with serve(echo(), verify=False) as env:
        session = new_session(env, "clerk")
        await session.say("one")
        await reset_run(env.temporal, await session.handle.fetch_history(), 1)
        reset_session = env.client.session(
            **session.given.model_dump(include={"agent", "app", "user_id", "session_id"})
        )
        assert (await reset_session.say("two")).text == "heard two"
        await assert_replays(await reset_session.handle.fetch_history())


async def test_a_conversation_continues_after_a_reset(serve: Serve) -> None:
    """A conversation continues although the run that started its invocation was terminated."""
    async with serve(echo(), verify=False) as env:
        session = new_session(env, "clerk")
        await session.say("one")
        await session.say("two")
        await reset_run(env.temporal, await session.handle.fetch_history(), 1)
        assert (await session.say("three")).text == "heard three"


async def test_a_session_that_was_reset_is_listed_once(serve: Serve) -> None:
    """The list has the current run, not the terminated one."""
    async with serve(echo(), verify=False) as env:
        session = new_session(env, "clerk")
        await session.say("one")
        await reset_run(env.temporal, await session.handle.fetch_history(), 1)
        await session.say("two")

        async def listed() -> list[str]:
            statuses = [each.status async for each in env.client.sessions.list() if each.id == session.id]
            return statuses if "open" in statuses else []

        assert await wait_until(listed, "the session in the list") == ["open"]
