"""Logging a result never changes it."""

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from waystation.activities import tool_caller
from waystation.activities.model_call import model_caller
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says


class Broken:
    """A log whose reader has closed."""

    def info(self, event: str, **fields: object) -> None:
        """Fail, as a closed pipe does."""
        raise BrokenPipeError(event)


async def test_a_broken_log_repeats_neither_model_nor_tool(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are returned before they are logged, so a broken log repeats no call."""
    till = Till()
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))
    monkeypatch.setattr(model_caller, "events", Broken())
    monkeypatch.setattr(tool_caller, "events", Broken())
    async with serve(Agent(name="payer", model=model, tools=[till.pay])) as env:
        invocation = await env.client.start("payer", "pay 5")
        assert (await invocation.result()).text == "Paid."
        assert till.paid == [5]
        started = [event.activity_task_started_event_attributes for event in (await invocation.history()).events]
        assert max(each.attempt for each in started) == 1
