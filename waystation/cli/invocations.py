"""The `waystation run` command, and code that other commands share to follow an invocation.

A command that follows an invocation shows its events, streamed text, pending calls, failures and retries.
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from rich.cells import cell_len
from rich.text import Text
from temporalio.client import ScheduleAlreadyRunningError, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import (
    AgentName,
    AsJson,
    CommandContext,
    Detach,
    Exit,
    TokenFile,
    parse_object,
    read_token,
    translate_file_errors,
    write_waits,
)
from waystation.cli.operations import describe_queue, list_pollers, measure_clock
from waystation.cli.output import MIN_COLUMNS, Output
from waystation.client import AgentClient, Invocation, PartialTextReader, make_times, new_events, stream_logs
from waystation.core.approval import PendingCall
from waystation.core.budget import Budget, Policy
from waystation.core.contract import MIN_HEARTBEAT_INTERVAL, PARTIAL, Event, text_of
from waystation.core.log import Log, is_working
from waystation.core.payload import JsonObject, describe_faults
from waystation.history import PendingRetry, fetch_retries
from waystation.presentation import terminal, words

T = TypeVar("T")

CallKey = tuple[str, str]
"""An invocation ID, and the ID of a call or activity in that invocation."""

UNCLAIMED_S = 3.0
"""Seconds to wait for the first log entry before reporting that no worker has started the invocation."""
CHILDREN_S = 2.0
"""Seconds between reads of running called agents' pending calls, which are not in the caller's history."""
QUIET_S = 3.0
"""Seconds without new entries before checking for retries, and minimum seconds between checks."""
SLOW_S = 30.0
"""Maximum seconds between checks for retries while an activity is running and has not failed."""
SOON_S = 5.0
"""A first failure is not reported if its retry is due within this many seconds, or was due at most this long ago."""
AGAIN_S = 15.0
"""Seconds until the same retry is reported again. The interval doubles with each report, up to `AGAIN_AT_MOST_S`."""
AGAIN_AT_MOST_S = 300.0
_WORD = re.compile(r"\n|[^\S\n]*\S+|[^\S\n]+")
"""Matches one piece of text: a line break, a word with the whitespace before it, or whitespace at the end of a line."""
CLOCK = len("00:00:00  ")
LIMITS: dict[str, tuple[str, int | None]] = {
    "tokens": ("max_total_tokens", 1),
    "model_calls": ("max_llm_calls", 1),
    "tool_calls": ("max_tool_calls", 0),
    "seconds": ("max_wall_s", None),
    "cost": ("max_cost", None),
}
"""The limits that --budget accepts, each with its field of `Budget` and its minimum.

