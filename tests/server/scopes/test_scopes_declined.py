"""Code uses `user:` and `app:` state although its app declines to read it."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.scopes.looking import agent, commands, model_of, recall, remember
from tests.steps import run
from waystation.activities.scope_delivery import ScopeKeeper
from waystation.apps import App
from waystation.testing import calls, responses, says


def without_scopes(*replies: Any, **fields: Any) -> App:
    """Return an app that declines to read scopes."""
    return App(name="shop", root_agent=agent(*replies, **fields), state_scopes=False)


async def test_a_read_is_told_what_to_change(serve: Serve, app: str) -> None:
    """A read fails with the remedy, because a default value would hide the stored one."""
    clerk = without_scopes(calls(("recall", {"key": "user:name"})), says("ok"), tools=(recall,))
    await run(serve(clerk), "clerk", "go", app=app)
    [(_, response)] = responses(model_of(clerk.root_agent).requests[-1])
    assert response["error_type"] == "ScopesNotRead"
    assert "'user:name'" in response["error"]
    assert "`state_scopes=False`" in response["error"]


async def test_a_write_is_stored_all_the_same_and_can_be_read_back(serve: Serve, app: str) -> None:
    """A write is stored, and the same invocation can read it."""
    clerk = without_scopes(
        calls(("remember", {"key": "user:name", "value": "Ada"})), calls(("recall", {"key": "user:name"})), says("ok")
    )
    async with serve(clerk) as env:
        await env.client.run("clerk", "go", app=app)
        assert await env.client.user_state(app=app) == {"user:name": "Ada"}
    assert responses(model_of(clerk.root_agent).requests[-1])[-1] == ("recall", {"result": "Ada"})


async def test_a_template_is_told_what_to_change(serve: Serve, app: str) -> None:
    """A template fails with the remedy, even for an optional name."""
    clerk = without_scopes(says("ok"), instruction="Serve {user:name?}", tools=())
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "go", app=app)
        with pytest.raises(Exception, match="failed"):
            await invocation.result()
        [error] = [event for event in (await invocation.log()).state.events if event.error_code]
    assert error.error_code == "ScopesNotRead"


@pytest.mark.slow
async def test_a_delivery_that_is_repeated_counts_once(serve: Serve, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery counts once, although its first attempt is lost and another invocation writes the same key."""
    sent = asyncio.Event()
    send = ScopeKeeper._send

    async def lost(self: ScopeKeeper, *given: Any) -> None:
        await send(self, *given)
        if not sent.is_set():
            sent.set()
            handle = self._client.get_workflow_handle(given[0])
            await handle.signal("apply", {"id": "another/e1", "set": {"user:a": "newer"}})
            raise RuntimeError("the worker is lost")

    monkeypatch.setattr(ScopeKeeper, "_send", lost)
    clerk = agent(calls(("remember", {"key": "user:a", "value": "older"})), says("ok"), tools=(remember,))
    async with serve(clerk) as env:
        invocation = await env.client.start("clerk", "go", app=app)
        await invocation.result()
        assert (await commands(invocation)).count("apply_scopes") == 1
        assert await env.client.user_state(app=app) == {"user:a": "newer"}
