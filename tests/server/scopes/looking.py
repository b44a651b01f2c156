"""Tools that write and read scopes, and helpers to read the results."""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio.service import RPCError

from waystation.agents import Agent, BaseAgent
from waystation.client.agent_client import Invocation
from waystation.core.scope_state import app_scope, user_scope
from waystation.testing import AgentEnvironment, ScriptedModel
from waystation.testing.models import Reply
from waystation.tools.tool_context import ToolContext


def remember(key: str, value: Any, tool_context: ToolContext) -> str:
    """Remember a value, such as under "user:name"."""
    tool_context.state[key] = value
    return "ok"


def recall(key: str, tool_context: ToolContext) -> str:
    """Recall a value."""
    return str(tool_context.state.get(key))


def forget(key: str, tool_context: ToolContext) -> str:
    """Forget a value."""
    del tool_context.state[key]
    return "ok"


def agent(*replies: Reply, tools: Sequence[Any] = (remember, recall, forget), **fields: Any) -> Agent:
    """Return an agent with a script."""
    return Agent(name=fields.pop("name", "clerk"), model=ScriptedModel(*replies), tools=list(tools), **fields)


def model_of(given: BaseAgent) -> ScriptedModel:
    """Return the script of an agent."""
    assert isinstance(given, Agent)
    assert isinstance(given.model, ScriptedModel)
    return given.model


async def scope_ids(env: AgentEnvironment, app: str, *users: str) -> list[str]:
    """Return the ids of the existing scopes of an app and some of its users."""
    found = []
    for scope_id in (app_scope(app), user_scope(app, "user"), *(user_scope(app, user) for user in users)):
        try:
            await env.temporal.get_workflow_handle(scope_id).describe()
        except RPCError:
            continue
        found.append(scope_id)
    return found


async def commands(invocation: Invocation) -> list[str]:
    """Return the types of the activities of an invocation, in order."""
    history = await invocation.history()
    scheduled = (e.activity_task_scheduled_event_attributes.activity_type.name for e in history.events)
    return [name for name in scheduled if name]


async def pending(invocation: Invocation) -> str:
    """Wait until a call of an invocation waits; return its id."""
    async with asyncio.timeout(20):
        while not (calls := await invocation.pending()):
            await asyncio.sleep(0.02)
    return calls[0].function_call_id
