"""Read histories: keep them, show the state of an invocation, and say whether what was recorded replays."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rich import box
from rich.table import Table
from rich.text import Text
from temporalio.client import WorkflowHistory

from waystation.cli import render
from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.client import chain
from waystation.client.agent_client import AgentClient
from waystation.core.errors import ForeignHistory, NotReplayable
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.scope import WORKFLOW as SCOPE_WORKFLOW
from waystation.core.state import StateFold
from waystation.core.wire import SESSION_WORKFLOW
from waystation.history import log_of
from waystation.history_files import read, written
from waystation.storage import Blobs
from waystation.storage.driver import offloading, shortened

MAX_PROBLEM = 600
"""Characters of the reason why a history does not replay."""
_CORE_MESSAGE = re.compile(r'message: "(.+?)", source: "')


async def state(client: AgentClient, out: Output, *, id: str) -> Exit:
    """Write the state of an invocation as of now."""
    held = await client.invocation(id).state()
    if out.json:
        out.record(held)
    else:
        out.line(render.state(held))
    return Exit.OK


def states(log: Log) -> Iterator[tuple[Event, JsonObject]]:
    """Yield each event with the state after it."""
    fold = StateFold(log.input.state if log.input else {})
    for event in log.events:
        fold.apply(event.actions)
        yield event, fold.value


@dataclass(frozen=True, slots=True)
class Replayed:
    """One invocation, and whether the present code would do what its runs recorded."""

    source: str
    histories: Sequence[WorkflowHistory]
    """Of its runs, oldest first."""
    log: Log
    problem: str | None
    attempted: bool = True
    """Whether it was replayed at all: not when some of it cannot be had."""

    @property
    def verdict(self) -> Text:
        """What came of it, in a word or two."""
        if self.problem is None:
            return Text("replays", style="bold green")
        return Text("differs" if self.attempted else "not replayed", style="bold red")

    @property
    def length(self) -> int:
        """How many events of history there are."""
        return sum(len(history.events) for history in self.histories)

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "source": self.source,
            "invocation_id": self.log.invocation_id,
            "replays": self.problem is None,
            "problem": self.problem,
            "runs": len(self.histories),
            "history_events": self.length,
            "steps": [{"event": event.to_json(), "state": held} for event, held in states(self.log)],
        }


async def history(client: AgentClient, out: Output, *, id: str) -> Exit:
    """Write the histories of all runs of a workflow as a file holds them."""
    out.record(written(await client.invocation(id).histories()))
    return Exit.OK


async def replay(target: Target, out: Output, *, sources: Sequence[str]) -> Exit:
    """Replay histories against the present code, and write the state at each of their events."""
    client: AgentClient | None = None
    failed = False
    for source in sources:
        in_file = is_file(source)
        try:
            if in_file:
                replayed = await _replayed_file(source, target.store)
            else:
                client = client or await target.connect()
                replayed = await _replayed_invocation(source, client)
        except ForeignHistory as error:
            text = str(error) if source in str(error) else f"{source}: {error}"
            raise Problem(Exit.USAGE if in_file else Exit.UNKNOWN, text) from None
        failed = failed or replayed.problem is not None
        if out.json:
            out.record(replayed.to_json())
        else:
            _write(out, replayed)
    return Exit.FAILED if failed else Exit.OK


def is_file(source: str) -> bool:
    """Whether a source names a file, and no invocation."""
    return source.endswith(".json") or Path(source).is_file()


async def _replayed_file(source: str, store: str | None) -> Replayed:
    try:
        found = read(Path(source))
    except OSError as error:
        raise Problem(Exit.USAGE, f"Cannot read {source!r}: {error.strerror}.") from None
    converter = offloading(Blobs(store), short_forms=True)
    histories = await chain.opened(found, converter)
    return await replayed_runs(source, histories, lacking=shortened(converter))


async def _replayed_invocation(id: str, client: AgentClient) -> Replayed:
    invocation = client.invocation(id)
    converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
    histories = await chain.opened(await invocation.histories(), converter)
    before = None
    if not _without_log(histories):
        before = await chain.before(client.temporal, id, histories[0].events[0], client.blobs.get)
    return await replayed_runs(id, histories, before, lacking=shortened(converter))


def _without_log(histories: Sequence[WorkflowHistory]) -> bool:
    """Whether they are of a session or a scope, which replay as invocations do and have no events of an agent."""
    kind = histories[0].events[0].workflow_execution_started_event_attributes.workflow_type.name
    return kind in (SESSION_WORKFLOW, SCOPE_WORKFLOW)


async def replayed_runs(
    source: str,
    histories: Sequence[WorkflowHistory],
    before: Log | None = None,
    *,
    lacking: Mapping[str, str] = MappingProxyType({}),
) -> Replayed:
    """Replay the runs of a workflow; `before` is the log of an invocation's runs that are not among them.

    Not when they hold only short forms of values; `lacking` says of which, and why.

    Raises:
        ForeignHistory: It is not one of ours, or it is damaged.
    """
    log = Log(histories[0].workflow_id) if _without_log(histories) else log_of(histories, before)
    if lacking:
        problem = f"{len(lacking)} of its large values cannot be had; --store says where workers keep them."
        return Replayed(source, histories, log, f"{problem} {next(iter(lacking.values()))}", attempted=False)
    return Replayed(source, histories, log, await _problem(histories))


async def _problem(histories: Sequence[WorkflowHistory]) -> str | None:
    """Return what the present code would do otherwise, in the first run that differs."""
    from waystation.replay import replay  # here, because it loads the workflows

    for number, history in enumerate(histories, 1):
        try:
            await replay(history)
        except NotReplayable as error:
            return _reason(error) if len(histories) == 1 else f"Run {number} of {len(histories)}: {_reason(error)}"
    return None


def _reason(error: NotReplayable) -> str:
    """Return what differs, without the names of the types that carried the message."""
    text = " ".join(str(error).split())
    found = _CORE_MESSAGE.search(text)
    return (found[1] if found else text)[:MAX_PROBLEM]


def _write(out: Output, replayed: Replayed) -> None:
    runs = f" in {len(replayed.histories)} runs" if len(replayed.histories) > 1 else ""
    told = f"  {render.safe(replayed.source)}, {replayed.length} events of history{runs}"
    out.line(Text.assemble(replayed.verdict, told))
    if replayed.problem:
        out.line(render.safe(replayed.problem), style="red")
    if replayed.log.events:
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
