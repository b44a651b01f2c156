"""Fork an invocation: continue from one of its events with other input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import WorkflowAlreadyStartedError

from waystation.client.invocation_handle import ClientContext, Invocation, start_invocation
from waystation.core import MEMO_FORK, WORKFLOW, Budget, Fork, InvalidInput, InvocationInput, JsonObject, Log, ids
from waystation.core.log import fork

MAX_NUMBERS = 100
"""How many numbers are tried for a fork, after those that are known to be in use."""


class Forks:
    """Start and find forks; `AgentClient.forks`."""

    def __init__(self, client: ClientContext) -> None:
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
    ) -> Invocation:
        """Start an invocation that takes over the events of another one up to `event`, and continues from there.

        Recorded results are reused. Calls that had no result by then run, again if the source ran them later;
        approvals of such calls do not count, the fork asks for them again. To call a model again, name the event before
        its reply.

        Args:
            source: Id of the other invocation, running or closed.
            event: Number of the last event that is taken over, from 1.
            run_id: A run of the source, when it has several.
            message: Replaces the message of the source.
            instruction: Replaces the agent's own; only workers with `--allow-overrides` accept it.
            model: Name of a model that replaces the agent's own; likewise.
            agent: The agent whose instruction and model are replaced, in a tree of agents; by default the root agent.
            results: Responses to calls that then do not run, by function call id.
            budget: Limits of the fork, including what it took over; by default those of the source.
            requester: Who triggers it, when that is not the user.
            id: Id of the new invocation; by default `<source>~<number>`, by which `of` finds it.

        Raises:
            InvalidInput: Such a fork is not possible; the message says why.
            RPCError: There is no such invocation.
        """
        return await (
            await self.prepare(
                source,
                event,
                run_id=run_id,
                message=message,
                instruction=instruction,
                model=model,
                agent=agent,
                results=results,
                budget=budget,
                requester=requester,
                id=id,
            )
        ).start()

    async def prepare(
        self,
        source: str,
        event: int,
        *,
        run_id: str | None = None,
        message: str | JsonObject | None = None,
        budget: Budget | None = None,
        requester: str | None = None,
        id: str | None = None,
        **differently: Any,
    ) -> "PreparedFork":
        """Return a fork that is not started yet; parameters and errors as for `start`."""
        log = await Invocation.from_id(self._client, source, run_id=run_id).log()
        if log.state.input is None:
            raise InvalidInput(f"{source!r} never began; there is nothing to take over.")
        wanted = {name: value for name, value in differently.items() if value}
        if wanted.keys() & {"agent", "instruction", "model"} == {"agent"}:
            raise InvalidInput(
                f"Nothing is said of what {wanted['agent']!r} is to have: give an instruction or a model."
            )
        given = InvocationInput(
            **{name: getattr(log.state.input, name) for name in fork.SAME},
            message=log.state.input.message if message is None else message,
            budget=budget or Budget(),
            requester=requester,
            fork=Fork(invocation_id=source, event=event, run_id=run_id or "", **wanted),
        )
        return PreparedFork(self._client, given, id, fork.begun(log, given, log.entries[-1].time))

    async def of(self, id: str) -> list["FoundFork"]:
        """Return the forks of an invocation whose ids were generated, oldest first."""
        prefix = ids.fork(id, 0)[:-1]
        quoted = prefix.replace("\\", "\\\\").replace('"', '\\"')
        query = f'WorkflowType = "{WORKFLOW}" AND WorkflowId STARTS_WITH "{quoted}"'
        forks = {  # by id, since each has a row for every run
            row.id: FoundFork(row.id, (await row.memo()).get(MEMO_FORK, {}).get("event"))
            async for row in self._client.temporal.list_workflows(query)
            if ids.is_fork(id, row.id)
        }
        return sorted(forks.values(), key=lambda fork: int(fork.id[len(prefix) :]))


@dataclass(frozen=True, slots=True)
class FoundFork:
    """A fork found on the server."""

    id: str
    event: int | None
    """The last event that it takes over; None when it was started without a memo."""


@dataclass(frozen=True, slots=True)
class PreparedFork:
    """A fork that is not started yet."""

    client: ClientContext
    given: InvocationInput
    id: str | None
    log: Log
    """The log it starts with; its `performing()` are the calls that it runs first."""

    async def start(self) -> Invocation:
        """Start it.

        Raises:
            InvalidInput: There is an invocation of that id.
        """
        assert self.given.fork is not None
        source, memo = self.given.fork.invocation_id, {MEMO_FORK: self.given.fork.memo()}
        data = self.given.model_dump(mode="json", exclude_defaults=True)
        for chosen in [self.id] if self.id is not None else await self._free_ids(source):
            try:
                await start_invocation(self.client, chosen, data, memo)
            except WorkflowAlreadyStartedError:
                continue
            return Invocation.from_id(self.client, chosen)
        raise InvalidInput(f"There is an invocation {self.id or source!r} already; a fork needs an `id` of its own.")

    async def _free_ids(self, source: str) -> list[str]:
        first = len(await Forks(self.client).of(source)) + 1
        return [ids.fork(source, number) for number in range(first, first + MAX_NUMBERS)]
