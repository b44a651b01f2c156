"""Recordings from a server or a file; `waystation events`, `state`, `prompt`, `diff` and `report` show them."""

import asyncio
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text
from temporalio.service import RPCError

from waystation.cli.command_context import (
    Agents,
    AsJson,
    At,
    Between,
    Callbacks,
    Called,
    CommandContext,
    Exit,
    OutputFile,
    Problem,
    SessionSource,
    Source,
    Target,
    file_problems,
    to_problem,
)
from waystation.cli.invocations import print_events
from waystation.cli.output import Output, write_error
from waystation.core import SESSION_WORKFLOW, WORKFLOW, ForeignHistory, JsonObject, WaystationError
from waystation.history import format_saved_history, read_history_file
from waystation.presentation import recording_views, terminal
from waystation.presentation import report as invocation_report
from waystation.replay import redaction
from waystation.replay.comparison import difference
from waystation.replay.deployment_gate import BREAKS, GateReport, Verdict, gate
from waystation.replay.divergence import Divergence, format_value
from waystation.replay.prompt import Prompt
from waystation.replay.prompt_lookup import prompt_at
from waystation.replay.recording import Moment, Recording
from waystation.replay.redaction import InvalidRule
from waystation.replay.replayer import divergence_of
from waystation.storage import Blobs
from waystation.storage.driver import offloading


async def events(
    ctx: CommandContext,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the invocation ends.")] = False,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Follow, and show text while a model generates it; `run --stream` starts such."),
    ] = False,
    json: AsJson = False,
) -> Exit:
    """Print what happened in an invocation, each event with its number. No worker has to run."""
    out = ctx.out
    if not is_past(source, at, diff, called):
        client = await ctx.connect()
        return await print_events(ctx, client, client.invocation(source), follow=follow or stream, partial=stream)
    if follow or stream:
        raise typer.BadParameter("only what goes on can be followed", param_hint="--follow")
    recording = await _read_moments(ctx, source, called)
    moment = recording.moment(diff[1] if diff else at)
    between = difference(recording.moment(diff[0]), moment) if diff else None
    for event in moment.events if between is None else between.events:
        out.record(event.to_json()) if json else out.event(event, numbered=True)
    if not json:
        if moment.pending or between is not None:
            out.line()
        _write_waits(out, moment)
        if between is not None:
            out.show(between)
    return Exit.OK


async def state(
    ctx: CommandContext,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    json: AsJson = False,
) -> Exit:
    """Print the state of an invocation. No worker has to run."""
    if not is_past(source, at, diff, called):
        held = await (await ctx.connect()).invocation(source).state()
        ctx.out.result(held, terminal.state(held))
        return Exit.OK
    recording = await _read_moments(ctx, source, called)
    if diff is None:
        held = recording.moment(at).state
        ctx.out.result(held, terminal.state(held))
    else:
        changed = difference(*(recording.moment(number) for number in diff))
        record = {"from": changed.before.number, "to": changed.after.number, **changed.state.to_json()}
        ctx.out.record(record) if json else ctx.out.show(changed)
    return Exit.OK


async def prompt(
    ctx: CommandContext,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    agents: Agents = None,
    callbacks: Callbacks = False,
    session: SessionSource = None,
    json: AsJson = False,
) -> Exit:
    """Print what the model was shown: the prompt that gave event N, or, where no model replied, the next one after it.

    Without --agents only the contents: instruction, tools and settings are the agent's, and no history holds them.
    """
    recording = await _read_moments(ctx, source, called)
    found = await read_prompts(ctx, recording, diff or (at,), agents=agents, callbacks=callbacks, session=session)
    if diff is None:
        ctx.out.record(asdict(found[0])) if json else ctx.out.show(found[0])
        return Exit.OK
    changed = difference(*found)
    record = {
        "from": changed.before.at,
        "to": changed.after.at,
        "contents": [{"sign": sign, "content": content} for sign, content in changed.contents],
        "instruction": list(changed.instruction),
        "tools": changed.tools.to_json(),
        "config": changed.config.to_json(),
    }
    ctx.out.record(record) if json else ctx.out.show(changed)
    return Exit.OK