Limits with a minimum are integers. If the minimum is None, any positive number is valid.
"""
START_WORKER = "To run the invocation, start a worker: waystation worker --agents DIR"
EXAMPLE = '{"gemini-3.5-flash": {"prompt": 1.5, "cached": 0.15, "output": 9}}'


async def run(
    ctx: CommandContext,
    agent: AgentName,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="User message to send to the agent.")],
    id: Annotated[
        str | None,
        typer.Option(help="Invocation ID. If the invocation already exists, follow it instead of starting it again."),
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="Initial state, as a JSON object.")] = None,
    user: Annotated[str | None, typer.Option(help="User on whose behalf the agent runs.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant on whose behalf the agent runs.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=5, help="1 to 5. Waiting tasks with a lower number run first. Default: 3.")
    ] = None,
    detach: Detach = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show text as the model generates it.")] = False,
    text_interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=MIN_HEARTBEAT_INTERVAL.total_seconds(),
            help="With --stream: minimum interval between pieces of text, instead of the worker's.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS",
            help="Comma-separated limits of the form NAME=N. Names: tokens, model_calls, tool_calls, seconds, cost.",
        ),
    ] = None,
    on_exhausted: Annotated[Policy | None, typer.Option(help="What to do when the budget is used up.")] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file with model prices for cost=N in --budget.")
    ] = None,
    token_file: TokenFile = None,
    json: AsJson = False,
) -> Exit:
    """Start an invocation and follow it until it ends.

    Ctrl-C only stops following the invocation; the invocation continues.
    """
    if id == "":
        raise typer.BadParameter("the ID must not be empty", param_hint="--id")
    options: dict[str, Any] = {
        "state": parse_object("--state", state),
        "budget": _parse_budget(budget, on_exhausted, prices),
        "token": read_token(token_file),
        "streaming": timedelta(seconds=text_interval) if stream and text_interval else stream,
    }
    out, client = ctx.out, await ctx.connect()
    invocation = await client.start(agent, message, id=id, user_id=user, tenant=tenant, priority=priority, **options)
    try:
        out.result(
            {"invocation_id": invocation.id, "existed": invocation.existed},
            Text(f"invocation {invocation.id}", style="bold"),
        )
        if invocation.existed:
            out.remark("This invocation already exists. It keeps its original message; your message was not sent.")
        return await follow(ctx, client, invocation, partial=stream, detach=detach)
    except asyncio.CancelledError:
        out.remark(
            f"\nStopped following. The invocation continues; follow it with: {ctx.target.follow_command(invocation.id)}"
        )
        raise


async def schedule(
    ctx: CommandContext,
    agent: AgentName,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="User message to send to the agent.")],
    cron: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Times as a cron expression, in UTC: '0 9 * * 1-5'.")
    ] = None,
    every: Annotated[float | None, typer.Option(metavar="SECONDS", help="Interval between the invocations.")] = None,
    id: Annotated[str | None, typer.Option(help="Schedule ID. Defaults to the name of the agent.")] = None,
    user: Annotated[str | None, typer.Option(help="User on whose behalf the agent runs.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant on whose behalf the agent runs.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=5, help="1 to 5. Waiting tasks with a lower number run first. Default: 3.")
    ] = None,
    json: AsJson = False,
) -> Exit:
    """Create a Temporal schedule that starts an invocation at regular times.

    Show, pause and delete it with `temporal schedule`.
    """
    if (cron is None) == (every is None):
        raise typer.BadParameter("set one of --cron and --every", param_hint="--cron")
    if every is not None and not 1 <= every < inf:
        raise typer.BadParameter("the interval must be at least 1 second", param_hint="--every")
    spec = make_times(cron, every)
    fields: dict[str, Any] = {name: value for name, value in (("user_id", user), ("tenant", tenant)) if value}
    client = await ctx.connect()
    try:
        handle = await client.schedule(agent, message, spec, id=id, priority=priority, **fields)
    except ScheduleAlreadyRunningError:
        raise typer.BadParameter(f"a schedule with the ID {id or agent!r} exists", param_hint="--id") from None
    except RPCError as error:
        if cron is None or error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        raise typer.BadParameter(f"{terminal.escape(cron)!r} is not a cron expression", param_hint="--cron") from None
    ctx.out.result({"schedule_id": handle.id}, Text(f"schedule {handle.id}", style="bold"))
    return Exit.OK


def _parse_budget(limits: str | None, policy: Policy | None, prices: Path | None) -> Budget | None:
    """Return the budget that the options define, or None if none of them was used.

    Raises:
        BadParameter: An option is not valid.
        Problem: The file with prices cannot be read.
    """
    if not (limits or policy or prices):
        return None
    fields: JsonObject = dict(map(_parse_limit, limits.split(","))) if limits else {}
    if prices is not None:
        with translate_file_errors(prices, option="--prices"):
            fields["prices"] = parse_object("--prices", prices.read_text())
    if policy is not None:
        fields["on_exhausted"] = policy
    try:
        return Budget.model_validate(fields)
    except ValidationError as error:
        raise typer.BadParameter(f"{describe_faults(error)}; example: {EXAMPLE}", param_hint="--prices") from None


def _parse_limit(item: str) -> tuple[str, float]:
    """Return the field of the budget that `NAME=N` sets, and the value to set.

    Raises:
        BadParameter: The name or the value is not valid.
    """
    name, _, amount = (part.strip() for part in item.partition("="))
    if name not in LIMITS:
        known = ", ".join(f"{known}=N" for known in LIMITS)
        raise typer.BadParameter(
            f"{terminal.escape(item)!r} is not a limit; use {known}, separated by commas", param_hint="--budget"
        )
    field, minimum = LIMITS[name]
    with suppress(ValueError):
        number = float(amount) if minimum is None else int(amount)
        if (0 < number < inf) if minimum is None else number >= minimum:
            return field, number
    domain = "a number above 0" if minimum is None else f"a whole number, {minimum} or more"
    raise typer.BadParameter(
        f"{terminal.escape(item)!r} is not a valid limit; {name} takes {domain}", param_hint="--budget"
    )


async def follow(
    ctx: CommandContext, client: AgentClient, invocation: Invocation, *, partial: bool = False, detach: bool = False
) -> Exit:
    """Follow an invocation until it ends or, with `detach`, until it is waiting for a person or for a worker."""
    out = ctx.out
    watch = Watch(client, out, invocation.id, on_waits=lambda calls: write_waits(out, ctx.target, calls))
    event_count = entry_count = 0
    claimed = False  # whether a worker has started the invocation, or its absence was reported

    def pause() -> float | None:
        return watch.pause() or (None if claimed else UNCLAIMED_S)

    updates = with_pauses(stream_logs(invocation, partial=partial), pause)
    async with watch.watching(), aclosing(updates):
        async for update in updates:
            if update is None and not claimed:
                claimed = True
                problem = await find_worker_problem(client) or f"no worker has started it yet. {START_WORKER}"
                out.remark(f"Started, but {problem}")
                if detach:
                    return Exit.OK
            elif update is not None:
                log, pieces = update
                watch.take(log, new_events(log, event_count, pieces))
                event_count = len(log.state.events)
                if entry_count == len(log.entries) > 0:
                    continue  # nothing new except partial text
                entry_count = len(log.entries)
                claimed = claimed or entry_count > 0
            await watch.look_at_called()
            watch.report_waits()
            if detach and watch.calls:
                return Exit.OK
    watch.interrupt()
    return await _report_end(out, client, invocation.id)


async def _report_end(out: Output, client: AgentClient, id: str) -> Exit:
    try:
        # Look the invocation up by ID, to get its latest run: an operator may have reset the run that was started.
        result = await client.invocation(id).result()
    except WorkflowFailureError as error:
        report_failure(out, error)
        return Exit.FAILED
    completed = result.status == "completed"
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    text += f" ({result.usage.total_tokens} tokens)" if result.usage.total_tokens else ""
    out.result({"result": result.model_dump(mode="json")}, Text(text, "bold green" if completed else "bold yellow"))
    return Exit.OK if completed else Exit.FAILED


async def print_events(
    ctx: CommandContext, client: AgentClient, invocation: Invocation, *, follow: bool, partial: bool
) -> Exit:
    """Write the events of an invocation so far or, with `follow`, until it ends.

    If the invocation is still open, then write its pending calls (unless the output is JSON) and report its retries.
    """
    out = ctx.out
    watch = Watch(client, out, invocation.id, numbered=True)
    log: Log | None = None
    event_count = 0
    async with watch.watching():
        async for log, pieces in stream_logs(invocation, partial=partial) if follow else _read_once(invocation):
            if not event_count and log.state.input and (fork := log.state.input.fork):
                out.remark(f"{invocation.id} is a fork of {fork.invocation_id} from its event {fork.event}.")
            watch.take(log, new_events(log, event_count, pieces))
            event_count = len(log.state.events)
    watch.interrupt()
    if log is not None and log.state.outcome.ended is None:
        if not out.json:
            write_waits(out, ctx.target, log.state.pending())
        if is_working(log.state):
            await watch.look_for_retries()
    return Exit.OK


async def _read_once(invocation: Invocation) -> AsyncIterator[tuple[Log, PartialTextReader]]:
    yield await invocation.log(), PartialTextReader(invocation)


async def with_pauses(source: AsyncGenerator[T], pause: Callable[[], float | None]) -> AsyncGenerator[T | None]:
    """Yield the items of a source, and yield None whenever no item arrives within `pause()` seconds."""
    pending = asyncio.ensure_future(anext(source, None))
    try:
        while True:
            done, _ = await asyncio.wait((pending,), timeout=pause())
            if not done:
                yield None
            elif (item := pending.result()) is None:
                return
            else:
                pending = asyncio.ensure_future(anext(source, None))
                yield item
    finally:
        pending.cancel()
        with suppress(asyncio.CancelledError):
            await pending
        await source.aclose()


async def find_worker_problem(client: AgentClient) -> str | None:
    """Return why no worker starts an invocation, and the remedy. Return None if a worker may start it."""
    if not await is_polled(client):
        return f"no worker polls {client.task_queue!r} yet. {START_WORKER}"
    with suppress(RPCError):
        queue = await describe_queue(client, client.task_queue, "workflows")
        versioned = [poller for poller in list_pollers(queue, "workflows") if poller.deployment]
        if versioned and not queue.versioning_info.current_deployment_version.build_id:
            return f"deployment {versioned[0].deployment} has no current version. Set it: {versioned[0].activation}"
    return None


async def is_polled(client: AgentClient, pid: int | None = None) -> bool:
    """Return whether a worker has recently polled the client's task queue, or True if the server cannot tell.

    With `pid`, only a worker in that process on this machine counts, whenever it polled.
    """
    try:
        pollers = list_pollers(await describe_queue(client, client.task_queue, "workflows"), "workflows")
    except RPCError:
        return True
    if pid is not None:
        return any(poller.identity == f"{pid}@{socket.gethostname()}" for poller in pollers)
    now = time.time() - (await measure_clock(client) or 0.0) if pollers else 0.0
    return any(poller.is_active(now) for poller in pollers)


def report_failure(out: Output, error: WorkflowFailureError, **fields: str) -> None:
    """Report that an invocation failed, and why."""
    cause = error.cause
    kind, message = type(cause).__name__.removesuffix("Error"), str(cause)
    if isinstance(cause, ApplicationError):
        kind, message = cause.type or "ApplicationError", cause.message
    out.result({"error": {**fields, "type": kind, "message": message}}, Text(f"failed: {kind}", style="bold red"))


class Watch:
    """A live terminal view of one invocation, or of all invocations in a session."""

    def __init__(
        self,
        client: AgentClient,
        out: Output,
        root: str,
        *,
        on_waits: Callable[[list[PendingCall]], None] = lambda _: None,
        numbered: bool = False,
    ) -> None:
        """Create a view of an invocation or a session.

        Args:
            client: A connected client.
            out: The output to write to.
            root: Workflow ID of the invocation or session.
            on_waits: Writes calls that have just become pending.
            numbered: Whether to write events with their numbers. In JSON, events then have no `{"event": …}` wrapper.
        """
        self._client, self._out, self._root = client, out, root
        self._on_waits, self._numbered = on_waits, numbered
        self.logs: dict[str, Log] = {}
        """The log of each watched invocation, by invocation ID. Called agents are not included."""
        self._texts: dict[str, StreamedText] = {}
        self._calls: dict[CallKey, PendingCall] = {}
        self._reported: set[CallKey] = set()
        self._answered: set[CallKey] = set()
        """Calls answered in this terminal. Their histories may not contain the answers yet."""
        self._changed = asyncio.Event()
        self._due: dict[CallKey, tuple[float, float]] = {}
        """For each retry, the time of the next report and the interval after that report."""

    @property
    def calls(self) -> list[PendingCall]:
        """The pending calls, oldest first."""
        return sorted(self._calls.values(), key=lambda call: (call.requested_at, call.function_call_id))

    def take(self, log: Log, events: Iterable[Event]) -> None:
        """Update the log and the pending calls of an invocation, and write its new events."""
        self.logs[log.invocation_id] = log
        self._changed.set()
        for event in events if self._out.json else words.credit_answers(events, log.state):
            self.write(event)
        waiting = [] if is_working(log.state) or log.state.outcome.ended else log.state.pending()
        self._replace(lambda invocation_id: invocation_id == log.invocation_id, waiting)

    def notice(self) -> None:
        """Check for retries soon, because work has started that the histories do not contain yet."""
        self._changed.set()

    def write(self, event: Event) -> None:
        """Write an event. First end any unfinished streamed lines from other invocations."""
        if self._out.json:
            self._out.record(event.to_json() if self._numbered else {"event": event.to_json()})
            return
        for id, text in self._texts.items():
            if id != event.invocation_id:
                text.interrupt()
        self._texts.setdefault(event.invocation_id, StreamedText(self._out, numbered=self._numbered)).write(event)

    def interrupt(self) -> None:
        """End unfinished streamed lines, so that other output can follow."""
        for text in self._texts.values():
            text.interrupt()

    def _callers(self) -> list[str]:
        return [
            id
            for id, log in self.logs.items()
            if not log.state.outcome.ended and any(call.call.kind == "agent" for call in log.state.performing())
        ]

    def pause(self) -> float | None:
        """Return how many seconds to wait before reading called agents again, or None if no called agent is running."""
        return CHILDREN_S if self._callers() else None

    async def look_at_called(self) -> None:
        """Read the pending calls of called agents again, if any called agents are running."""
        if callers := tuple(f"{id}/" for id in self._callers()):
            pending = await self._client.approvals.pending(below=self._root, machines=None)
            self._replace(
                lambda invocation_id: invocation_id not in self.logs,
                [call for call in pending if call.invocation_id.startswith(callers)],
            )

    def report_waits(self) -> None:
        """Write the pending calls that have not been written yet."""
        new = [call for call in self.calls if _call_key(call) not in self._reported]
        self._reported.update(map(_call_key, new))
        if not new:
            return
        self.interrupt()
        if self._out.json:
            self._out.record({"pending": [call.model_dump(mode="json") for call in new]})
        else:
            self._on_waits(new)
            self._out.line()

    def mark_answered(self, call: PendingCall) -> None:
        """Remove a call that has been answered in this terminal from the pending calls."""
        self._changed.set()
        self._answered.add(_call_key(call))
        self._calls.pop(_call_key(call), None)

    def is_waiting(self, invocation_id: str) -> bool:
        """Return whether an invocation, or an agent that it called directly or indirectly, is waiting for a person."""
        return any(f"{id}/".startswith(f"{invocation_id}/") for id, _ in self._calls)

    def _replace(self, is_owner: Callable[[str], bool], calls: Iterable[PendingCall]) -> None:
        """Replace the pending calls of all invocations that `is_owner` accepts."""
        self._calls = {key: call for key, call in self._calls.items() if not is_owner(key[0])}
        self._calls.update({_call_key(call): call for call in calls if _call_key(call) not in self._answered})

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Report retries in the background while the block runs."""
        task = asyncio.create_task(self._watch_retries())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch_retries(self) -> None:
        pause: float | None = None
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                self._changed.clear()
                pause = QUIET_S
            except TimeoutError:
                try:
                    pause = await self.look_for_retries(pause or QUIET_S)
                except RPCError:  # ignored here, because the invocation's event stream reports it
                    pause = SLOW_S

    async def look_for_retries(self, pause: float = QUIET_S) -> float | None:
        """Report activities that have failed and are being retried, or are waiting for a worker.

        Args:
            pause: Seconds since the last check.

        Returns:
            Seconds until the next check, or None if nothing is running.
        """
        retries, at_work = await fetch_retries(self._client.temporal, self._root)
        now = time.time()
        failing = [retry for retry in retries if _is_notable(retry, now)]
        for retry in failing:
            due, interval = self._due.get((retry.workflow_id, retry.activity), (now, AGAIN_S))
            if now >= due:
                self.interrupt()
                self._out.remark(words.describe_retry(retry, self.logs.get(retry.workflow_id), now, soon_s=SOON_S))
                self._due[retry.workflow_id, retry.activity] = now + interval, min(2 * interval, AGAIN_AT_MOST_S)
        if failing:
            return max(min(self._due[retry.workflow_id, retry.activity][0] for retry in failing) - now, QUIET_S)
        return QUIET_S if retries else min(2 * pause, SLOW_S) if at_work else None


