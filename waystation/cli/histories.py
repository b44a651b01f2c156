"""Read histories: keep them, show the state of an invocation, and say whether what was recorded replays."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output, error
from waystation.cli.recordings import Recordings
from waystation.cli.target import Target
from waystation.client import AgentClient
from waystation.core.payload import JsonObject
from waystation.history import format_saved_history
from waystation.presentation import terminal
from waystation.replay.divergence import Divergence, format_value
from waystation.replay.recording import Recording


async def state(client: AgentClient, out: Output, *, id: str) -> Exit:
    """Write the state of an invocation as of now."""
    held = await client.invocation(id).state()
    if out.json:
        out.record(held)
    else:
        out.line(terminal.state(held))
    return Exit.OK


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recording, and whether the present code would do what it says."""

    recording: Recording
    divergence: Divergence | None = None
    lacking: str | None = None
    """Why it was not replayed at all, when some of it cannot be had."""

    @property
    def problem(self) -> str | None:
        """Why it does not replay, when it does not."""
        return self.lacking or (str(self.divergence) if self.divergence else None)

    @property
    def verdict(self) -> Text:
        """What came of it, in a word or two."""
        if self.problem is None:
            return Text("replays", style="bold green")
        return Text("not replayed" if self.lacking else "differs", style="bold red")

    @property
    def length(self) -> int:
        """How many events of history there are."""
        return sum(len(history.events) for history in self.recording.histories)

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {
            "source": self.recording.source,
            "invocation_id": self.recording.id,
            "replays": self.problem is None,
            "problem": self.problem,
            "divergence": self.divergence.to_json() if self.divergence else None,
            "runs": len(self.recording.histories),
            "history_events": self.length,
            "steps": [
                {"event": moment.event.to_json(), "state": moment.state}
                for moment in self.recording.moments()
                if moment.event
            ],
        }


async def history(target: Target, out: Output, *, source: str, rules: Sequence[str] = ()) -> Exit:
    """Write the histories of all runs of a workflow, and of the agents that it called, as a file holds them.

    Raises:
        Problem: A rule of redaction is none, or the source cannot be read.
    """
    recordings = Recordings(target)
    saved, converter = await recordings.saved(source)
    if rules:
        from waystation.replay.redaction import InvalidRule, redact

        try:
            with recordings.problems(source):
                saved = await redact(saved, rules, converter=converter)
        except InvalidRule as error:
            raise Problem(Exit.USAGE, str(error)) from None
    out.record(format_saved_history(saved))
    return Exit.OK


async def replay(target: Target, out: Output, *, sources: Sequence[str]) -> Exit:
    """Replay histories against the present code, and write the state at each of their events.

    Those that cannot be read are named; the exit code is that of the first of them.
    """
    recordings = Recordings(target)
    failed, unread = False, Exit.OK
    for source in sources:
        try:
            recording = await recordings.get(source)
        except Problem as problem:
            error(str(problem))
            unread = unread or problem.exit
            continue
        for each in (recording, *recording.below()):
            replayed = await replayed_runs(each)
            failed = failed or replayed.problem is not None
            if out.json:
                out.record(replayed.to_json())
            else:
                _write(out, replayed)
    return unread or (Exit.FAILED if failed else Exit.OK)


async def replayed_runs(recording: Recording) -> Replayed:
    """Replay the runs of a workflow. Not when they hold only short forms of values."""
    from waystation.replay.replayer import divergence_of  # here, because it loads the workflows

    if lacking := recording.lacking:
        problem = f"{len(lacking)} of its large values cannot be had; --store says where workers keep them."
        return Replayed(recording, lacking=f"{problem} {next(iter(lacking.values()))}")
    return Replayed(recording, await divergence_of(dataclasses.replace(recording, called={})))


def _write(out: Output, replayed: Replayed) -> None:
    recording = replayed.recording
    runs = f" in {len(recording.histories)} runs" if len(recording.histories) > 1 else ""
    told = f"  {terminal.safe(recording.source)}, {replayed.length} events of history{runs}"
    out.line(Text.assemble(replayed.verdict, told))
    if replayed.divergence:
        out.line(divergence(replayed.divergence))
    elif replayed.problem:
        out.line(terminal.safe(replayed.problem), style="red")
    if recording.events:
        out.table(state_table(recording))


def divergence(found: Divergence) -> Text:
    """Return where code and history part, in a few lines."""
    where = [f"after event {found.event}"] if found.event is not None else []
    after = f"   after {found.after}" if found.after else ""
    where += [f"run {found.run} of {found.runs}"] if found.runs > 1 else []
    text = Text("  recorded  ")
    text.append(terminal.safe(found.recorded), style="green").append(f"{after}\n")
    text.append("  now       ").append(terminal.safe(found.now), style="red")
    text.append(f"\n  where     {', '.join([*where, f'history event {found.history_event}'])}")
    text.append(f"\n  wanted by {found.line}" if found.line else "")
    for part in found.parts:
        text.append(f"\n  differs   {terminal.safe(part.name)}: ")
        text.append(terminal.safe(format_value(part.recorded)), style="green").append(" → ")
        text.append(terminal.safe(format_value(part.now)), style="red")
    return text


def state_table(recording: Recording) -> Table:
    """Return a table of the state after each event."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("#", justify="right", style="dim")
    table.add_column("event", ratio=3)
    table.add_column("state after it", ratio=2)
    before: JsonObject | None = None
    for moment in recording.moments():
        lines = terminal.lines_of(moment.event) if moment.event else ()
        happened = Text("\n").join(line.styled() for line in lines if line.kind != "state")
        style = "dim" if moment.state == before else "magenta"
        table.add_row(str(moment.number), happened, Text(terminal.short_json(moment.state), style=style))
        before = moment.state
    return table
