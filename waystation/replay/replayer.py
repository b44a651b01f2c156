"""Replay histories against the present workflow code, and say where the two part."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, WorkflowRunner

from waystation.core.errors import ForeignHistory, NotReplayable, StoreFailed
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.settings import WorkflowSettings
from waystation.core.wire import WORKFLOW
from waystation.history import carried_log, decode_events, log_of, own_runs, type_of
from waystation.replay.divergence import Difference, Part, first_difference, shown
from waystation.replay.recording import Recording
from waystation.replay.watching import Activation, Tracing, Watch, place_in
from waystation.replay.wording import happened, said, waits
from waystation.storage import Blobs
from waystation.storage.driver import offloading
from waystation.workflows.invocation import AgentInvocation
from waystation.workflows.scope import AgentScope
from waystation.workflows.session import AgentSession
from waystation.workflows.settings_interceptor import SettingsInterceptor

_WORKFLOWS = [AgentInvocation, AgentScope, AgentSession]
_CORE_MESSAGE = re.compile(r'message: "(.+?)", source: "')
_CORE_EVENT = re.compile(r"HistoryEvent\(id: (\d+), (\w+)\)")
MAX_PROBLEM = 600
"""Characters of what Temporal's replayer says."""
_DEADLOCK = "TMPRL1101"
"""How the SDK marks a workflow task for which it would not wait longer: workflow code of ours never stands still."""
STARVED_TRIES = 3
"""How often a history is replayed of which a task got no turn for two seconds on a busy machine."""
Replays: TypeAlias = Callable[[WorkflowHistory], Awaitable[Difference | None]]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first thing that the present code does otherwise than it was recorded."""

    workflow_id: str
    run_id: str
    recorded: str
    """What was done then, such as `call pay(amount=200)`."""
    now: str
    """What the code wants now, such as `wait for approval of pay(amount=200)`."""
    event: int | None
    """Number of the event of the agent after which it happens; None for sessions and scopes, which have none."""
    after: str | None
    """What had happened last, such as `model reply 2`."""
    history_event: int
    """Id of Temporal's event that records it, or else of the one after which it would be recorded."""
    line: str | None = None
    """Which line of the workflow code wants it, such as `workflows/perform.py:110 in call_tool`."""
    parts: Sequence[Part] = ()
    """In what the two differ, when they ask for the same with other particulars."""
    failure: str | None = None
    """Name of the error with which the workflow task fails now, when it does."""
    run: int = 1
    """Which of the runs of the workflow it is."""
    runs: int = 1

    def __str__(self) -> str:
        """Return it as one line."""
        where = [f"after event {self.event}"] if self.event is not None else []
        where += [f"history event {self.history_event}"]
        after = f", after {self.after}" if self.after else ""
        line = f", in {self.line}" if self.line else ""
        run = f"Run {self.run} of {self.runs}: " if self.runs > 1 else ""
        return f"{run}recorded: {self.recorded}{after} ({', '.join(where)}); now: {self.now}{line}"

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "workflow_id": self.workflow_id,
            "run_id": self.run_id,
            "run": self.run,
            "runs": self.runs,
            "recorded": self.recorded,
            "now": self.now,
            "event": self.event,
            "after": self.after,
            "history_event": self.history_event,
            "line": self.line,
            "failure": self.failure,
            "parts": [part.to_json() for part in self.parts],
        }


async def replay(
    recorded: Recording | WorkflowHistory,
    *,
    runner: WorkflowRunner | None = None,
    converter: DataConverter | None = None,
    settings: WorkflowSettings | None = None,
) -> None:
    """Replay what was recorded; neither a server nor the agent is needed.

    Temporal's own replayer compares kinds and names of commands. This also compares their order, what activities and
    called agents are given, their options, results, and what is shown outside.

    Args:
        recorded: A history of an invocation, a session or a scope, open or closed; or a recording, with all its runs
            and the agents that it called.
        runner: How workflow code is run; by default as in production.
        converter: Opens its payloads; by default large ones are looked for where `Blobs` says.
        settings: Timeouts and retries of the workers that recorded it, when not the default ones.

    Raises:
        ForeignHistory: It does not begin with the start of a workflow; the SDK would wait for that for ever.
        NotReplayable: The present code would not do what was recorded, or large values of a recording are lacking.
    """
    found = await divergence_of(recorded, runner=runner, converter=converter, settings=settings)
    if found:
        raise NotReplayable(f"The history of {found.workflow_id!r} does not replay: {found}")


async def divergence_of(
    recorded: Recording | WorkflowHistory,
    *,
    runner: WorkflowRunner | None = None,
    converter: DataConverter | None = None,
    settings: WorkflowSettings | None = None,
) -> Divergence | None:
    """Return where the present code parts from what was recorded; None when it does not. For the rest see `replay`.

    Raises:
        ForeignHistory: It does not begin with the start of a workflow.
        NotReplayable: Large values of a recording are lacking.
    """
    async with replaying(runner=runner, converter=converter, settings=settings) as replays:
        return await diverging(recorded, replays, converter=converter)


async def diverging(
    recorded: Recording | WorkflowHistory,
    replays: Replays,
    *,
    converter: DataConverter | None = None,
) -> Divergence | None:
    """As `divergence_of`, with a replayer that serves for more than one."""
    if isinstance(recorded, WorkflowHistory):
        difference = await replays(recorded)
        return await _told([recorded], 0, difference, converter) if difference else None
    if lacking := recorded.lacking:
        what = f"{len(lacking)} of the large values of {recorded.id!r} cannot be had"
        raise NotReplayable(f"{what}; --store says where workers keep them. {next(iter(lacking.values()))}")
    for run, history in enumerate(recorded.histories):
        if difference := await replays(history):
            return await _told(recorded.histories, run, difference, converter)
    for called in recorded.called.values():
        if found := await diverging(called, replays, converter=converter):
            return found
    return None


