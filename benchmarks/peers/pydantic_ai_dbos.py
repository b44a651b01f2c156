"""pydantic-ai on DBOS, in one process, with a SQLite database in the current folder.

Packages: pydantic-ai-slim[dbos].
"""

import uuid
from collections.abc import Sequence
from typing import Any

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from benchmarks.side import SYSTEM, Scenario

DBOS(
    config={
        "name": "bench",
        "system_database_url": "sqlite:///dbos.db",
        "log_level": "CRITICAL",
        "run_admin_server": False,
    }
)


async def reply(messages: Any, info: Any) -> ModelResponse:
    """Reply with the scenario's tool calls, then with its final text."""
    parts = [part for message in messages for part in message.parts]
    scenario = Scenario.parse(next(part.content for part in parts if isinstance(part, UserPromptPart)))
    if any(isinstance(part, ToolReturnPart) for part in parts):
        return ModelResponse(parts=[TextPart("f" * scenario.final)])
    args = {"size": scenario.size}
    return ModelResponse(parts=[ToolCallPart(scenario.tool, args, tool_call_id=f"c{i}") for i in range(scenario.calls)])


agent: Any = Agent(
    FunctionModel(reply),
    name="bench",
    instructions=SYSTEM,
    output_type=[str, DeferredToolRequests],
    capabilities=[DBOSDurability()],
)


@DBOS.step()
async def read(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


@agent.tool_plain
async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return str(await read(size))


@agent.tool_plain(requires_approval=True)
async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return str(await read(size))


@DBOS.workflow()
async def run_agent(text: str) -> str:
    """Return the model's final text."""
    result = await agent.run(text)
    while isinstance(result.output, DeferredToolRequests):
        await DBOS.set_event_async("pending", True)
        await DBOS.recv_async("approve", timeout_seconds=60)
        answers = DeferredToolResults(approvals={call.tool_call_id: True for call in result.output.approvals})
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
    return str(result.output)


class PydanticAIOnDbos:
    """pydantic-ai on DBOS; all work is done in the client process."""

    worker_pids: Sequence[int] = ()

    def __init__(self, address: str, queue: str, workers: int) -> None:
        """Configure nothing: there is no server."""

    async def open(self) -> None:
        """Open the database."""
        DBOS.launch()

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its ID."""
        id = uuid.uuid4().hex
        with SetWorkflowID(id):
            await run_agent(scenario.text())
        return id

    async def start_waiting(self, scenario: Scenario) -> Any:
        """Start an invocation, wait until its call is pending, and return its handle."""
        id = uuid.uuid4().hex
        with SetWorkflowID(id):
            handle = await DBOS.start_workflow_async(run_agent, scenario.text())
        await DBOS.get_event_async(id, "pending", timeout_seconds=30)
        return handle

    async def approve(self, waiting: Any, scenario: Scenario) -> str:
        """Approve the pending call, and wait for the result; return the invocation's ID."""
        await DBOS.send_async(waiting.workflow_id, True, "approve")
        await waiting.get_result()
        return str(waiting.workflow_id)


SIDE = PydanticAIOnDbos
