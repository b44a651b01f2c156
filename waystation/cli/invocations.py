"""`waystation run`, and how commands follow an invocation: its events, text that grows, waits, failures and retries."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from math import inf
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError
from rich.cells import cell_len
from rich.text import Text
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from waystation.cli.command_context import (
    AgentName,
    AsJson,
    CommandContext,
    Detach,
    Exit,
    file_problems,
    parse_object,
    write_waits,
)
from waystation.cli.output import MIN_COLUMNS, Output
from waystation.client import AgentClient, Invocation, PartialTextReader, new_events, stream_logs
from waystation.core import (
    MODEL,
    PARTIAL,
    Budget,
    Event,
    JsonObject,
    Log,
    ModelReplyRef,
    PendingCall,
    Policy,
    call_id_of,
    faults,
    is_working,
    summary,
    text_of,
)
from waystation.history import Retry, fetch_retries
from waystation.presentation import terminal

T = TypeVar("T")

Key = tuple[str, str]
"""Id of an invocation, and of a call or an activity in it."""

UNCLAIMED_S = 3.0
"""How long an invocation may lie untouched before its user learns that perhaps no worker is running."""
CHILDREN_S = 1.0
"""How often called agents are asked what they wait for; their waits are not in their caller's history."""
QUIET_S = 3.0
"""How long nothing may come before the server is asked why."""
SLOW_S = 30.0
"""How often, at the most seldom, it is asked while something is at work that has not failed."""
SOON_S = 5.0
"""A first failure is not reported when it is tried again so soon; and so long a worker may take to begin."""
AGAIN_S = 15.0
"""After so long the same is reported again, and then each time after twice as long."""
AGAIN_AT_MOST_S = 300.0
MAX_WHY = 300
"""Characters of a reason that are shown."""
_WORD = re.compile(r"\n|[^\S\n]*\S+|[^\S\n]+")
"""The end of a line, or a word with the space before it."""
CLOCK = len("00:00:00  ")
LIMITS: dict[str, tuple[str, int | None]] = {
    "tokens": ("max_total_tokens", 1),
    "model_calls": ("max_llm_calls", 1),
    "tool_calls": ("max_tool_calls", 0),
    "seconds": ("max_wall_s", None),
    "cost": ("max_cost", None),
}
"""Fields of a budget by the names that people write, with their minimum; None: any positive number."""
EXAMPLE = '{"gemini-2.5-flash": {"prompt": 0.3, "cached": 0.075, "output": 2.5}}'


async def run(
    ctx: CommandContext,
    agent: AgentName,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What the user says.")],
    id: Annotated[str | None, typer.Option(help="Id of the invocation; one that exists is followed.")] = None,
    state: Annotated[str | None, typer.Option(metavar="JSON", help="Initial state, an object.")] = None,
    user: Annotated[str | None, typer.Option(help="The user whom the agent serves.")] = None,
    detach: Detach = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show text while a model generates it.")] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="LIMITS", help="Such as tokens=5000,model_calls=9,tool_calls=9,seconds=60.")
    ] = None,
    on_exhausted: Annotated[Policy | None, typer.Option(help="What happens when the budget is used up.")] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prices of models as JSON; cost=N in --budget needs them.")
    ] = None,
    json: AsJson = False,
) -> Exit:
    """Start an invocation and follow it to its end. Ctrl-C ends the following, never the invocation."""
    initial = parse_object("--state", state)
    if id == "":
        raise typer.BadParameter("an id has at least one character", param_hint="--id")
    allowed = _budget(budget, on_exhausted, prices)
    out, client = ctx.out, await ctx.connect()
    invocation = await client.start(
        agent, message, streaming=stream, id=id, state=initial, user_id=user, budget=allowed
    )
    try:
        record = {"invocation_id": invocation.id, "existed": invocation.existed}
        out.result(record, Text(f"invocation {invocation.id}", style="bold"))
        if invocation.existed:
            out.remark("It was started before, with the message of then; this message was not used.")
        return await follow(ctx, client, invocation, partial=stream, detach=detach)
    except asyncio.CancelledError:
        out.remark(f"\nNot watched any more; the invocation goes on: {ctx.target.follow_command(invocation.id)}")
        raise


