"""Agents that ask people, and helpers that observe their calls."""

from collections.abc import Sequence
from typing import Any

from tests.steps import wait_until
from waystation import Agent, AgentClient, AgentTool, FunctionTool, LongRunningFunctionTool
from waystation.core.approval import PendingCall
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, responses, says


def ask(purpose: str) -> None:
    """Ask a person."""


def asks_once(name: str, args: Any) -> FunctionModel:
    """Return a model that makes one call in every invocation, and then reports the answer."""

    def reply(request: LlmRequest) -> LlmResponse:
        answers = responses(request)
        return says(f"They said {answers[-1][1]}.") if answers else calls((name, args))

    return FunctionModel(reply)


def asker(name: str = "asker", purpose: str = "x") -> Agent:
    """Return an agent that asks a person by a long-running call."""
    return Agent(name=name, model=asks_once("ask", {"purpose": purpose}), tools=[LongRunningFunctionTool(ask)])


def payer(pay: Any, name: str = "payer") -> Agent:
    """Return an agent that pays 5 after a confirmation."""
    return Agent(name=name, model=asks_once("pay", {"amount": 5}), tools=[FunctionTool(pay, require_confirmation=True)])


def boss(child: Agent) -> Agent:
    """Return an agent that calls another one."""
    return Agent(name="boss", model=asks_once(child.name, {"request": "go"}), tools=[AgentTool(child)])


async def listed(client: AgentClient, count: int, **filters: Any) -> list[PendingCall]:
    """Wait until visibility lists this many calls, and return them."""

    async def look() -> tuple[list[PendingCall]] | None:
        matches = [call async for call in client.approvals.each(**filters)]
        return (matches,) if len(matches) == count else None

    calls_listed = await wait_until(look, f"{count} calls of {filters}")
    assert calls_listed is not None
    return calls_listed[0]


def ids(pending_calls: Sequence[PendingCall]) -> list[str]:
    """Return the IDs by which calls are answered."""
    return [call.approval_id for call in pending_calls]
