"""`waystation history` and `replay`: keep histories, and say whether what was recorded replays."""

import asyncio
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from waystation.cli.command_context import AsJson, CommandContext, Source
from waystation.cli.exit_codes import Exit, Problem
from waystation.cli.output import Output, error
from waystation.cli.recordings import is_file, read_source, source_problems
from waystation.core import JsonObject
from waystation.history import format_saved_history, read_history_file
from waystation.presentation import terminal
from waystation.replay import redaction
from waystation.replay.deployment_gate import BREAKS, GateReport, Verdict, gate
from waystation.replay.divergence import Divergence, format_value
from waystation.replay.recording import Recording
from waystation.replay.redaction import InvalidRule
from waystation.replay.replayer import divergence_of
from waystation.storage import Blobs, offloading

_OUTCOMES: dict[Verdict, str] = {
    "replays": "replay",
    "differs": "differ",
    "misfit": "do not fit the agents",
    "unchecked": "could not be replayed",
    "lacking": "need large values that are not in the store",
    "vanished": "are gone meanwhile",
}


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


async def history(
    ctx: CommandContext,
    source: Source,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Hide: secrets, text, or field:NAME such as field:email; may be repeated."),
    ] = None,
) -> Exit:
    """Print what Temporal recorded of an invocation, all of its runs, as JSON; `replay` takes it from a file.

    Of an invocation with one run it is what `temporal workflow show -o json` prints. Redacted, it keeps its events,
    ids, numbers and lengths, and replays.
    """
    with source_problems(ctx.target, source):
        if is_file(source):
            saved = await asyncio.to_thread(read_history_file, Path(source))
            converter = offloading(Blobs(ctx.target.store), short_forms=True)
        else:
            client = await ctx.connect()
            saved = await client.invocation(source).saved()
            converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
        try:
            saved = await redaction.redact(saved, redact, converter=converter) if redact else saved
        except InvalidRule as error:
            raise Problem(Exit.USAGE, str(error)) from None
    ctx.out.record(format_saved_history(saved))
    return Exit.OK


async def replay(
    ctx: CommandContext,
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="ID|FILE...", help="Invocations, or histories as JSON.")
    ] = None,
    open: Annotated[
        bool, typer.Option("--open", help="Replay all that is open in the namespace instead, before a deployment.")
    ] = False,
    agents: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="With --open: agents to be deployed, whose tools open calls need."),
    ] = None,
    sample: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --open: replay as many of those closed last, too.")
    ] = 0,
    processes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --open: how many processes; one for each core.")
    ] = None,
    json: AsJson = False,
) -> Exit:
    """Replay histories against the present code, and print the state at each event.

    A file is what `waystation history`, `temporal workflow show -o json` or the Web UI's download writes; for files no
    server is needed. What cannot be read is named, and the others are replayed; the exit code is then the one for that,
    before 1 for what does not replay. With --open the exit code is 1 when this build could not go on with something
    that is open.
    """
    if open == bool(sources):
        text = "name invocations, or give --open for all" if open else "name an invocation or a file, or give --open"
        raise typer.BadParameter(text, param_hint="ID|FILE...")
    if not open and (agents or sample or processes):
        raise typer.BadParameter("--agents, --sample and --processes go with --open", param_hint="--open")
    if open:
        return await _replay_open(ctx, agents or [], sample, processes)
    failed, unread = False, Exit.OK
    for source in sources or ():
        try:
            recording = await read_source(ctx, source)
        except Problem as problem:
            error(str(problem))
            unread = unread or problem.exit
            continue
        for each in (recording, *recording.below()):
            replayed = await replayed_runs(each)
            failed = failed or replayed.problem is not None
            if json:
                ctx.out.record(replayed.to_json())
            else:
                _write(ctx.out, replayed)
    return unread or (Exit.FAILED if failed else Exit.OK)


async def replayed_runs(recording: Recording) -> Replayed:
    """Replay the runs of a workflow. Not when they hold only short forms of values."""
    if lacking := recording.lacking:
        problem = f"{len(lacking)} of its large values cannot be had; --store says where workers keep them."
        return Replayed(recording, lacking=f"{problem} {next(iter(lacking.values()))}")
    return Replayed(recording, await divergence_of(dataclasses.replace(recording, called={})))


