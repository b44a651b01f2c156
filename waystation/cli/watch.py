"""Start an invocation, follow it, and say what it waits for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from waystation.cli.exits import Exit
from waystation.cli.growing import GrowingText
from waystation.cli.output import Output
from waystation.cli.retrying import Retrying
from waystation.cli.target import Target
from waystation.client import AgentClient, Invocation, PartialTextReader, new_events, stream_logs
from waystation.core.answer import PendingCall
from waystation.core.log import Log
from waystation.core.wire import InvocationResult

UNCLAIMED_S = 3.0
"""How long an invocation may lie untouched before its user is told that no worker may be running."""
CHILDREN_S = 1.0
"""How often called agents are asked what they wait for; their waits are not in their caller's history."""


class Watcher:
    """Follows one invocation and writes what happens."""

    def __init__(
        self, client: AgentClient, invocation: Invocation, out: Output, target: Target, *, partial: bool = False
    ) -> None:
        self._client, self._invocation, self._out, self._target = client, invocation, out, target
        self._partial, self._growing = partial, GrowingText(out)
        self._retrying = Retrying(client, out, invocation.id, interrupt=self._growing.interrupt)
        self._shown = 0
        self._told: set[tuple[str, str]] = set()

    async def to_the_end(self, *, detach: bool = False) -> Exit:
        """Follow until the invocation ends; with `detach`, until it waits for a person or has nobody to run it."""
        async with self._retrying.watching():
            async for log in self._ticks():
                if log is None:
                    await self._explain_silence()
                    if detach:
                        return Exit.OK
                    continue
                waiting = [] if log.busy else log.pending()
                if _calls_agents(log):
                    waiting += await self._client.approvals.pending(below=self._invocation.id)
                self._tell(waiting)
                if detach and waiting:
                    return Exit.OK
        return await self._ending()

    async def _ticks(self) -> AsyncIterator[Log | None]:
        """Yield the log when it has grown or called agents may wait; None once when nobody takes it up."""
        coming_ticks = stream_logs(self._invocation, partial=self._partial)
        log: Log | None = None
        seen = 0
        coming: asyncio.Task[tuple[Log, PartialTextReader]] = asyncio.ensure_future(anext(coming_ticks))
        patience: float | None = UNCLAIMED_S
        try:
            while True:
                pause = CHILDREN_S if log is not None and _calls_agents(log) else patience
                done, _ = await asyncio.wait((coming,), timeout=pause)
                if done:
                    try:
                        log, pieces = coming.result()
                    except StopAsyncIteration:
                        return
                    self._retrying.came(log)
                    self._show(log, pieces)
                    if log.entries:
                        patience = None
                    coming = asyncio.ensure_future(anext(coming_ticks))
                    if len(log.entries) > seen or not seen:
                        seen = len(log.entries)
                        yield log
                elif log is not None and log.entries:
                    yield log
                else:
                    patience = None
                    yield None
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await coming

    def _show(self, log: Log, pieces: PartialTextReader) -> None:
        for event in new_events(log, self._shown, pieces):
            self._out.record({"event": event.to_json()}) if self._out.json else self._growing.write(event)
        self._shown = len(log.events)

    async def _explain_silence(self) -> None:
        queue = self._client.task_queue
        polled = "no worker has taken it up" if await is_polled(self._client) else f"no worker polls {queue!r}"
        self._out.remark(
            f"Started, but {polled} so far. It is kept, and begins when a worker does: waystation worker --agents DIR"
        )

    def _tell(self, waiting: list[PendingCall]) -> None:
        new = [call for call in waiting if (call.invocation_id, call.function_call_id) not in self._told]
        self._told.update((call.invocation_id, call.function_call_id) for call in new)
        if not new:
            return
        self._growing.interrupt()
        if self._out.json:
            self._out.record({"pending": [call.model_dump(mode="json") for call in new]})
        else:
            self._out.waits(new, self._target)
            self._out.line()

    async def _ending(self) -> Exit:
        self._growing.interrupt()
        try:
            # Of the latest run, should an operator have reset the one that was started.
            result = await self._client.invocation(self._invocation.id).result()
        except WorkflowFailureError as error:
            kind, message = why(error)
            if self._out.json:
                self._out.record({"error": {"type": kind, "message": message}})
            else:
                self._out.line(f"failed: {kind}", style="bold red")
            return Exit.FAILED
        if self._out.json:
            self._out.record({"result": result.model_dump(mode="json")})
        else:
            self._out.line(_summary(result), style="bold green" if result.status == "completed" else "bold yellow")
        return Exit.OK if result.status == "completed" else Exit.FAILED


async def run(
    client: AgentClient,
    out: Output,
    target: Target,
    *,
    agent: str,
    message: str,
    detach: bool,
    stream: bool = False,
    **options: Any,
) -> Exit:
    """Start an invocation and follow it."""
    invocation = await client.start(agent, message, streaming=stream, **options)
    try:
        if out.json:
            out.record({"invocation_id": invocation.id, "existed": invocation.existed})
        else:
            out.line(f"invocation {invocation.id}", style="bold")
        if invocation.existed:
            out.remark("It was started before; what was said then stands, and this message was not used.")
        return await Watcher(client, invocation, out, target, partial=stream).to_the_end(detach=detach)
    except asyncio.CancelledError:
        out.remark(f"\nNot watched any more; the invocation goes on: {target.follow_command(invocation.id)}")
        raise


async def events(client: AgentClient, out: Output, target: Target, *, id: str, follow: bool, stream: bool) -> Exit:
    """Write the events of an invocation, and what it waits for."""
    invocation = client.invocation(id)
    growing = GrowingText(out, numbered=True)
    retrying = Retrying(client, out, id, interrupt=growing.interrupt)
    log: Log | None = None
    shown = 0
    async with retrying.watching():
        async for log, pieces in stream_logs(invocation, partial=stream) if follow or stream else _once(invocation):
            retrying.came(log)
            if not shown and log.input and (fork := log.input.fork):
                out.remark(f"{id} is a fork of {fork.invocation_id} from its event {fork.event}.")
            for event in new_events(log, shown, pieces):
                out.record(event.to_json()) if out.json else growing.write(event)
            shown = len(log.events)
    growing.interrupt()
    if log is not None and log.ended is None:
        if not out.json:
            out.waits(log.pending(), target)
        if log.busy:
            await retrying.look()
    return Exit.OK


async def _once(invocation: Invocation) -> AsyncIterator[tuple[Log, PartialTextReader]]:
    yield await invocation.log(), PartialTextReader(invocation)


async def is_polled(client: AgentClient) -> bool:
    """Whether some worker has asked for work on the client's task queue lately."""
    request = DescribeTaskQueueRequest(
        namespace=client.temporal.namespace,
        task_queue=TaskQueue(name=client.task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        return bool((await client.temporal.workflow_service.describe_task_queue(request)).pollers)
    except RPCError:
        return True  # not known, so no claim


def _calls_agents(log: Log) -> bool:
    return any(call.call.kind == "agent" for call in log.performing())


def why(error: WorkflowFailureError) -> tuple[str, str]:
    """Return the type and the message of what an invocation failed with."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "ApplicationError", cause.message
    return type(cause).__name__.removesuffix("Error"), str(cause)


def _summary(result: InvocationResult) -> str:
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    return f"{text} ({result.usage.total_tokens} tokens)" if result.usage.total_tokens else text
