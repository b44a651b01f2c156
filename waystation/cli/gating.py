"""Say whether this build can go on with everything that is open in a namespace."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from waystation.cli.exits import Exit
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.presentation import terminal
from waystation.replay.gate import BREAKS, GateReport, Verdict, gate

_SAID: dict[Verdict, str] = {
    "replays": "replay",
    "differs": "differ",
    "misfit": "do not fit the agents",
    "unchecked": "could not be replayed",
    "lacking": "need large values that are not in the store",
    "vanished": "are gone meanwhile",
}


async def gated(target: Target, out: Output, *, agents: Sequence[Path], sample: int, processes: int | None) -> Exit:
    """Replay what is open, and write a report."""
    client = await target.connect()
    console = Console(stderr=True)
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[found]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        report = await gate(client, agents=agents, sample=sample, processes=processes, progress=_telling(bar, sample))
    if out.json:
        out.record(report.to_json())
    else:
        _write(out, report)
    return Exit.OK if report.passes else Exit.FAILED


def _telling(bar: Progress, sample: int) -> Callable[[GateReport, int], None]:
    task = bar.add_task("", total=None, found="")

    def tell(report: GateReport, total: int) -> None:
        bad = sum(report.counts[verdict] for verdict in BREAKS)
        found = f"{bad} would break" if bad else ""
        bar.update(task, completed=report.checked, total=max(total + sample, report.checked), found=found)

    return tell


def _write(out: Output, report: GateReport) -> None:
    for problem in report.problems:
        out.line(terminal.safe(problem), style="red")
    if report.problems:
        out.line("The agents cannot be loaded; nothing was replayed.", style="bold red")
        return
    for verdict in _SAID:
        found = [each for each in report.findings if each.verdict == verdict]
        if not found:
            continue
        out.line(f"{report.counts[verdict]} {_SAID[verdict]}", style="bold red" if verdict in BREAKS else "yellow")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        table.add_column("workflow", overflow="fold", ratio=1)
        table.add_column("what", overflow="fold", ratio=3)
        for each in found:
            table.add_row(terminal.safe(each.id), terminal.safe(each.problem))
        out.table(table)
        if len(found) < report.counts[verdict]:
            out.line(f"… and {report.counts[verdict] - len(found)} more", style="dim")
    closed = f", {report.sampled} of them closed" if report.sampled else ""
    out.line(Text.assemble(_verdict(report), f"  {report.checked} looked at{closed}: {_counts(report)}"))
    if not report.tools_checked:
        out.line("Tools were not looked at; --agents DIR names the agents to be deployed.", style="dim")


def _verdict(report: GateReport) -> Text:
    return Text("passes", style="bold green") if report.passes else Text("would break", style="bold red")


def _counts(report: GateReport) -> str:
    said = [f"{report.counts[verdict]} {text}" for verdict, text in _SAID.items() if report.counts[verdict]]
    return ", ".join(said) or "nothing is open"
