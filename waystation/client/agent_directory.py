"""The agents that workers of a namespace have ever served, and their tools.

A worker announces its agents when it starts. They are stored as the state of a reserved app, so reading them requires
no running worker.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from waystation.core import (
    AGENT_DIRECTORY,
    APPLY_SIGNAL,
    SCOPE_WORKFLOW,
    ForeignHistory,
    JsonObject,
    PendingCall,
    ScopeDelta,
    UnknownAgent,
)
from waystation.history import ScopeReader
from waystation.storage import without_storage

log = structlog.get_logger("waystation.worker")

Tools = Mapping[str, Sequence[str] | None]
"""Names of the tools of each agent in a tree, or None for an agent whose toolsets list tools at run time."""

GRACE_S = (0.1, 0.2, 0.4, 0.8, 1.5)
"""Pauses, in seconds, between the attempts to find an agent. Its worker may have started at the same time."""
_PREFIX = "app:"


class AgentDirectory:
    """Reads and extends the list of announced agents."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scopes = ScopeReader(client)
        self._known: JsonObject = {}

    async def read(self) -> JsonObject:
        """Return the announced root agents by name, each with its `Tools`.

        Raises:
            RPCError: The server cannot be reached.
            ForeignHistory: A workflow of another type has the ID of the directory.
        """
        state = (await self._scopes.read(AGENT_DIRECTORY)).state
        self._known = {key.removeprefix(_PREFIX): tools for key, tools in state.items()}
        return self._known

    async def is_announced(self, agent: str) -> bool:
        """Return whether any worker has announced the root agent. True if the directory cannot be read."""
        try:
            return agent in self._known or agent in await self.read()
        except (ForeignHistory, RPCError):
            return True

    async def check(self, agent: str) -> None:
        """Check that an invocation of the agent can run, now or when its workers are running again.

        Raises:
            UnknownAgent: Workers have announced agents, but none has announced this one.
        """
        for pause in GRACE_S:
            if await self.is_announced(agent) or not self._known:
                return
            await asyncio.sleep(pause)
        if not await self.is_announced(agent):
            raise UnknownAgent(agent, self._known, where="Workers in this namespace have announced")

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
                    start_signal=APPLY_SIGNAL,
                    start_signal_args=[delta.model_dump(exclude_defaults=True)],
                )
        except (ForeignHistory, RPCError) as error:
            if not again:
                log.warning("agents.not_announced", problem=str(error))