def _write(out: Output, replayed: Replayed) -> None:
    recording = replayed.recording
    runs = f" in {len(recording.histories)} runs" if len(recording.histories) > 1 else ""
    about = f"  {terminal.safe(recording.source)}, {replayed.length} events of history{runs}"
    failed = "not replayed" if replayed.lacking else "differs"
    verdict = (failed, "bold red") if replayed.problem else ("replays", "bold green")
    out.line(Text.assemble(verdict, about))
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
    text = Text.assemble(
        *("  recorded  ", (terminal.safe(found.recorded), "green"), after),
        *("\n  now       ", (terminal.safe(found.now), "red")),
        f"\n  where     {', '.join([*where, f'history event {found.history_event}'])}",
        f"\n  wanted by {found.line}" if found.line else "",
    )
    for part in found.parts:
        recorded, now = (terminal.safe(format_value(value)) for value in (part.recorded, part.now))
        text.append_text(
            Text.assemble(f"\n  differs   {terminal.safe(part.name)}: ", (recorded, "green"), " → ", (now, "red"))
        )
    return text


def state_table(recording: Recording) -> Table:
    """Return a table of the state after each event."""
    columns = Column("#", justify="right", style="dim"), Column("event", ratio=3), Column("state after it", ratio=2)
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    before: JsonObject | None = None
    for moment in recording.moments():
        lines = terminal.lines_of(moment.event) if moment.event else ()
        happened = Text("\n").join(line.styled() for line in lines if line.kind != "state")
        style = "dim" if moment.state == before else "magenta"
        table.add_row(str(moment.number), happened, Text(terminal.short_json(moment.state), style=style))
        before = moment.state
    return table


async def _replay_open(ctx: CommandContext, agents: list[Path], sample: int, processes: int | None) -> Exit:
    """Say whether this build can go on with everything that is open in a namespace."""
    client = await ctx.target.connect()
    console = Console(stderr=True)
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[found]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, found="")

        def show_progress(report: GateReport, total: int) -> None:
            bad = sum(report.counts[verdict] for verdict in BREAKS)
            broken = f"{bad} would break" if bad else ""
            bar.update(task, completed=report.checked, total=max(total + sample, report.checked), found=broken)

        report = await gate(client, agents=agents, sample=sample, processes=processes, progress=show_progress)
    if ctx.out.json:
        ctx.out.record(report.to_json())
    else:
        _write_report(ctx.out, report)
    return Exit.OK if report.passes else Exit.FAILED


def _write_report(out: Output, report: GateReport) -> None:
    for problem in report.problems:
        out.line(terminal.safe(problem), style="red")
    if report.problems:
        out.line("The agents cannot be loaded; nothing was replayed.", style="bold red")
        return
    for verdict in _OUTCOMES:
        found = [each for each in report.findings if each.verdict == verdict]
        if not found:
            continue
        out.line(f"{report.counts[verdict]} {_OUTCOMES[verdict]}", style="bold red" if verdict in BREAKS else "yellow")
        columns = Column("workflow", overflow="fold", ratio=1), Column("what", overflow="fold", ratio=3)
        table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        for each in found:
            table.add_row(terminal.safe(each.id), terminal.safe(each.problem))
        out.table(table)
        if len(found) < report.counts[verdict]:
            out.line(f"… and {report.counts[verdict] - len(found)} more", style="dim")
    closed = f", {report.sampled} of them closed" if report.sampled else ""
    result = ("passes", "bold green") if report.passes else ("would break", "bold red")
    counts = [f"{report.counts[verdict]} {text}" for verdict, text in _OUTCOMES.items() if report.counts[verdict]]
    about = f"  {report.checked} looked at{closed}: {', '.join(counts) or 'nothing is open'}"
    out.line(Text.assemble(result, about))
    if not report.tools_checked:
        out.line("Tools were not looked at; --agents DIR names the agents to be deployed.", style="dim")