@asynccontextmanager
async def replaying(
    *,
    runner: WorkflowRunner | None = None,
    converter: DataConverter | None = None,
    settings: WorkflowSettings | None = None,
) -> AsyncIterator[Replays]:
    """Give a function that replays a history and returns where it first differs; one history at a time."""
    converter = converter or offloading(Blobs())
    watch = runner if isinstance(runner, Watch) else Watch(runner)
    waiting: list[WorkflowHistory] = []

    async def feed() -> AsyncIterator[WorkflowHistory]:
        while True:
            yield waiting.pop()

    replayer = Replayer(
        workflows=_WORKFLOWS,
        workflow_runner=watch,
        unsandboxed_workflow_runner=watch,
        data_converter=converter,
        interceptors=[SettingsInterceptor(settings or WorkflowSettings())],
    )
    async with replayer.workflow_replay_iterator(feed()) as results:

        async def replays(history: WorkflowHistory) -> Difference | None:
            if not history.events or not history.events[0].HasField("workflow_execution_started_event_attributes"):
                raise ForeignHistory(
                    f"The history of {history.workflow_id!r} does not begin with the start of a workflow."
                )
            if all(event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in history.events):
                return None  # nobody has taken it up yet; for the first task, too, the SDK would wait for ever
            waiting.extend([history] * STARVED_TRIES)
            result = await anext(results)
            while waiting and _DEADLOCK in str(result.replay_failure):
                result = await anext(results)
            waiting.clear()
            opened = WorkflowHistory(history.workflow_id, await _opened(history, converter))
            if difference := first_difference(opened, watch.activations, watch.queue):
                return difference
            return _by_temporal(history, watch.activations, result.replay_failure) if result.replay_failure else None

        yield replays


async def _opened(history: WorkflowHistory, converter: DataConverter) -> Sequence[HistoryEvent]:
    try:
        return await decode_events(history.events, converter)
    except StoreFailed:
        return history.events  # what is elsewhere is compared with nothing then


def _by_temporal(history: WorkflowHistory, activations: Sequence[Activation], failure: Exception) -> Difference:
    """Return a difference that only Temporal's replayer finds: markers, and the cancelling of what is under way."""
    text = " ".join(str(failure).split())
    found = _CORE_MESSAGE.search(text)
    text = (found[1] if found else text).replace("\\'", "'")[:MAX_PROBLEM]
    event = _CORE_EVENT.search(text)
    last = activations[-1].started if activations else 0
    at = int(event[1]) if event else last
    return Difference(last, at, None, None, activation=len(activations) - 1, failure=text)


async def _told(
    histories: Sequence[WorkflowHistory],
    run: int,
    difference: Difference,
    converter: DataConverter | None,
) -> Divergence:
    """Return a difference in the words of agents."""
    history = histories[run]
    log = _log_until(histories, run, difference.completed)
    entries = reversed(log.entries) if log else ()
    activation = await _traced(history, difference, converter)
    recorded, now, line = _both(difference, activation, log)
    started = history.events[0].workflow_execution_started_event_attributes
    return Divergence(
        workflow_id=history.workflow_id,
        run_id=started.original_execution_run_id,
        recorded=recorded,
        now=now,
        event=log.events_before + len(log.events) if log else None,
        after=next(filter(None, (happened(entry.body) for entry in entries)), None),
        history_event=difference.recorded.event_id if difference.recorded else difference.completed,
        line=line,
        parts=difference.parts,
        failure=difference.failure_type,
        run=run + 1,
        runs=len(histories),
    )


def _both(difference: Difference, activation: Activation | None, log: Log | None) -> tuple[str, str, str | None]:
    """Return what was recorded, what is wanted now, and the line that wants it."""
    one, other = said(difference.recorded, log), said(difference.now, log)
    if difference.failure:
        recorded = one if difference.recorded else "something else"
        failed = activation.failure if activation else None
        return recorded, f"the workflow task fails: {difference.failure}", place_in(failed) if failed else None
    if difference.swapped:
        one, other = f"{one}, before {other}", f"{other} first"
    elif difference.parts and one == other:
        part = difference.parts[0]
        one, other = f"{one}, with {part.name} {shown(part.recorded)}", f"the same with {shown(part.now)}"
    if activation is None:
        return one, other, None
    if difference.now is None:
        before = {call.id for call in log.waiting()} if log else set()
        new = [call for call in activation.pending if call["function_call_id"] not in before]
        return one, waits(new) or other, activation.rests
    return one, other, activation.places[difference.index] if difference.index < len(activation.places) else None


async def _traced(
    history: WorkflowHistory, difference: Difference, converter: DataConverter | None
) -> Activation | None:
    """Replay once more, and look closely."""
    tracing = Tracing()
    async with replaying(runner=tracing, converter=converter) as replays:
        await replays(history)
    found = tracing.activations
    return found[difference.activation] if 0 <= difference.activation < len(found) else None


def _log_until(histories: Sequence[WorkflowHistory], run: int, event_id: int) -> Log | None:
    """Return the log of an invocation as it was right after an event of Temporal's, of one of its runs."""
    if type_of(histories[run]) != WORKFLOW or not event_id:  # 0: it differs before the workflow takes its first step
        return None
    cut = WorkflowHistory(histories[run].workflow_id, histories[run].events[:event_id])
    try:
        own = own_runs([*histories[:run], cut])
        return log_of(own, carried_log(own))
    except (ForeignHistory, StoreFailed):
        return None