async def diff(
    ctx: CommandContext,
    left: Annotated[str, typer.Argument(metavar="A", help="An invocation, or its history as JSON.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    every: Annotated[bool, typer.Option("--all", help="Show everything that is the same, too.")] = False,
    json: AsJson = False,
) -> Exit:
    """Print the events of two invocations side by side, and where they first differ. Ids and times are no difference.

    The exit code is 0 when the same happened in both, else 1.
    """
    compared = difference(await read_invocation(ctx, left), await read_invocation(ctx, right))
    if json:
        first = compared.first
        ctx.out.record(
            {
                "left": compared.left.source,
                "right": compared.right.source,
                "first": {"left": first.left, "right": first.right} if first else None,
                "state": compared.state.to_json(),
                "pairs": [{"left": pair.left, "right": pair.right, "same": pair.same} for pair in compared.pairs],
            }
        )
    else:
        context = None if every else recording_views.CONTEXT
        ctx.out.show(recording_views.recording_difference(compared, context=context))
    return Exit.FAILED if compared else Exit.OK


async def print_past_waits(ctx: CommandContext, source: str, at: int | None, called: str | None) -> Exit:
    """Write what waited for a person at a moment; see `waystation pending --at`."""
    moment = (await read_recording(ctx, source, called)).moment(at)
    if ctx.out.json:
        for call in moment.pending:
            ctx.out.record(call.model_dump(mode="json"))
        return Exit.OK
    ctx.out.line(recording_views.where(moment))
    _write_waits(ctx.out, moment)
    if not moment.pending:
        ctx.out.line("Nothing waited for a person.")
    return Exit.OK


def is_past(source: str, *options: object) -> bool:
    """Whether a command is about a file or a moment, and not about an invocation as it is now."""
    return any(option is not None for option in options) or is_file(source)


async def _read_moments(ctx: CommandContext, source: str, called: str | None) -> Recording:
    if ctx.params["at"] is not None and ctx.params["diff"] is not None:
        raise typer.BadParameter("a moment or what changed between two, not both", param_hint="--at, --diff")
    return await read_recording(ctx, source, called)


def _write_waits(out: Output, moment: Moment) -> None:
    """Write what waited for a person at a moment."""
    for call in moment.pending:
        out.show(recording_views.wait(call, moment))


async def report(
    ctx: CommandContext,
    source: Source,
    output: OutputFile = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of a page.")] = False,
) -> Exit:
    """Write what an invocation did, what it cost and what people said on one page, which needs nothing beside it.

    It has the timeline, model calls with what they were shown, events, changes of state, approvals, errors and
    retries, and the same of called agents. Of a file no server is needed.
    """
    if output is None and not json and sys.stdout.isatty():
        raise Problem(Exit.USAGE, "A page is nothing for a terminal; say with -o FILE where it goes, or --json.")
    recording = await read_source(ctx, source)
    # What happened after a file was written is not known.
    now = await asyncio.to_thread(os.path.getmtime, source) if is_file(source) else None
    try:
        page = invocation_report.report(recording, now=now)
        text = terminal.safe_json(page.to_json()) + "\n" if json else page.html()
    except ForeignHistory as error:
        raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, str(error)) from None
    except ModuleNotFoundError as error:
        remedy = f"`waystation report` needs {error.name!r}; install it with: pip install 'waystation[report]'"
        raise Problem(Exit.USAGE, f"{remedy}. With --json nothing is needed.") from None
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return Exit.OK
    with file_problems(output, "written"):
        output.write_text(text, encoding="utf-8")
    if not json:
        ctx.out.line(f"{output}: {len(text.encode()):,} bytes")
    return Exit.OK


@contextmanager
def source_problems(target: Target, source: str) -> Iterator[None]:
    """Name the source in errors, and blame a file where it is one."""
    try:
        with file_problems(source):
            yield
    except ForeignHistory as error:
        text = str(error) if source in str(error) else f"{source}: {error}"
        raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, text) from None
    except RPCError as error:  # a command may read several, and only here it is known which is missing
        raise to_problem(error, target.describe(), source) from None


