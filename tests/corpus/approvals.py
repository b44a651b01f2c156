"""Approvers of calls with policies, as in the scenarios."""

import contextlib
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowFailureError

from waystation.agents import Agent, BaseAgent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, Escalation
from waystation.core.errors import AnswerRefused
from waystation.core.log import is_working
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

SOON = timedelta(seconds=0.2)
RULING = {"type": "object", "properties": {"granted": {"type": "boolean"}}, "required": ["granted"]}


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def order(part: str) -> None:
    """Order a part."""


def paying(*replies: Any, **policy: Any) -> BaseAgent:
    """Return an agent that pays under a policy with unverified names."""
    policy_fields = ApprovalPolicy(**{"verified": False, **policy})
    model = ScriptedModel(*(replies or (calls(("pay", {"amount": 5})), says("Done."))))
    return Agent(name="clerk", model=model, tools=[FunctionTool(pay, approval=policy_fields)])


def by_two() -> BaseAgent:
    """Return a scenario in which two people must approve."""
    return paying(quorum=2)


def remembered() -> BaseAgent:
    """Return a scenario in which the second payment equals the first."""
    pays = calls(("pay", {"amount": 5}))
    return paying(pays, pays, says("Done."), remember=timedelta(days=36_500))


def escalated() -> BaseAgent:
    """Return a scenario in which Ann is reminded, and then her boss is asked."""
    return paying(approvers=("ann",), reminders=(SOON,), escalation=(Escalation(after=2 * SOON, to=("boss",)),))


def failing() -> BaseAgent:
    """Return a scenario in which an expiry ends the invocation."""
    return paying(deadline=SOON, on_expiry="fail")


def ordering() -> BaseAgent:
    """Return a scenario with a long-running call that has a response schema."""
    tool = LongRunningFunctionTool(order, response_schema=RULING)
    return Agent(name="clerk", model=ScriptedModel(calls(("order", {"part": "x"})), says("Ordered.")), tools=[tool])


def answers(*answers_sent: dict[str, Any]) -> Any:
    """Answer the first call by updates, one after the other; the workflow refuses some of them."""

    async def act(env: AgentEnvironment, invocation: Invocation) -> None:
        for answer in answers_sent:
            async for log in invocation.follow():
                call = log.state.calls.get("fc-1")
                if call and call.waiting and not is_working(log.state) and call.level >= answer.get("level", 0):
                    break
            fields = {key: value for key, value in answer.items() if key not in ("action", "level")}
            with contextlib.suppress(AnswerRefused):
                await invocation.answer(answer["action"], "fc-1", **fields)
        with contextlib.suppress(WorkflowFailureError):
            await invocation.result()

    return act


async def approve_in_part(env: AgentEnvironment, invocation: Invocation) -> None:
    """Return while the call still lacks one of its two approvals."""
    async for log in invocation.follow():
        if log.state.waiting() and not is_working(log.state):
            break
    await invocation.answer("claim", "fc-1", by="ann")
    await invocation.answer("approve", "fc-1", by="ann")
