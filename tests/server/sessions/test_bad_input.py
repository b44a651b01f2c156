"""What outsiders may send to sessions: refused where it enters, and nobody else suffers."""

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
from tests.server.workflows.outside import until
from waystation.client.agent_client import AgentClient
from waystation.core import errors
from waystation.testing import assert_replays


@pytest.mark.parametrize("state", [{"a": object()}, {"a": float("nan")}, {"a": "\ud800"}])
async def test_a_state_that_is_not_json_is_refused(converse: Converse, state: dict[str, Any]) -> None:
    """Before anything is sent, by the value's place."""
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
    """As any other that is none; `temporal workflow update` sends it so when `--input` is left out."""
    async with converse(asking()) as session:
        await session.say("hello")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await session.handle.execute_update("send")
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "InvalidInput"
        assert (await session.say("again")).text == "You said again."


@pytest.mark.parametrize("name", ["n" * 64_000, "é" * 400, ""])
async def test_a_name_that_makes_no_id_is_refused(serve: Serve, name: str) -> None:
    """Whoever uses it, before anything is sent."""
    async with serve(asking(), verify=False) as env:
        with pytest.raises(ValueError, match=r"characters|empty"):
            env.client.session(agent="asker", session_id=name)
        with pytest.raises(ValueError, match=r"characters|empty"):
            await env.client.sessions.delete("s", user_id=name)


async def test_a_message_id_that_is_repeated_leads_to_the_same_invocation(converse: Converse) -> None:
    """Also at once, and after the answer."""
    async with converse(asking()) as session:
        sent = await asyncio.gather(*(session.send("hello", message_id="m") for _ in range(20)))
        assert len({one.id for one in sent}) == 1
        assert [one.duplicate for one in sent].count(False) == 1
        texts = {(await one.result()).text for one in sent}
        assert texts == {"You said hello."}
        assert (await session.say("other", message_id="m")).text == "You said hello."


async def test_a_large_message_that_no_worker_finds_is_refused_once_and_for_all(serve: Serve, tmp_path: Path) -> None:
    """Sent from another store: an update is told so, a signal is noted, also for workers that would find it later."""
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

        assert "the worker lacks its store or its key" in (await until(refused, "a refusal"))[0]["message"]
        assert (await session.say("again")).text == "You said again."
        history = await session.handle.fetch_history()
        for client in (session.client, stranger):
            await assert_replays(history, client.temporal.data_converter)
