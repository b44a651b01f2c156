"""Quotas whose store is unavailable."""

from dataclasses import replace
from pathlib import Path

from tests.server.conftest import Serve
from tests.steps import QUICK_SETTINGS, wait_for_hold
from waystation.agents import Agent
from waystation.core.budget import ModelLimit, Quotas
from waystation.testing import ScriptedModel, says


async def test_a_call_is_held_while_the_store_is_unavailable(serve: Serve, tmp_path: Path) -> None:
    """The model is not called without a reservation; the invocation continues when the store is back."""
    place = tmp_path / "quotas.db"
    place.mkdir()
    model = ScriptedModel(says("Hi."))
    settings = replace(QUICK_SETTINGS, quotas=Quotas(store=str(place), limits=(ModelLimit(model="*"),)))
    async with serve(Agent(name="agent", model=model), settings=settings) as env:
        invocation = await env.client.start("agent", "go")
        assert (await wait_for_hold(invocation))["reason"] == "store_failed"
        assert model.requests == []
        place.rmdir()
        await env.client.held.retry(invocation.id)
        assert (await invocation.result()).text == "Hi."
