"""Agents that many tests serve. Each one follows a script, so a test states only its special options."""

from collections.abc import Callable
from typing import Any

from waystation.agents import Agent, BaseAgent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

PAY = calls(("pay", {"amount": 5}))
ASK = calls(("ask", {}))


def speaks(name: str, *replies: Any, **fields: Any) -> Agent:
    """Return an agent with scripted replies."""
    return Agent(name=name, model=ScriptedModel(*replies), **fields)


def payer(pay: Callable[..., Any], *replies: Any, name: str = "payer", **options: Any) -> Agent:
    """Return an agent that pays 5 and then says "Done.", or follows the given replies.

    A payment needs a confirmation, unless the options of the tool have an approval policy.
    """
    tool = FunctionTool(pay, **{"require_confirmation": "approval" not in options, **options})
    return speaks(name, *(replies or (PAY, says("Done."))), tools=[tool])


def ask() -> None:
    """Ask somebody."""


def asker(*replies: Any, name: str = "asker", **fields: Any) -> Agent:
    """Return an agent that asks somebody and then says "Done.", or follows the given replies."""
    return speaks(name, *(replies or (ASK, says("Done."))), tools=[LongRunningFunctionTool(ask)], **fields)


def model_of(agent: BaseAgent) -> ScriptedModel:
    """Return the script of an agent, with the requests that it has received."""
    assert isinstance(agent, Agent)
    assert isinstance(agent.model, ScriptedModel)
    return agent.model