def _budget(limits: str | None, policy: Policy | None, prices: Path | None) -> Budget | None:
    """Return the budget that options describe; None without any.

    Raises:
        BadParameter: They describe none.
    """
    if not (limits or policy or prices):
        return None
    fields: JsonObject = dict(map(_limit, limits.split(","))) if limits else {}
    if "max_cost" in fields and prices is None:
        text = f"{terminal.safe(limits or '')!r} needs prices to compute cost with: --prices FILE, a JSON object"
        raise typer.BadParameter(f"{text} such as {EXAMPLE}", param_hint="--budget")
    if prices is not None:
        with file_problems(prices, option="--prices"):
            fields["prices"] = parse_object("--prices", prices.read_text())
    if policy is not None:
        fields["on_exhausted"] = policy
    try:
        return Budget.model_validate(fields)
    except ValidationError as error:
        raise typer.BadParameter(f"{faults(error)}; a row is such as {EXAMPLE}", param_hint="--prices") from None


def _limit(item: str) -> tuple[str, float]:
    """Return the field of a budget that `NAME=N` sets, and its value."""
    name, _, amount = (part.strip() for part in item.partition("="))
    if name not in LIMITS:
        known = ", ".join(f"{known}=N" for known in LIMITS)
        text = f"{terminal.safe(item)!r} is not a limit; write {known}, separated by commas"
        raise typer.BadParameter(text, param_hint="--budget")
    field, minimum = LIMITS[name]
    with suppress(ValueError):
        number = float(amount) if minimum is None else int(amount)
        if (0 < number < inf) if minimum is None else number >= minimum:
            return field, number
    wanted = "a number above 0" if minimum is None else f"a whole number, {minimum} or more"
    raise typer.BadParameter(f"{terminal.safe(item)!r} is not a limit; {name} takes {wanted}", param_hint="--budget")


async def follow(
    ctx: CommandContext, client: AgentClient, invocation: Invocation, *, partial: bool = False, detach: bool = False
) -> Exit:
    """Follow until the invocation ends; with `detach`, until it waits for a person or has nobody to run it."""
    out = ctx.out
    watch = Watch(client, out, invocation.id, write_waits=lambda calls: write_waits(out, ctx.target, calls))
    shown = known = 0
    claimed = False  # or the lack of a worker was reported

    def pause() -> float | None:
        return watch.pause() or (None if claimed else UNCLAIMED_S)

    updates = with_pauses(stream_logs(invocation, partial=partial), pause)
    async with watch.watching(), aclosing(updates):
        async for update in updates:
            if update is None and not claimed:
                claimed = True
                queue = client.task_queue
                polled = "no worker has taken it up" if await is_polled(client) else f"no worker polls {queue!r}"
                remedy = "It is kept, and begins when a worker does: waystation worker --agents DIR"
                out.remark(f"Started, but {polled} so far. {remedy}")
                if detach:
                    return Exit.OK
            elif update is not None:
                log, pieces = update
                watch.take(log, new_events(log, shown, pieces))
                shown = len(log.state.events)
                if known == len(log.entries) > 0:
                    continue  # only more text
                known = len(log.entries)
                claimed = claimed or known > 0
            await watch.look_at_called()
            watch.report_waits()
            if detach and watch.calls:
                return Exit.OK
    watch.interrupt()
    return await _report_end(out, client, invocation.id)


async def _report_end(out: Output, client: AgentClient, id: str) -> Exit:
    try:
        # Of the latest run, should an operator have reset the one that was started.
        result = await client.invocation(id).result()
    except WorkflowFailureError as error:
        report_failure(out, error)
        return Exit.FAILED
    completed = result.status == "completed"
    text = result.status if result.reason is None else f"{result.status}: {result.reason}"
    text = f"{text} ({result.usage.total_tokens} tokens)" if result.usage.total_tokens else text
    style = "bold green" if completed else "bold yellow"
    out.result({"result": result.model_dump(mode="json")}, Text(text, style=style))
    return Exit.OK if completed else Exit.FAILED


async def print_events(
    ctx: CommandContext, client: AgentClient, invocation: Invocation, *, follow: bool, partial: bool
) -> Exit:
    """Write the events so far, or until the invocation ends, and what it waits for."""
    out = ctx.out
    watch = Watch(client, out, invocation.id, numbered=True)
    log: Log | None = None
    shown = 0
    async with watch.watching():
        async for log, pieces in stream_logs(invocation, partial=partial) if follow else _once(invocation):
            if not shown and log.state.input and (fork := log.state.input.fork):
                out.remark(f"{invocation.id} is a fork of {fork.invocation_id} from its event {fork.event}.")
            watch.take(log, new_events(log, shown, pieces))
            shown = len(log.state.events)
    watch.interrupt()
    if log is not None and log.state.outcome.ended is None:
        if not out.json:
            write_waits(out, ctx.target, log.state.pending())
        if is_working(log.state):
            await watch.look_for_retries()
    return Exit.OK