def _call_key(call: PendingCall) -> CallKey:
    return call.invocation_id, call.function_call_id


class StreamedText:
    """Writes the events of a stream: partial text as it arrives, then only what is missing from the complete event."""

    def __init__(self, out: Output, *, numbered: bool = False) -> None:
        self._out, self._numbered = out, numbered
        self._written: dict[int, str | None] = {}
        """The text written so far, by the number of the model call. None if some text was missed."""
        self._model_call: int | None = None
        """The number of the model call whose text is on the unfinished line."""
        self._line: WrappedLine | None = None
        self._complete: str | None = None

    def write(self, event: Event) -> None:
        """Write one event, partial or complete."""
        if event.partial:
            self._write_partial(event, dict((event.custom_metadata or {}).get(PARTIAL) or {}))
            return
        written, self._complete = self._complete, None
        text = text_of(event.content)
        if written and self._line and text.startswith(written):
            self._line.add(text[len(written) :].rstrip())
            event = _without_text(event)
        self.interrupt()
        self._out.event(event, numbered=self._numbered)

    def interrupt(self) -> None:
        """End the unfinished line, so that other output can follow."""
        if self._line is not None:
            self._line.end()
        self._model_call = self._line = None

    def _write_partial(self, event: Event, facts: JsonObject) -> None:
        number = int(facts.get("model_call") or 0)
        if facts.get("void"):
            self.interrupt()
            self._out.line(Text(f"{self._indent(event)}discarded: attempt {facts.get('attempt')} failed", style="dim"))
            self._written.pop(number, None)
        elif facts.get("complete"):
            # If another model call has written a line since, the rest of the text cannot continue this call's line.
            self._complete = self._written.pop(number, None) if self._model_call == number else None
        else:
            self._append(event, number, int(facts.get("offset") or 0))

    def _append(self, event: Event, number: int, offset: int) -> None:
        piece = text_of(event.content)
        written = self._written.get(number, "")
        missed = written is None or offset != len(written)
        if self._line is None or self._model_call != number:
            self.interrupt()
            self._model_call = number
            before = terminal.format_number(event) if self._numbered else ""
            clock = terminal.format_time(event.timestamp, now=self._out.now())
            prefix = Text(f"{self._out.margin}{before}{clock}  ", style="dim")
            prefix.append(terminal.escape(event.author), "not dim bold").append(
                ": " if offset == 0 else ": …", "not dim"
            )
            self._out.console.print(prefix, end="", soft_wrap=True)
            self._line = WrappedLine(self._out, prefix.cell_len - len(self._out.margin), self._indent(event))
        elif missed:
            self._line.add("…")
        self._line.add(piece)
        self._written[number] = None if missed or written is None else written + piece

    def _indent(self, event: Event) -> str:
        return " " * (CLOCK + (len(terminal.format_number(event)) if self._numbered else 0))


