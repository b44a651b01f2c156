"""Pass state between workflow runs: archive logs, fork invocations and read the results of called agents."""

from collections.abc import Sequence

import structlog
from temporalio import activity
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistoryEventFilterType
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.activity_attempt import convert_errors, send_heartbeats
from waystation.activities.log_cache import LogCache
from waystation.activities.proofs import ProofFactory
from waystation.agents import BaseAgent, LlmAgent
from waystation.apps.registry import Registry, Root
from waystation.core.contract import Fork, InvocationInput, Position, SegmentRef
from waystation.core.errors import ForeignHistory, IdentityUnavailable, InvalidInput, NotAllowed, StoreFailed
from waystation.core.log import Entry, Failure, Log, ModelReplied
from waystation.core.projection import (
    Archived,
    ArchiveInput,
    ChildInput,
    ChildOutcome,
    Projection,
    Snapshot,
    Started,
    entries_from_json,
    entries_to_json,
    fork,
    pack_entries,
)
from waystation.history import (
    HistoryReader,
    build_log,
    continued_as,
    decode_events,
    decode_histories,
    fetch_log_before,
    find_run_id,
    read_outcome,
)
from waystation.storage import Blobs

events = structlog.get_logger("waystation.activities")

MAX_INLINE_BYTES = 64_000
MAX_BYTES = 1_500_000
"""Maximum size of the encoded state that a fork inherits. If the state is larger, the fork fails."""
MAX_CHILD_RUNS = 1_000
"""Maximum number of a called agent's runs to follow in one check. If there are more, the agent counts as running."""


