"""`waystation run --budget`, and the answers to an agent that needs a larger budget, on a server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.core.budget import Usage
from waystation.models import LlmResponse
from waystation.testing import ScriptedModel, calls, says


def note(text: str) -> str:
    """Note something."""
    return text


def agent(*replies: LlmResponse) -> Agent:
    """Return an agent whose first reply calls `note` and uses 100 tokens, at a price of 1 per million."""
    usage = Usage(prompt_tokens=100, total_tokens=100)
    first = replace(calls(("note", {"text": "x"})), usage=usage)
    return Agent(name="clerk", model=ScriptedModel(first, *replies), tools=[note])


async def test_a_budget_can_be_raised_by_approving_a_request(serve: Serve, waystation: Command) -> None:
    """The agent's request for more reads like any other call, and `approve` answers it."""
    async with serve(agent(says("Noted."))) as env:
        id = f"budget-{env.client.task_queue}"
        limits = ("--budget", "tokens=100", "--on-exhausted", "ask", "--detach")
        ran = await waystation(env, "run", "clerk", "go", "--id", id, *limits)
        assert (ran.code, ran.err) == (0, "")
        assert "needs more budget: max_total_tokens: the limit of 100 tokens is used up." in " ".join(ran.out.split())
        listing = await waystation(env, "pending", id, "--json")
        assert [(call["function_call_id"], call["kind"]) for call in listing.records] == [("budget-1", "budget")]
        wrong = await waystation(env, "approve", id, "--response", '{"tokens": 5}')
        assert wrong.code == 2
        assert "no such limit" in wrong.err
        approval = await waystation(env, "approve", id, "budget-1", "--response", '{"max_total_tokens": 5}')
        assert (approval.code, approval.err) == (0, "")
        assert (await env.client.invocation(id).result()).status == "completed"
        events = await waystation(env, "events", id)
        assert "[budget-1] approved by" in events.out


async def test_a_cost_limit_needs_a_table_of_prices(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """The table is a file with prices by model."""
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"*": {"prompt": 1, "output": 1}}))
    async with serve(agent(says("Noted."))) as env:
        limits = ("--budget", "cost=0.0001", "--prices", str(prices))
        ran = await waystation(env, "run", "clerk", "go", *limits, "--json")
    result = ran.records[-1]["result"]
    assert (ran.code, result["status"], result["text"]) == (1, "stopped", "Noted.")
    assert result["reason"] == "max_cost: the limit of 0.0001 of cost is used up"
    assert result["spent"]["cost"] == pytest.approx(0.0001)
