"""The agents that workers of a namespace have ever served, and their tools.

A worker announces its agents when it starts. They are stored as the state of a reserved app, so reading them requires
no running worker.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from pydantic import ValidationError
from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.core.approval import PendingCall
from waystation.core.contract import TASK_TIMEOUT
from waystation.core.errors import ForeignHistory, UnknownAgent
from waystation.core.payload import JsonObject, Recorded
from waystation.core.scope_state import AGENT_DIRECTORY, APPLY_SIGNAL, SCOPE_WORKFLOW, ScopeDelta
from waystation.history import ScopeReader, describe_workflow
from waystation.storage import without_storage

log = structlog.get_logger("waystation.worker")

Tools = Mapping[str, Sequence[str] | JsonObject | None]
"""Names of the tools of each agent in a tree, or None for an agent whose toolsets list tools at run time.

The key `DETAILS` contains each agent's `AgentDetails` as JSON.
"""
DETAILS = "(details)"
"""A key of `Tools` that no agent can have, because the names of agents are identifiers."""

GRACE_S = (0.1, 0.2, 0.4, 0.8, 1.5)
"""Pauses, in seconds, between the attempts to find an agent. Its worker may have started at the same time."""
SETTLED_S, RESETTLED_S = 10.0, 75.0
"""Age, in seconds, at which the directory is complete: all workers that started at the same time have announced their
agents by then or, if the server's database was emptied, all workers that were running have announced them again."""
EMPTIED = "waystation_emptied"
"""Memo of a directory that was created by a worker that was already running."""
_PREFIX = "app:"


class AgentDetails(Recorded):
    """An announced agent, as its worker describes it."""

    kind: str = ""
    """`llm`, `sequential`, `parallel`, `loop` or `custom`. Empty if the worker announced no details."""
    description: str = ""
    model: str = ""
    sub_agents: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    """The agents that the agent calls as tools."""
    tools: tuple[str, ...] | None = None
    """None if toolsets list the tools at run time. Announced separately, in `Tools`."""


class AgentDirectory:
    """Reads and extends the list of announced agents."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scopes = ScopeReader(client)
        self._known: JsonObject = {}
        """All agents that this object has ever read."""

    async def read(self) -> JsonObject:
        """Return the announced root agents by name, each with its `Tools`.

        Raises:
            RPCError: The server cannot be reached.
            ForeignHistory: A workflow of another type has the ID of the directory.
        """
        state = (await self._scopes.read(AGENT_DIRECTORY)).state
        agents = {key.removeprefix(_PREFIX): tools for key, tools in state.items()}
        self._known |= agents
        return agents

    async def describe(self) -> dict[str, dict[str, AgentDetails]]:
        """Return the announced root agents by name, each with the agents in its tree by name, itself first.

        Raises:
            RPCError: The server cannot be reached.
            ForeignHistory: A workflow of another type has the ID of the directory.
        """
        agents = await self.read()
        return {name: parse_details(name, agents[name]) for name in sorted(agents)}

    async def is_announced(self, agent: str) -> bool:
        """Return whether any worker has announced the root agent.

        Also return True if this is uncertain, because the directory is new or cannot be read.
        """
        return await self._may_list(agent) or not await self._lacks(agent)

    async def check(self, agent: str) -> None:
        """Check that an invocation of the agent can run, now or when its workers are running again.

        Raises:
            UnknownAgent: Workers have announced agents, but none has announced this one.
        """
        pauses = list(GRACE_S)
        while not await self._may_list(agent):
            if not pauses and await self._lacks(agent):
                raise UnknownAgent(agent, self._known, where="Workers in this namespace have announced")
            await asyncio.sleep(pauses.pop(0) if pauses else 1.0)

    async def _may_list(self, agent: str) -> bool:
        """Return whether the directory lists the root agent, is empty or cannot be read."""
        try:
            return agent in self._known or not (agents := await self.read()) or agent in agents
        except (ForeignHistory, RPCError):
            return True

    async def _lacks(self, agent: str) -> bool:
        """Return whether it is certain that no worker has announced the root agent."""
        # Read the directory last, because announcements may have arrived before it was complete.
        return await self._is_complete() and not await self._may_list(agent)

    async def _is_complete(self) -> bool:
        """Return whether no running worker has still to announce its agents.

        The directory must be old enough, and no workflow task may be in progress. Until such a task ends, the server
        keeps announcements back, for some seconds if the task was given to a worker that was killed.
        """
        with suppress(RPCError):
            described = await describe_workflow(self._client, AGENT_DIRECTORY)
            if described is not None:
                settled_s = RESETTLED_S if EMPTIED in described.raw_info.memo.fields else SETTLED_S
                is_old = described.start_time.timestamp() + settled_s < time.time()
                task = described.raw_description.pending_workflow_task
                return is_old and task.state != PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
        return False

    async def find_missing_tool(self, call: PendingCall) -> str | None:
        """Return a warning for the approver if the tool of a call has been removed, or None.

        The latest announcement of each agent counts. Return None if the directory cannot be read.
        """
        try:
            announced = [tools for tools in (await self.read()).values() if isinstance(tools, dict)]
        except (ForeignHistory, RPCError):
            return None
        lists = [tools[call.agent] for tools in announced if call.agent in tools]
        if call.kind != "confirmation" or not lists or any(names is None or call.tool in names for names in lists):
            return None
        return (
            f"The workers of agent {call.agent!r} no longer have the tool {call.tool!r}. If you approve the call, it "
            "is held until a worker has the tool again."
        )

    async def announce(self, agents: Mapping[str, Tools], *, task_queue: str, again: bool = False) -> None:
        """Add the root agents that are new or whose tools have changed. If this fails, log a warning.

        With `again`, add only agents that are missing, for example because the server's database was emptied, and do
        not log failures. The tools of the worker that started last remain.
        """
        if not agents:
            return
        try:
            known = await self.read()
            kept = {name for name, tools in agents.items() if name in known and (again or known[name] == tools)}
            if new := {f"{_PREFIX}{name}": tools for name, tools in agents.items() if name not in kept}:
                delta = ScopeDelta(id=f"worker-{uuid.uuid4().hex}/e1", set=new)
                # Keep signals inline, because readers may use a different store.
                await without_storage(self._client).start_workflow(
                    SCOPE_WORKFLOW,
                    id=AGENT_DIRECTORY,
                    task_queue=task_queue,
                    task_timeout=TASK_TIMEOUT,
                    start_signal=APPLY_SIGNAL,
                    start_signal_args=[delta.model_dump(exclude_defaults=True)],
                    memo={EMPTIED: True} if again else None,
                )
        except (ForeignHistory, RPCError) as error:
            if not again:
                log.warning("agents.not_announced", problem=str(error))


def parse_details(root: str, tools: Any) -> dict[str, AgentDetails]:
    """Return the agents of a tree by name, the root agent first. Details that are missing or not valid are left out."""
    tools = tools if isinstance(tools, dict) else {}
    described = tools.get(DETAILS)
    details: JsonObject = described if isinstance(described, dict) else {}
    agents = dict[str, AgentDetails]()
    for name in dict.fromkeys((root, *details, *(name for name in tools if name != DETAILS))):
        names = tools.get(name, ())
        try:
            agents[name] = AgentDetails.model_validate({**(details.get(name) or {}), "tools": names})
        except (TypeError, ValidationError):  # written by a later version, or not by a worker
            agents[name] = AgentDetails()
    return agents