class CarryOver:
    """Runs the activities `archive`, `take_over` and `child_outcome`."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        logs: LogCache,
        blobs: Blobs,
        *,
        proofs: ProofFactory,
        forks: bool,
        overrides: bool,
    ) -> None:
        """Store the settings.

        `forks` determines whether forks are allowed, and `overrides` whether they may replace instructions and models.
        """
        self._client, self._registry, self._logs, self._blobs = client, registry, logs, blobs
        self._proofs, self._forks, self._overrides = proofs, forks, overrides

    async def archive(self, params: ArchiveInput) -> bytes:
        """Archive the log from entry `params.since`, before the run continues as new. Return an encoded `Archived`.

        Entries of up to `params.inline` bytes in total are not stored, because the next run receives them inline. The
        entries are read from the history because cached logs do not include the times when entries were applied.

        Raises:
            ApplicationError: The store or the history is not available. The server retries the activity.
        """
        info = activity.info()
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        upto = params.at + len(params.new)
        # Retry for ForeignHistory, too: the next attempt reads the history again.
        with send_heartbeats(), convert_errors("archive.failed", final=(), retried=(ForeignHistory, StoreFailed)):
            history = await self._client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
            history_events = await decode_events(history.events, self._client.data_converter)
            data = pack_entries(_entries_of(workflow_id, history_events, params.since, upto))
            # Fill the cache so that the next run finds the whole log in this process.
            await self._logs.at(workflow_id, run_id, params)
            if len(data) <= params.inline:
                return Archived(upto=upto).encode()
            digest = await self._blobs.put(data, workflow_id=workflow_id)
        ref = SegmentRef(digest=digest, size=len(data), entries=upto - params.since)
        events.info("archive.completed", invocation_id=workflow_id, entries=ref.entries, size=ref.size)
        return Archived(upto=upto, segment=ref).encode()

    async def take_over(self, position: Position) -> bytes:
        """Return an encoded `TakenOver`, the state that a fork inherits from its source.

        Raises:
            ApplicationError: The source cannot be read or cannot be forked as requested, or this worker does not allow
                the fork.
        """
        info = activity.info()
        final, retried = (InvalidInput, NotAllowed), (StoreFailed, IdentityUnavailable)
        with send_heartbeats(), convert_errors("fork.failed", final=final, retried=retried):
            try:
                log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", position)
                assert log.state.input is not None
                assert log.state.input.fork is not None
                started = log.state.input.model_copy(update={"signed_request": await self._proofs.sign_request(log)})
                return (await self._build_fork(started, log.state.input.fork)).encode()
            except ForeignHistory as error:
                raise InvalidInput(str(error)) from None

    async def _build_fork(self, started: InvocationInput, request: Fork) -> fork.TakenOver:
        if not self._forks:
            raise InvalidInput("This worker does not allow forks. Start it with --allow-forks.")
        overrides = request.instruction is not None or request.model is not None
        if overrides and not self._overrides:
            raise InvalidInput(
                "This worker does not let forks replace the instruction or the model. Start it with --allow-overrides, "
                "or fork without them."
            )
        source, run_id = await self._source(request)
        # Use the server's clock, as workflows do.
        now = activity.info().current_attempt_scheduled_time.timestamp()
        entries = fork.forked_entries(source, request.model_copy(update={"run_id": run_id}), started, now)
        built = Log(activity.info().workflow_id or "").extend(entries)
        assert built.state.input is not None
        if overrides:
            self._check_overridden(built.state.root, built.state.input.agent, request.agent or built.state.input.agent)
        signals, updates = fork.message_counts(entries)
        fork_state = fork.TakenOver(
            input=built.state.input.model_copy(update={"state": {}}).model_dump(mode="json", exclude_defaults=True),
            snapshot=Snapshot.of(built),
            signals=signals,
            updates=updates,
            search_attributes=any(isinstance(e.body, ModelReplied) and e.body.reply.search_attributes for e in entries),
        )
        packed = pack_entries(entries)
        if len(packed) <= MAX_INLINE_BYTES:
            fork_state = fork_state.model_copy(update={"tail": tuple(entries_to_json(entries))})
        else:
            digest = await self._blobs.put(packed, workflow_id=built.invocation_id)
            ref = SegmentRef(digest=digest, size=len(packed), entries=len(entries))
            fork_state = fork_state.model_copy(update={"segments": (ref,)})
        if (size := len(fork_state.encode())) > MAX_BYTES:
            raise InvalidInput(f"State and pending calls take up {size} bytes; a fork can inherit at most {MAX_BYTES}.")
        events.info("fork.taken_over", source=request.invocation_id, at=request.event, entries=len(entries))
        return fork_state

    def _check_overridden(self, root_name: str, top: str, agent: str) -> None:
        """Check that `agent` is an LLM agent in the tree of `top`. `apply_overrides` would ignore any other agent.

        If `top` does not exist, return without an error, because the first step of the fork reports that.

        Raises:
            InvalidInput: The agent is not an LLM agent, or is not in the tree of `top`.
        """
        root = self._registry.find_root(root_name)
        started = root.find(top) if root else None
        if root is None or started is None:
            return  # the first step of the fork reports that
        below = [member for member in root.tree.values() if started.find_agent(member.name)]
        names = [descendant.name for descendant in below if isinstance(descendant, LlmAgent)]
        if getattr(root.find(agent), "name", None) not in names:
            raise InvalidInput(
                f"{agent!r} has no model in an invocation of {top!r}, so a fork cannot override it. "
                f"`agent` can be: {', '.join(names) or 'none'}. Agents called as tools run in their own invocations."
            )

    async def _source(self, request: Fork) -> tuple[Log, str]:
        """Return the source invocation's log up to the requested run, by default the latest, and the ID of that run.

        Raises:
            InvalidInput: There is no such invocation, or the beginning of its log is lost.
        """
        handle = self._client.get_workflow_handle(request.invocation_id, run_id=request.run_id or None)
        try:
            [latest] = await decode_histories([await handle.fetch_history()], self._client.data_converter)
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise
            raise InvalidInput(f"There is no invocation {request.invocation_id!r} to fork.") from None
        before = await fetch_log_before(self._client, request.invocation_id, latest.events[0], self._blobs.get)
        log = build_log([latest], before)
        if log.entries_before:
            raise InvalidInput(f"The beginning of {request.invocation_id!r} is lost; it cannot be forked.")
        return log, find_run_id(latest.events)

    async def child_outcome(self, params: ChildInput) -> bytes:
        """Return an encoded `ChildOutcome` for an agent that an earlier run called.

        If the agent's history is gone, the outcome is a failure.

        Raises:
            ApplicationError: The called agent is still running. The server retries the activity.
        """
        run_id = params.run_id
        closing = WorkflowHistoryEventFilterType.CLOSE_EVENT
        for _ in range(MAX_CHILD_RUNS):
            handle = self._client.get_workflow_handle(params.workflow_id, run_id=run_id)
            try:
                close_events = [event async for event in handle.fetch_history_events(event_filter_type=closing)]
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                failure = Failure(kind="error", error_type="UnknownInvocation", message="Its history is gone.")
                return ChildOutcome(failure=failure).encode()
            (last,) = await decode_events(close_events[-1:], self._client.data_converter)
            if outcome := read_outcome(last):
                return outcome.encode()
            if (following := continued_as(last)) is None:
                break
            run_id = following
        benign = ApplicationErrorCategory.BENIGN
        raise ApplicationError(f"{activity.info().activity_id} is still running.", type="StillAtWork", category=benign)


def _entries_of(workflow_id: str, history: Sequence[HistoryEvent], since: int, upto: int) -> list[Entry]:
    """Return the log entries from `since` up to but not including `upto`, which must all be in one run's history.

    The entries that the run's input carries inline are part of its history.

    Raises:
        ForeignHistory: The history does not contain these entries.
    """
    projection = Projection(workflow_id)
    inherited: list[Entry] = []
    for fact in HistoryReader().read(history):
        projection.feed([fact])
        if isinstance(fact, Started) and (carried := fact.carried()):
            inherited = entries_from_json(carried[1].tail)
    projection.flush()
    log = projection.log
    entries = [*inherited, *log.entries]
    first = log.entries_before - len(inherited)
    if not first <= since <= upto <= log.length:
        raise ForeignHistory(f"The history of {workflow_id!r} lacks entries {since} to {upto}.")
    return entries[since - first : upto - first]


def apply_overrides(root: Root, agent: BaseAgent, started: InvocationInput | None) -> BaseAgent:
    """Return the agent with the fork's instruction and model, or unchanged if no fork overrides this agent."""
    request = started.fork if started else None
    if request is None or started is None or agent is not root.find(request.agent or started.agent):
        return agent
    update = request.model_dump(include={"instruction", "model"}, exclude_none=True)
    return agent.model_copy(update=update) if update and isinstance(agent, LlmAgent) else agent
