"""Read histories: the state of an invocation, and whether a recorded history replays."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text
from temporalio.client import WorkflowHistory

from waystation.cli import render
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.client.agent_client import AgentClient
from waystation.core.errors import ForeignHistory, NotReplayable
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.state import StateFold
from waystation.history import decoded, project
from waystation.storage import Blobs
from waystation.storage.driver import offloading

MAX_PROBLEM = 600
"""Characters of the reason why a history does not replay."""
_CORE_MESSAGE = re.compile(r'message: "(.+?)", source: "')


async def state(client: AgentClient, out: Output, *, id: str) -> Exit:
    """Write the state of an invocation as of now."""
    held = await client.invocation(id).state()
    if out.json:
        out.record(held)
    else:
        out.line(render.safe_json(held, indent=2))
    return Exit.OK


def states(log: Log) -> Iterator[tuple[Event, JsonObject]]:
    """Yield each event with the state after it."""
    fold = StateFold(log.input.state if log.input else {})
    for event in log.events:
        fold.apply(event.actions)
        yield event, fold.value


@dataclass(frozen=True, slots=True)
class Replayed:
    """One history, and whether the present code would do what it recorded."""

    source: str
    history: WorkflowHistory
    log: Log
    problem: str | None

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "source": self.source,
            "invocation_id": self.history.workflow_id,
            "replays": self.problem is None,
            "problem": self.problem,
            "history_events": len(self.history.events),
            "steps": [{"event": event.to_json(), "state": held} for event, held in states(self.log)],
        }


async def replay(target: Target, out: Output, *, sources: Sequence[str]) -> Exit:
    """Replay histories against the present code, and write the state at each of their events."""
    client: AgentClient | None = None
    failed = False
    for source in sources:
        if _is_file(source):
            history = await opened(read(Path(source)), target.store)
        else:
            client = client or await target.connect()
            history = await client.invocation(source).history()
            history = WorkflowHistory(
                history.workflow_id, await decoded(history.events, client.temporal.data_converter)
            )
        try:
            replayed = await replayed_history(source, history)
        except ForeignHistory as error:
            raise Problem(Exit.USAGE if _is_file(source) else Exit.UNKNOWN, f"{source}: {error}") from None
        failed = failed or replayed.problem is not None
        if out.json:
            out.record(replayed.to_json())
        else:
            _write(out, replayed)
    return Exit.FAILED if failed else Exit.OK


async def replayed_history(source: str, history: WorkflowHistory) -> Replayed:
    """Replay one history.

    Raises:
        ForeignHistory: It is not one of ours, or it is damaged.
    """
    from waystation import replay as replaying  # here, because it loads the workflows

    log = project(history).log
    try:
        await replaying.replay(history)
    except NotReplayable as error:
        return Replayed(source, history, log, _reason(error))
    return Replayed(source, history, log, None)


async def opened(history: WorkflowHistory, store: str | None) -> WorkflowHistory:
    """Return a history with the payloads that were kept beside it.

    Raises:
        StoreFailed: The store does not answer.
    """
    return WorkflowHistory(history.workflow_id, await decoded(history.events, offloading(Blobs(store))))


def _reason(error: NotReplayable) -> str:
    """Return what differs, without the names of the types that carried the message."""
    text = " ".join(str(error).split())
    found = _CORE_MESSAGE.search(text)
    return (found[1] if found else text)[:MAX_PROBLEM]


def read(path: Path) -> WorkflowHistory:
    """Return the history in a file, as `temporal workflow show -o json` and the Web UI write it.

    Raises:
        Problem: There is no such file, or it holds something else.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Problem(Exit.USAGE, f"Cannot read {str(path)!r}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise Problem(Exit.USAGE, f"{str(path)!r} is no JSON. {_WANTED}") from None
    events = found.get("events") if isinstance(found, dict) else None
    if not isinstance(events, list) or not events:
        raise Problem(Exit.USAGE, f"{str(path)!r} is no history: it has no list of `events`. {_WANTED}")
    try:
        history = WorkflowHistory.from_json(_workflow_id(events[0]) or path.stem, found)
    except Exception as error:  # noqa: BLE001  # whatever the protobuf reader meets in a file made by others
        reason = " ".join(str(error).split())[:200]
        raise Problem(Exit.USAGE, f"{str(path)!r} cannot be read as a history: {reason}. {_WANTED}") from None
    if gap := _gap(history):
        raise Problem(Exit.USAGE, f"{str(path)!r} cannot be read as a history: {gap}. {_WANTED}")
    return history


def _gap(history: WorkflowHistory) -> str | None:
    """Return what a history lacks without which Temporal's replayer would wait for ever."""
    started = history.events[0].workflow_execution_started_event_attributes
    if not started.workflow_type.name:
        return "its first event is not the workflow's start"
    if not started.original_execution_run_id:
        return "its first event has no `originalExecutionRunId`"
    for number, event in enumerate(history.events, 1):
        if event.event_id != number:
            return f"event {number} is missing"
    return None


_WANTED = "Save one with `temporal workflow show -o json`, or download it, not decoded, from the Web UI."


def _workflow_id(started: Any) -> str | None:
    """Return the workflow's id from its first event; ids of events and of called agents derive from it."""
    attributes = started.get("workflowExecutionStartedEventAttributes") if isinstance(started, dict) else None
    found = attributes.get("workflowId") if isinstance(attributes, dict) else None
    return found if isinstance(found, str) else None


def _is_file(source: str) -> bool:
    return source.endswith(".json") or Path(source).is_file()


def _write(out: Output, replayed: Replayed) -> None:
    count = len(replayed.history.events)
    verdict = Text("replays", style="bold green") if replayed.problem is None else Text("differs", style="bold red")
    out.line(Text.assemble(verdict, f"  {render.safe(replayed.source)}, {count} events of history"))
    if replayed.problem:
        out.line(render.safe(replayed.problem), style="red")
    out.table(state_table(replayed.log))


def state_table(log: Log) -> Table:
    """Return a table of the state after each event."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("#", justify="right", style="dim")
    table.add_column("event", ratio=3)
    table.add_column("state after it", ratio=2)
    before: JsonObject | None = None
    for number, (event, held) in enumerate(states(log), 1):
        happened = Text("\n").join(line.styled() for line in render.lines_of(event) if line.kind != "state")
        table.add_row(
            str(number), happened, Text(render.short_json(held), style="dim" if held == before else "magenta")
        )
        before = held
    return table