def _without_text(event: Event) -> Event:
    parts = [p for p in (event.content or {}).get("parts") or () if p.get("thought") or "text" not in p]
    return event.model_copy(update={"content": {**(event.content or {}), "parts": parts}})


class WrappedLine:
    """A line that is written piece by piece and wrapped between words, with a hanging indent."""

    def __init__(self, out: Output, column: int, indent: str) -> None:
        """Start writing at `column`. Continuation lines start with `indent`. Neither includes the margin."""
        self._out, self._indent = out, out.margin + indent
        self._start = self._column = len(out.margin) + column
        self._wraps = out.wraps and out.console.width - len(self._indent) >= MIN_COLUMNS
        self._held = ""
        """The last word so far, not written yet: it may still grow, and then no longer fit on the line."""

    def add(self, text: str) -> None:
        """Write a piece of text, but hold back its last word until the word is complete."""
        lines = (terminal.escape(line.removesuffix("\r").expandtabs(4)) for line in text.split("\n"))
        *words, self._held = _WORD.findall(self._held + "\n".join(lines)) or [""]
        if not self._wraps:
            words.append(self._held)
            self._held = ""
        for word in words:
            self._put(word)
        self._out.console.file.flush()

    def end(self) -> None:
        """Write the word that was held back, and end the line."""
        self._put(self._held.rstrip())
        self._out.line()

    def _put(self, word: str) -> None:
        if word == "\n":
            self._break()
            return
        if self._overflows(word) and self._column > self._start:
            self._break()
            word = word.lstrip()
        while self._overflows(word):  # the word is longer than a line
            fitting = next(n for n in range(1, len(word)) if self._overflows(word[: n + 1]))
            self._write(word[:fitting])
            self._break()
            word = word[fitting:]
        self._write(word)

    def _overflows(self, word: str) -> bool:
        return self._wraps and len(word) > 1 and self._column + cell_len(word) > self._out.console.width

    def _break(self) -> None:
        self._write(f"\n{self._indent}")
        self._start = self._column = len(self._indent)

    def _write(self, text: str) -> None:
        self._out.console.print(Text(text), end="", soft_wrap=True)
        self._column += cell_len(text)


def _is_notable(retry: PendingRetry, now: float) -> bool:
    return retry.failed > 1 or (retry.next_at is not None and abs(retry.next_at - now) > SOON_S)