async def _once(invocation: Invocation) -> AsyncIterator[tuple[Log, PartialTextReader]]:
    yield await invocation.log(), PartialTextReader(invocation)


async def with_pauses(source: AsyncGenerator[T], pause: Callable[[], float | None]) -> AsyncGenerator[T | None]:
    """Yield what a source yields, and None whenever nothing has come for so many seconds."""
    coming = asyncio.ensure_future(anext(source, None))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=pause())
            if not done:
                yield None
            elif (item := coming.result()) is None:
                return
            else:
                coming = asyncio.ensure_future(anext(source, None))
                yield item
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError):
            await coming
        await source.aclose()


async def is_polled(client: AgentClient) -> bool:
    """Whether some worker has recently polled the client's task queue."""
    request = DescribeTaskQueueRequest(
        namespace=client.temporal.namespace,
        task_queue=TaskQueue(name=client.task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        return bool((await client.temporal.workflow_service.describe_task_queue(request)).pollers)
    except RPCError:
        return True  # not known, so no claim


def report_failure(out: Output, error: WorkflowFailureError, **about: str) -> tuple[str, str]:
    """Write that an invocation failed; return the type and the message of what it failed with."""
    cause = error.cause
    kind, message = type(cause).__name__.removesuffix("Error"), str(cause)
    if isinstance(cause, ApplicationError):
        kind, message = cause.type or "ApplicationError", cause.message
    record = {"error": {**about, "type": kind, "message": message}}
    out.result(record, Text(f"failed: {kind}", style="bold red"))
    return kind, message


class Watch:
    """What a terminal shows of an invocation, or of those of a session: events, waits, failures and retries."""

    def __init__(
        self,
        client: AgentClient,
        out: Output,
        root: str,
        *,
        write_waits: Callable[[list[PendingCall]], None] = lambda _: None,
        numbered: bool = False,
    ) -> None:
        """Watch the invocation or the session `root`.

        Args:
            client: Connected.
            out: Where to write.
            root: Its workflow id.
            write_waits: Writes new waits for people.
            numbered: Whether events are written alone, each with its number.
        """
        self._client, self._out, self._root = client, out, root
        self._write_waits, self._numbered = write_waits, numbered
        self.logs: dict[str, Log] = {}
        """By invocation; not of called agents."""
        self._texts: dict[str, GrowingText] = {}
        self._calls: dict[Key, PendingCall] = {}
        self._reported: set[Key] = set()
        self._answered: set[Key] = set()
        """Calls that were answered here, of which histories may not know yet."""
        self._changed = asyncio.Event()
        self._due: dict[Key, tuple[float, float]] = {}
        """When each retry is reported again, and after how long the next time."""

    @property
    def calls(self) -> list[PendingCall]:
        """The calls that wait for a person, oldest first."""
        return sorted(self._calls.values(), key=lambda call: (call.requested_at, call.function_call_id))

    def take(self, log: Log, events: Iterable[Event]) -> None:
        """Take what is known of an invocation now, and write its new events."""
        self.logs[log.invocation_id] = log
        self._changed.set()
        for event in events:
            self.write(event)
        waiting = [] if is_working(log.state) or log.state.outcome.ended else log.state.pending()
        self._replace(lambda invocation_id: invocation_id == log.invocation_id, waiting)

    def notice(self) -> None:
        """Note that something is at work, of which histories do not know yet."""
        self._changed.set()

    def write(self, event: Event) -> None:
        """Write an event; what other invocations have begun to say is left as it is."""
        if self._out.json:
            self._out.record(event.to_json() if self._numbered else {"event": event.to_json()})
            return
        for id, text in self._texts.items():
            if id != event.invocation_id:
                text.interrupt()
        text = self._texts.setdefault(event.invocation_id, GrowingText(self._out, numbered=self._numbered))
        text.write(event)

    def interrupt(self) -> None:
        """Finish lines that grow, so that something else can be written."""
        for text in self._texts.values():
            text.interrupt()

    def _callers(self) -> list[str]:
        return [
            id
            for id, log in self.logs.items()
            if not log.state.outcome.ended and any(call.call.kind == "agent" for call in log.state.performing())
        ]

    def pause(self) -> float | None:
        """Return after how many seconds without news called agents are to be looked at; None when there are none."""
        return CHILDREN_S if self._callers() else None

    async def look_at_called(self) -> None:
        """See what called agents wait for, as long as some are at work."""
        if callers := tuple(f"{id}/" for id in self._callers()):
            pending = await self._client.approvals.pending(below=self._root)
            below = [call for call in pending if call.invocation_id.startswith(callers)]
            self._replace(lambda invocation_id: invocation_id not in self.logs, below)

    def report_waits(self) -> None:
        """Write what waits for a person and was not written before."""
        new = [call for call in self.calls if _key(call) not in self._reported]
        self._reported.update(map(_key, new))
        if not new:
            return
        self.interrupt()
        if self._out.json:
            self._out.record({"pending": [call.model_dump(mode="json") for call in new]})
        else:
            self._write_waits(new)
            self._out.line()

    def mark_answered(self, call: PendingCall) -> None:
        """Note that a call was answered here."""
        self._changed.set()
        self._answered.add(_key(call))
        self._calls.pop(_key(call), None)

    def is_waiting(self, invocation_id: str) -> bool:
        """Whether an invocation, or an agent that it called, waits for a person."""
        return any(f"{id}/".startswith(f"{invocation_id}/") for id, _ in self._calls)

    def _replace(self, owned: Callable[[str], bool], calls: Iterable[PendingCall]) -> None:
        """Replace the calls of some invocations."""
        self._calls = {key: call for key, call in self._calls.items() if not owned(key[0])}
        self._calls.update({_key(call): call for call in calls if _key(call) not in self._answered})

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Report retries as long as this is open."""
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
                except RPCError:  # reported by what follows the invocation
                    pause = SLOW_S

    async def look_for_retries(self, pause: float = QUIET_S) -> float | None:
        """Report what fails and is tried again; return after how long to look again, None when nothing is at work.

        `pause` is how long it was before this look.
        """
        found, at_work = await fetch_retries(self._client.temporal, self._root)
        now = time.time()
        failing = [retry for retry in found if _matters(retry, now)]
        for retry in failing:
            due, longer = self._due.get((retry.workflow_id, retry.activity), (now, AGAIN_S))
            if now >= due:
                self.interrupt()
                self._out.remark(describe_retry(retry, self.logs.get(retry.workflow_id), now))
                self._due[retry.workflow_id, retry.activity] = now + longer, min(2 * longer, AGAIN_AT_MOST_S)
        if failing:
            return max(min(self._due[retry.workflow_id, retry.activity][0] for retry in failing) - now, QUIET_S)
        return QUIET_S if found else min(2 * pause, SLOW_S) if at_work else None


def _key(call: PendingCall) -> Key:
    return call.invocation_id, call.function_call_id


class GrowingText:
    """Writes the events of a stream: pieces as they come, and of recorded events what the pieces have not said."""

    def __init__(self, out: Output, *, numbered: bool = False) -> None:
        """Write to `out`; with the numbers of events, if wanted."""
        self._out, self._numbered = out, numbered
        self._said: dict[int, str | None] = {}
        """By model call: what was written of it; None when some was missed."""
        self._open: int | None = None
        """The model call whose line is not finished."""
        self._filling: Filling | None = None
        """The text of that line."""
        self._complete: str | None = None

    def write(self, event: Event) -> None:
        """Write one event."""
        if event.partial:
            self._partial(event, dict((event.custom_metadata or {}).get(PARTIAL) or {}))
            return
        said, self._complete = self._complete, None
        text = text_of(event.content)
        if said and self._filling and text.startswith(said):
            self._filling.add(text[len(said) :].rstrip())
            event = _without_text(event)
        self.interrupt()
        self._out.event(event, numbered=self._numbered)

    def interrupt(self) -> None:
        """Finish the line, so that something else can be written."""
        if self._filling is not None:
            self._filling.end()
        self._open = self._filling = None

    def _partial(self, event: Event, facts: JsonObject) -> None:
        number = int(facts.get("model_call") or 0)
        if facts.get("void"):
            self.interrupt()
            self._out.line(
                Text(f"{self._hanging(event)}void: attempt {facts.get('attempt')} was given up", style="dim")
            )
            self._said.pop(number, None)
        elif facts.get("complete"):
            # What was begun before the line of another call is not one piece with what follows.
            self._complete = self._said.pop(number, None) if self._open == number else None
        else:
            self._grow(event, number, int(facts.get("offset") or 0))

    def _grow(self, event: Event, number: int, offset: int) -> None:
        piece = text_of(event.content)
        said = self._said.get(number, "")
        missed = said is None or offset != len(said)
        if self._filling is None or self._open != number:
            self.interrupt()
            self._open = number
            before = terminal.number(event) if self._numbered else ""
            clock = terminal.clock(event.timestamp, now=self._out.now())
            prefix = Text(f"{self._out.margin}{before}{clock}  ", style="dim")
            prefix.append(terminal.safe(event.author), "not dim bold").append(": " if offset == 0 else ": …", "not dim")
            self._out.console.print(prefix, end="", soft_wrap=True)
            self._filling = Filling(self._out, prefix.cell_len - len(self._out.margin), self._hanging(event))
        elif missed:
            self._filling.add("…")
        self._filling.add(piece)
        self._said[number] = None if missed or said is None else said + piece

    def _hanging(self, event: Event) -> str:
        return " " * (CLOCK + (len(terminal.number(event)) if self._numbered else 0))


def _without_text(event: Event) -> Event:
    parts = [p for p in (event.content or {}).get("parts") or () if p.get("thought") or "text" not in p]
    return event.model_copy(update={"content": {**(event.content or {}), "parts": parts}})


class Filling:
    """Writes a text that begins in some column, and goes on below that or another one."""

    def __init__(self, out: Output, column: int, indent: str) -> None:
        """`column` is where the text begins, `indent` what further lines begin with, the margin left out."""
        self._out, self._indent = out, out.margin + indent
        self._begins = self._column = len(out.margin) + column
        self._wraps = out.wraps and out.console.width - len(self._indent) >= MIN_COLUMNS
        self._held = ""
        """A word that has perhaps not ended yet: it may have to stand on the next line."""

    def add(self, text: str) -> None:
        """Write a further piece, but for its last word."""
        lines = (terminal.safe(line.removesuffix("\r").expandtabs(4)) for line in text.split("\n"))
        *words, self._held = _WORD.findall(self._held + "\n".join(lines)) or [""]
        if not self._wraps:
            words.append(self._held)
            self._held = ""
        for word in words:
            self._put(word)
        self._out.console.file.flush()

    def end(self) -> None:
        """Write what was held back, and end the line."""
        self._put(self._held.rstrip())
        self._out.line()

    def _put(self, word: str) -> None:
        if word == "\n":
            self._break()
            return
        if self._overflows(word) and self._column > self._begins:
            self._break()
            word = word.lstrip()
        while self._overflows(word):  # longer than a line
            fitting = next(n for n in range(1, len(word)) if self._overflows(word[: n + 1]))
            self._write(word[:fitting])
            self._break()
            word = word[fitting:]
        self._write(word)

    def _overflows(self, word: str) -> bool:
        return self._wraps and len(word) > 1 and self._column + cell_len(word) > self._out.console.width

    def _break(self) -> None:
        self._write(f"\n{self._indent}")
        self._begins = self._column = len(self._indent)

    def _write(self, text: str) -> None:
        self._out.console.print(Text(text), end="", soft_wrap=True)
        self._column += cell_len(text)


def describe_retry(retry: Retry, log: Log | None, now: float) -> str:
    """Return in one line what is tried again, how often it failed, when the next try comes, and why; or since when what
    was never tried has waited."""
    if not retry.failed:
        since = terminal.clock(retry.next_at or now, now=now)
        return f"{_what(retry, log)} has waited since {since} for a worker that polls {retry.task_queue!r}."
    times = {1: "once", 2: "twice"}.get(retry.failed, f"{retry.failed} times")
    # Of a tool's some are kept for when workers are lost.
    most = f" ({retry.most} tries at most)" if retry.type == MODEL.name and retry.most else ""
    if retry.next_at is not None and retry.next_at > now:
        then = f"next try at {terminal.clock(retry.next_at, now=now)}"
    elif retry.next_at is None or now - retry.next_at <= SOON_S:
        then = "it is being tried again now"
    else:
        then = f"its next try has waited for a worker since {terminal.clock(retry.next_at, now=now)}"
    why = (
        summary.clip(" ".join(terminal.failure(retry.failure).split()), MAX_WHY) if retry.failure else "no reason given"
    )
    return f"{_what(retry, log)} failed {times}{most}; {then}. {terminal.safe(why)}"


def _matters(retry: Retry, now: float) -> bool:
    return retry.failed > 1 or (retry.next_at is not None and abs(retry.next_at - now) > SOON_S)


def _what(retry: Retry, log: Log | None) -> str:
    """Return the name of what was tried, or is to be, in the words of agents."""
    agent, dot, tool = retry.type.partition(".")
    if dot:
        return f"{terminal.safe(agent)}'s call {terminal.safe(tool)} [{call_id_of(retry.activity)}]"
    if retry.type != MODEL.name:
        return f"The activity {retry.type} of {terminal.safe(retry.workflow_id)}"
    works = log.state.models_at_work if log else {}
    asking = next((work.agent for number, work in works.items() if str(ModelReplyRef(number)) == retry.activity), None)
    return f"The model of {terminal.safe(asking or retry.workflow_id)}"
