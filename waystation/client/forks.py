"""Forks: invocations that go on from an event of another one, in another way."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from temporalio.exceptions import WorkflowAlreadyStartedError

from waystation.client.starting import begin
from waystation.core import fork, ids
from waystation.core.budget import Budget
from waystation.core.errors import InvalidInput
from waystation.core.lineage import Fork
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.wire import WORKFLOW, InvocationInput

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient, Invocation

MEMO = "waystation_fork"
"""Says in the memo of a fork of which invocation, and from which event, it goes on."""
MAX_NUMBERS = 100
"""How many numbers are tried for a fork, after those that are known to be taken."""


class Forks:
    """Starts forks, and finds them; `AgentClient.forks`."""

    def __init__(self, client: "AgentClient") -> None:
        self._client = client

    async def start(
        self,
        source: str,
        event: int,
        *,
        run_id: str | None = None,
        message: str | JsonObject | None = None,
        instruction: str | None = None,
        model: str | None = None,
        agent: str | None = None,
        results: Mapping[str, JsonObject] | None = None,
        budget: Budget | None = None,
        requester: str | None = None,
        id: str | None = None,
    ) -> "Invocation":
        """Start an invocation that takes over the events of another one up to `event`, and goes on from there.

        What was recorded up to there does not happen again. Calls that had no result by then are carried out, once more
        if the source has carried them out later. What people had decided on such calls does not count: they are asked
        again. To have a model asked again, name the event before its reply.

        Args:
            source: Id of the other invocation, which may go on or be over.
            event: Number of the last event that is taken over, from 1.
            run_id: A run of the source, when it has several.
            message: What the agent is told, instead of what the source was told.
            instruction: Instead of the agent's own; only workers with `--allow-overrides` take it.
            model: Name of the model, instead of the agent's own; likewise.
            agent: Whose instruction and model are meant, in a tree of agents; by default those of the one started.
            results: Responses to calls that are then not carried out, by the ids of the calls.
            budget: What it may use in all, what is taken over included; by default as the source.
            requester: Who triggers it, when that is not the user.
            id: Id of the new invocation; by default `<source>~<number>`, by which `of` finds it.

        Raises:
            InvalidInput: It cannot be forked so; the message says why.
            RPCError: There is no such invocation.
        """
        log = await self._client.invocation(source, run_id=run_id).log()
        if log.input is None:
            raise InvalidInput(f"{source!r} never began; there is nothing to take over.")
        wanted = Fork(
            invocation_id=source,
            event=event,
            run_id=run_id or "",
            results=dict(results or {}),
            agent=agent,
            instruction=instruction,
            model=model,
        )
        same = {name: getattr(log.input, name) for name in fork.SAME}
        given = InvocationInput(
            **same,
            message=log.input.message if message is None else message,
            budget=budget or Budget(),
            requester=requester,
            fork=wanted,
        )
        self.preview(log, given)
        data = given.model_dump(mode="json", exclude_defaults=True)
        lineage = {MEMO: {"invocation_id": source, "event": event}}
        first = len(await self.of(source)) + 1 if id is None else 1
        for number in range(first, first + MAX_NUMBERS):
            chosen = id or ids.fork(source, number)
            try:
                return self._client.invocation((await begin(self._client, chosen, data, lineage)).id)
            except WorkflowAlreadyStartedError:
                if id is not None:
                    raise InvalidInput(
                        f"There is an invocation {id!r} already; a fork needs an id of its own."
                    ) from None
        raise InvalidInput(f"{source!r} has very many forks; name the next one with `id`.")

    def preview(self, source: Log, given: InvocationInput) -> Log:
        """Return the log with which a fork would begin; its `performing()` are the calls that it carries out first.

        Raises:
            InvalidInput: It cannot be forked so; the message says why.
        """
        assert given.fork is not None
        return fork.built(fork.taken(source, given.fork, given, source.entries[-1].time))

    async def of(self, id: str) -> list[str]:
        """Return the ids of the forks of an invocation, oldest first, as far as their ids were left to be chosen."""
        prefix = ids.fork(id, 0)[:-1]
        quoted = prefix.replace("\\", "\\\\").replace('"', '\\"')
        query = f'WorkflowType = "{WORKFLOW}" AND WorkflowId STARTS_WITH "{quoted}"'
        found = {each.id async for each in self._client.temporal.list_workflows(query)}  # with a row for each run
        return sorted(filter(partial(ids.is_fork, id), found), key=lambda each: int(each[len(prefix) :]))
