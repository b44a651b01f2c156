"""List held invocations, which no worker can continue at the moment, retry their calls now, or give the calls up."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.workflowservice.v1 import ResetActivityRequest
from temporalio.client import WorkflowExecution

from waystation.client.invocation_handle import ClientContext, read_full_log
from waystation.client.search_attributes import AGENT
from waystation.core.contract import GIVE_UP_SIGNAL, HELD, MAX_MEMO_CALLS, MEMO_HELD, SEARCH_STATUS, WORKFLOW
from waystation.core.payload import JsonObject
from waystation.core.projection import HELD_TOOL, MODEL
from waystation.history import PendingRetry, fetch_retries, read_memo


@dataclass(frozen=True, slots=True)
class HeldInvocation:
    """An invocation that is held, and why."""

    invocation_id: str
    agent: str | None
    """Name of the agent, or None if the namespace has no search attributes."""
    holds: list[JsonObject]
    """The held calls, each with its reason, message, start time and, for a tool call, function call ID."""


class HeldInvocations:
    """Held invocations in the whole namespace, available as `AgentClient.held`."""

    def __init__(self, client: ClientContext) -> None:
        self._context, self._client = client, client.temporal

    async def each(self, *, searchable: bool) -> AsyncIterator[HeldInvocation]:
        """Yield the held invocations. `searchable` is whether the namespace has Waystation's search attributes."""
        query = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running'"
        if searchable:
            query += f" AND ({SEARCH_STATUS} STARTS_WITH '{HELD}' OR {AGENT.name} IS NULL)"
        async for execution in self._client.list_workflows(query):
            if holds := await self._read_holds(execution):
                yield HeldInvocation(execution.id, execution.typed_search_attributes.get(AGENT), holds)

    async def holds(self, id: str) -> list[JsonObject]:
        """Return the held calls of one invocation, without those of its called agents.

        Raises:
            RPCError: The invocation does not exist, or the server cannot be reached.
        """
        return await self._read_holds(await self._client.get_workflow_handle(id).describe())

    async def _read_holds(self, execution: WorkflowExecution) -> list[JsonObject]:
        holds = list((await read_memo(execution)).get(MEMO_HELD) or ())
        log = await read_full_log(self._context, execution) if len(holds) >= MAX_MEMO_CALLS else None
        return holds if log is None else [hold.facts() for hold in log.state.holds.values()]

    async def retry(self, id: str) -> list[PendingRetry]:
        """Make the server retry the held calls of an invocation and its called agents now, and return those calls.

        Raises:
            RPCError: The server cannot be reached, or cannot reset activities because it is too old.
        """
        held = [retry for retry in await self._held_work(id) if retry.next_at is not None]
        for work in [each for each in held if not each.is_due]:  # a reset would take a due one out of its task queue
            await self._client.workflow_service.reset_activity(
                ResetActivityRequest(
                    namespace=self._client.namespace,
                    execution=ExecutionId(workflow_id=work.workflow_id),
                    identity=self._client.identity,
                    id=work.activity,
                )
            )
        return held

    async def give_up(self, id: str) -> list[JsonObject]:
        """Fail the held calls of an invocation and its called agents, and return those calls.

        Raises:
            RPCError: The invocation does not exist, or the server cannot be reached.
        """
        given_up: list[JsonObject] = []
        for workflow_id in dict.fromkeys((id, *(work.workflow_id for work in await self._held_work(id)))):
            if holds := await self.holds(workflow_id):
                await self._client.get_workflow_handle(workflow_id).signal(GIVE_UP_SIGNAL)
                given_up += holds
        return given_up

    async def _held_work(self, id: str) -> list[PendingRetry]:
        retries, _ = await fetch_retries(self._client, id)
        return [retry for retry in retries if retry.type in (MODEL.name, HELD_TOOL.name) and not retry.most]
