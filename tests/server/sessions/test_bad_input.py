"""Sessions refuse invalid input at once, without affecting other messages."""

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.server.sessions.conftest import Converse, new_session
from tests.server.sessions.test_client import asking
from tests.steps import wait_until
from waystation.client.agent_client import AgentClient
from waystation.core import errors
from waystation.testing import assert_replays


@pytest.mark.slow
@pytest.mark.parametrize("state", [{"a": object()}, {"a": float("nan")}, {"a": "\ud800"}])
async def test_a_state_that_is_not_json_is_refused(converse: Converse, state: dict[str, Any]) -> None:
    """The client refuses it, with the place of the value."""
    async with converse(asking()) as session:
        assert isinstance(session.client, AgentClient)
        for start in (session.create, functools.partial(session.client.start, "asker", "hello")):
            with pytest.raises(errors.NotJson, match=r"state\.a"):
                await start(state=state)
        await session.say("hello")
        with pytest.raises(errors.NotJson, match="a"):
            await session.send("hello", state=state)
        assert (await session.say("again")).text == "You said again."


async def test_a_message_without_an_argument_is_refused(converse: Converse) -> None:
    """`temporal workflow update` sends one when `--input` is omitted."""
    async with converse(asking()) as session:
        await session.say("hello")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await session.handle.execute_update("send")
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "InvalidInput"
        assert (await session.say("again")).text == "You said again."


@pytest.mark.parametrize("name", ["n" * 64_000, "é" * 400, ""])
async def test_a_name_that_is_not_valid_in_an_id_is_refused(serve: Serve, name: str) -> None:
    """The client refuses it before anything is sent."""
    async with serve(asking(), verify=False) as env:
        with pytest.raises(ValueError, match=r"characters|empty"):
            env.client.session(agent="asker", session_id=name)
        with pytest.raises(ValueError, match=r"characters|empty"):
            await env.client.sessions.delete("s", user_id=name)


@pytest.mark.slow
async def test_a_repeated_message_id_leads_to_the_same_invocation(converse: Converse) -> None:
    """A repeated message ID leads to one invocation, for simultaneous messages and after the answer."""
    async with converse(asking()) as session:
        sent = await asyncio.gather(*(session.send("hello", message_id="m") for _ in range(20)))
        assert len({one.id for one in sent}) == 1
        assert [one.duplicate for one in sent].count(False) == 1
        texts = {(await one.result()).text for one in sent}
        assert texts == {"You said hello."}
        assert (await session.say("other", message_id="m")).text == "You said hello."


@pytest.mark.slow
async def test_a_large_message_without_its_store_is_refused_for_good(serve: Serve, tmp_path: Path) -> None:
    """An update is refused and a signal is recorded, also for workers that would find the message later."""
    async with serve(asking(), verify=False, store=tmp_path / "workers") as env:
        session = new_session(env, "asker")
        await session.say("hello")
        stranger = await AgentClient.connect(address=env.server.address, store=tmp_path / "senders")
        other = stranger.session(agent="asker", session_id=session.given.session_id, user_id="ann")
        with pytest.raises(errors.InvalidInput, match="The message cannot be read: the store does not have"):
            await other.send("x" * 300_000)
        await other.handle.signal("send", {"message": "x" * 300_000})

        async def refused() -> list[dict[str, str]]:
            listed: dict[str, Any] = await session.handle.query("invocations")
            return list(listed["refusals"])

        assert "the worker lacks its store or its key" in (await wait_until(refused, "a refusal"))[0]["message"]
        assert (await session.say("again")).text == "You said again."
        history = await session.handle.fetch_history()
        for client in (session.client, stranger):
            await assert_replays(history, client.temporal.data_converter)
