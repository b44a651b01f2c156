"""Read what an invocation takes over of another one."""

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.heartbeat import beating
from waystation.activities.view import Views
from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.core import fork, segment
from waystation.core.entry import ModelReplied
from waystation.core.errors import ForeignHistory, InvalidInput, StoreFailed
from waystation.core.lineage import Fork
from waystation.core.log import Log
from waystation.core.model_call import Position
from waystation.core.snapshot import Snapshot
from waystation.core.wire import InvocationInput
from waystation.history import decode_histories, fetch_log_before, log_of, run_id_of
from waystation.storage import Blobs

events = structlog.get_logger("waystation.activities")

MAX_INLINE_BYTES = 64_000
MAX_BYTES = 1_500_000
"""As for what a run carries over."""


class Forker:
    """Carries out the activity `take_over`."""

    def __init__(self, client: Client, registry: Registry, views: Views, blobs: Blobs, *, overrides: bool) -> None:
        """`overrides`: whether forks may bring instructions and models of their own."""
        self._client, self._registry, self._views, self._blobs = client, registry, views, blobs
        self._overrides = overrides

    async def take_over(self, position: Position) -> bytes:
        """Return an encoded `TakenOver`.

        Raises:
            ApplicationError: The source cannot be had, or not be forked so.
        """
        info = activity.info()
        with beating():
            try:
                log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", position)
                assert log.input is not None
                assert log.input.fork is not None
                data = (await self._taken(log.input, log.input.fork)).encode()
            except (InvalidInput, ForeignHistory) as error:
                raise _refused(error) from None
            except StoreFailed as error:
                events.warning("fork.failed", invocation_id=info.workflow_id, attempt=info.attempt, problem=str(error))
                raise ApplicationError(str(error), type="StoreFailed") from None
        return data

    async def _taken(self, given: InvocationInput, wanted: Fork) -> fork.TakenOver:
        overrides = wanted.instruction is not None or wanted.model is not None
        if overrides and not self._overrides:
            raise InvalidInput(
                "This worker takes no instruction or model from a fork; start it with --allow-overrides, or leave them "
                "out."
            )
        source, run_id = await self._source(wanted)
        found = wanted.model_copy(update={"run_id": run_id})
        # By the clock of the server, as the workflow's.
        now = activity.info().current_attempt_scheduled_time.timestamp()
        entries = fork.taken(source, found, given, now)
        built = Log(activity.info().workflow_id or "").extend(entries)
        assert built.input is not None
        if overrides:
            self._check_overridden(built.root, built.input.agent, wanted.agent or built.input.agent)
        signals, updates = fork.counted(entries)
        taken = fork.TakenOver(
            input=built.input.model_copy(update={"state": {}}).model_dump(mode="json", exclude_defaults=True),
            snapshot=Snapshot.of(built),
            signals=signals,
            updates=updates,
            search_attributes=any(isinstance(e.body, ModelReplied) and e.body.reply.search_attributes for e in entries),
        )
        packed = segment.pack(entries)
        if len(packed) <= MAX_INLINE_BYTES:
            taken = taken.model_copy(update={"tail": tuple(segment.to_json(entries))})
        else:
            ref = segment.SegmentRef(digest=await self._blobs.put(packed), size=len(packed), entries=len(entries))
            taken = taken.model_copy(update={"segments": (ref,)})
        if (size := len(taken.encode())) > MAX_BYTES:
            raise InvalidInput(f"State and open calls are {size} bytes; at most {MAX_BYTES} can be taken over.")
        events.info("fork.taken_over", source=wanted.invocation_id, at=wanted.event, entries=len(entries))
        return taken

    def _check_overridden(self, root: str, top: str, agent: str) -> None:
        """Look whether an agent takes an instruction or a model: `overridden` passes over all others.

        Raises:
            InvalidInput: It does not.
        """
        found = self._registry.roots.get(root)
        if found is None or top not in found.tree:
            return  # of which the fork's own first step tells
        below = [each for each in found.tree.values() if found.tree[top].find_agent(each.name)]
        asked = [each.name for each in below if isinstance(each, LlmAgent)]
        if agent not in asked:
            raise InvalidInput(
                f"{agent!r} asks no model in an invocation of {top!r}, so a fork can give it no instruction or model; "
                f"`agent` may name: {', '.join(asked) or 'none'}. Agents that are called have invocations of their own."
            )

    async def _source(self, wanted: Fork) -> tuple[Log, str]:
        """Return the log of the source, and the id of the run that was read last."""
        handle = self._client.get_workflow_handle(wanted.invocation_id, run_id=wanted.run_id or None)
        try:
            [latest] = await decode_histories([await handle.fetch_history()], self._client.data_converter)
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise
            raise InvalidInput(f"There is no invocation {wanted.invocation_id!r} to fork.") from None
        before = await fetch_log_before(self._client, wanted.invocation_id, latest.events[0], self._blobs.get)
        log = log_of([latest], before)
        if log.entries_before:
            raise InvalidInput(f"The beginning of {wanted.invocation_id!r} is lost; it cannot be forked.")
        return log, run_id_of(latest.events)


def _refused(error: InvalidInput | ForeignHistory) -> ApplicationError:
    return ApplicationError(str(error), type="InvalidInput", non_retryable=True)


def overridden(agent: BaseAgent, started: InvocationInput | None) -> BaseAgent:
    """Return an agent with the instruction and the model that a fork has for it; others as they are."""
    wanted = started.fork if started else None
    if wanted is None or started is None or agent.name != (wanted.agent or started.agent):
        return agent
    given = {"instruction": wanted.instruction, "model": wanted.model}
    update = {name: value for name, value in given.items() if value is not None}
    return agent.model_copy(update=update) if update and isinstance(agent, LlmAgent) else agent