async def read_source(ctx: CommandContext, source: str) -> Recording:
    """Return the recording of a source.

    Raises:
        Problem: It is none of ours, or cannot be read.
    """
    with source_problems(ctx.target, source):
        if is_file(source):
            return await Recording.read(source, store=ctx.target.store)
        return await Recording.of((await ctx.connect()).invocation(source))


async def read_invocation(ctx: CommandContext, source: str, called: str | None = None) -> Recording:
    """Return an invocation, or one of an agent that it called; `called` may name several calls, `fc-1/fc-2`.

    Raises:
        Problem: There is no such recording.
    """
    recording = await read_source(ctx, source)
    if recording.kind != WORKFLOW:
        text = (
            f"{source!r} is a history of {recording.kind!r}; name an invocation, such as {recording.id}/1 of a session."
        )
        raise Problem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, text)
    for call in called.split("/") if called else ():
        if call not in recording.called:
            known = ", ".join(recording.called) or "none"
            text = f"{recording.source!r} has no agent that {call!r} called; such calls: {known}."
            raise Problem(Exit.UNKNOWN, text)
        recording = recording.called[call]
    return recording


async def read_recording(ctx: CommandContext, source: str, called: str | None) -> Recording:
    """Return the recording that a command is about, and say of how many values only a short form is there."""
    recording = await read_invocation(ctx, source, called)
    if missing := len(recording.lacking):
        ctx.out.remark(f"{missing} large values are shown in short form; --store says where workers keep them.")
    return recording


async def read_prompts(
    ctx: CommandContext,
    recording: Recording,
    numbers: Sequence[int | None],
    *,
    agents: Sequence[Path] | None,
    callbacks: bool,
    session: str | None,
) -> list[Prompt]:
    """Return the prompts at some events of a recording; see the options of `waystation prompt`."""
    history = await _session_of(ctx, recording, session)
    return [
        await prompt_at(recording, number, agents=agents, callbacks=callbacks, session=history, store=ctx.target.store)
        for number in numbers
    ]


async def _session_of(ctx: CommandContext, recording: Recording, named: str | None) -> Recording | None:
    """Return the recording of the session that an invocation belongs to; None where it cannot be read."""
    link = recording.log.state.input.session if recording.log.state.input else None
    if named is not None:
        session = await read_source(ctx, named)
        if session.kind != SESSION_WORKFLOW:
            raise Problem(Exit.USAGE, f"--session {named!r} is a history of {session.kind!r}; name the session's.")
        if link is None or link.id != session.id:
            belongs = f"belongs to {link.id!r}" if link else "belongs to no session"
            raise Problem(Exit.USAGE, f"--session {named!r} is of {session.id!r}; {recording.source!r} {belongs}.")
        return session
    if link is None or is_file(recording.source):
        return None
    try:
        return await read_source(ctx, link.id)
    except (WaystationError, RPCError) as error:
        ctx.out.remark(f"The session {link.id!r} cannot be read: {error}")
        return None


def is_file(source: str) -> bool:
    """Whether a source names a file, or a folder by its path, and no invocation."""
    path = Path(source)
    return source.endswith(".json") or path.is_file() or ("/" in source and path.is_dir())


def check_on_server(id: str) -> None:
    """Check that an argument names an invocation of a server.

    Raises:
        BadParameter: It names a file.
    """
    if is_file(id):
        kind = "folder" if Path(id).is_dir() else "file"
        raise typer.BadParameter(f"{id!r} is a {kind}; name an invocation of a server", param_hint="ID")


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
            write_error(str(problem))
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
