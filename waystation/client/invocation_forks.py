"""Fork an invocation: continue from one of its events with different input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import WorkflowAlreadyStartedError

from waystation.client.invocation_handle import ClientContext, Invocation, start_invocation
from waystation.client.token_encryption import Token
from waystation.core import ids
from waystation.core.budget import Budget
from waystation.core.contract import MEMO_FORK, WORKFLOW, Fork, InvocationInput
from waystation.core.errors import InvalidInput
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.projection import fork
from waystation.history import read_memo

MAX_NUMBERS = 100
"""Maximum number of generated IDs to try when a fork is started without an explicit ID."""


class Forks:
    """Starts and finds forks. Available as `AgentClient.forks`."""

    def __init__(self, client: ClientContext) -> None:
        self._client = client

    async def start(
        self,
        source: str,
        event: int | None = None,
        *,
        run_id: str | None = None,
        message: str | JsonObject | None = None,
        instruction: str | None = None,
        model: str | None = None,
        agent: str | None = None,
        results: Mapping[str, JsonObject] | None = None,
        budget: Budget | None = None,
        requester: str | None = None,
        token: Token | None = None,
        id: str | None = None,
    ) -> Invocation:
        """Start an invocation that copies the source's events up to and including `event`, and continues from there.

        The fork reuses recorded results. Calls without a result at that event run in the fork, even if the source ran
        them later, and their approvals are requested again. To repeat a model call, pass the event before its reply.

        Args:
            source: ID of the invocation to fork, running or closed.
            event: Number of the last event to copy, starting at 1. Defaults to the last event of the source. If the
                source failed, the fork then retries the failed step.
            run_id: The run of the source to fork, if the source has several. Defaults to the latest.
            message: Replaces the message of the source.
            instruction: Replaces the agent's instruction. Only workers with `--allow-overrides` accept it.
            model: Name of the model to use instead of the agent's. Only workers with `--allow-overrides` accept it.
            agent: The agent whose instruction and model are replaced. Defaults to the root agent.
            results: Responses by function call ID. These calls do not run.
            budget: Limits for the fork, counting the usage up to `event`. Defaults to the limits of the source.
            requester: The person who triggers the fork, if different from the user.
            token: Proves the identity of the person who triggers the fork; see `AgentClient.start`.
            id: ID of the new invocation, `<source>~<number>` by default. `of` finds only forks with such default IDs.

        Raises:
            InvalidInput: This fork is not possible; the message gives the reason.
            RPCError: The source does not exist.
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
        ).start(token=token)

    async def prepare(
        self,
        source: str,
        event: int | None = None,
        *,
        run_id: str | None = None,
        message: str | JsonObject | None = None,
        budget: Budget | None = None,
        requester: str | None = None,
        id: str | None = None,
        **changes: Any,
    ) -> "PreparedFork":
        """Prepare a fork without starting it. Parameters and errors are the same as for `start`."""
        log = await Invocation.from_id(self._client, source, run_id=run_id).log()
        if log.state.input is None:
            raise InvalidInput(f"{source!r} never started, so there is nothing to fork.")
        overrides = {name: value for name, value in changes.items() if value}
        if overrides.keys() & {"agent", "instruction", "model"} == {"agent"}:
            raise InvalidInput(f"Nothing changes for agent {overrides['agent']!r}. Add an instruction or a model.")
        fork_input = InvocationInput(
            **{name: getattr(log.state.input, name) for name in fork.SAME},
            message=log.state.input.message if message is None else message,
            budget=budget or Budget(),
            requester=requester,
            fork=Fork(invocation_id=source, event=event or log.state.event_count, run_id=run_id or "", **overrides),
        )
        return PreparedFork(self._client, fork_input, id, fork.make_fork_log(log, fork_input, log.entries[-1].time))

    async def of(self, id: str) -> list["FoundFork"]:
        """Return the forks of an invocation, sorted by number. Finds only forks whose IDs were generated."""
        prefix = ids.fork(id, 0)[:-1]
        quoted = prefix.replace("\\", "\\\\").replace('"', '\\"')
        query = f'WorkflowType = "{WORKFLOW}" AND WorkflowId STARTS_WITH "{quoted}"'
        forks = {  # keyed by ID, because the list has a row for every run
            row.id: FoundFork(row.id, (await read_memo(row)).get(MEMO_FORK, {}).get("event"))
            async for row in self._client.temporal.list_workflows(query)
            if ids.is_fork(id, row.id)
        }
        return sorted(forks.values(), key=lambda fork: int(fork.id[len(prefix) :]))


@dataclass(frozen=True, slots=True)
class FoundFork:
    """A fork found on the server."""

    id: str
    event: int | None
    """Number of the last copied event, or None if the fork has no memo."""


@dataclass(frozen=True, slots=True)
class PreparedFork:
    """A fork that has not been started yet."""

    client: ClientContext
    given: InvocationInput
    id: str | None
    log: Log
    """The log that the fork starts with. Its `state.performing()` returns the calls that the fork runs first."""

    async def start(self, *, token: Token | None = None) -> Invocation:
        """Start the fork. `token` proves the identity of the person who triggers it.

        Raises:
            InvalidInput: An invocation with the fork's ID, or with every generated ID, already exists.
        """
        assert self.given.fork is not None
        source, memo = self.given.fork.invocation_id, {MEMO_FORK: self.given.fork.memo()}
        data = self.given.model_dump(mode="json", exclude_defaults=True)
        for id in [self.id] if self.id is not None else await self._find_free_ids(source):
            try:
                await start_invocation(self.client, id, data, memo, token=token)
            except WorkflowAlreadyStartedError:
                continue
            return Invocation.from_id(self.client, id)
        raise InvalidInput(f"The invocation {self.id or source!r} already exists. Pass a different `id` for the fork.")

    async def _find_free_ids(self, source: str) -> list[str]:
        first = len(await Forks(self.client).of(source)) + 1
        return [ids.fork(source, number) for number in range(first, first + MAX_NUMBERS)]
