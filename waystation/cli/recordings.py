"""The commands `waystation events`, `state`, `prompt`, `diff`, `report`, `history` and `replay`.

They show or replay recordings, which are histories of invocations, read from a server or from a file.
"""

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
    CommandProblem,
    Exit,
    OutputFile,
    ServerTarget,
    SessionSource,
    Source,
    to_problem,
    translate_file_errors,
)
from waystation.cli.invocations import print_events
from waystation.cli.output import Output, write_error
from waystation.cli.shell_completion import complete_id
from waystation.core.contract import SESSION_WORKFLOW, WORKFLOW
from waystation.core.errors import DeletedHistory, ForeignHistory, KeyMissing, WaystationError
from waystation.core.payload import JsonObject
from waystation.history import format_saved_history, read_history_file
from waystation.presentation import terminal, words
from waystation.presentation.tables import make_table
from waystation.replay import (
    Divergence,
    GateReport,
    Prompt,
    Recording,
    difference,
    divergence_of,
    gate,
    prompt_at,
    redaction,
)
from waystation.replay import report as create_report
from waystation.replay.comparison import CONTEXT
from waystation.replay.deployment_gate import BREAKS, Verdict
from waystation.replay.divergence import format_value
from waystation.storage import Blobs, offloading

_OUTCOMES: dict[Verdict, str] = {
    "replays": "replay",
    "differs": "differ",
    "misfit": "do not match the agents",
    "unchecked": "could not be replayed",
    "lacking": "need large values that are not in the store",
    "vanished": "were deleted during the check",
}


async def events(
    ctx: CommandContext,
    source: Source,
    at: At = None,
    diff: Between = None,
    called: Called = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the invocation ends.")] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Follow, and show text as the model generates it if `run --stream` started the invocation."
        ),
    ] = False,
    json: AsJson = False,
) -> Exit:
    """Print the numbered events of an invocation. This does not require a running worker."""
    try:
        return await _print_events(ctx, source, at, diff, called, follow=follow, stream=stream)
    except DeletedHistory as deleted:
        for event in deleted.events:
            time = terminal.format_time(event["time"])
            ctx.out.result(event, f"{event['event_id']:>5}  {time}  {event['kind']} {event['name']} [deleted]")
        ctx.out.remark(str(deleted))
        return Exit.OK


async def _print_events(
    ctx: CommandContext,
    source: str,
    at: int | None,
    diff: tuple[int, int] | None,
    called: str | None,
    *,
    follow: bool,
    stream: bool,
) -> Exit:
    out, json = ctx.out, ctx.out.json
    if not is_past(source, at, diff, called):
        client = await ctx.connect()
        try:
            return await print_events(ctx, client, client.invocation(source), follow=follow or stream, partial=stream)
        except KeyMissing:
            await read_source(ctx, source)  # raises DeletedHistory if the key was deleted
            raise
    if follow or stream:
        raise typer.BadParameter("only a running invocation can be followed", param_hint="--follow")
    recording = await _read_moments(ctx, source, called)
    moment = recording.moment(diff[1] if diff else at)
    between = difference(recording.moment(diff[0]), moment) if diff else None
    shown = moment.events if between is None else between.events
    for event in shown if json else words.credit_answers(shown, recording.log.state):
        out.record(event.to_json()) if json else out.event(event, numbered=True)
    if not json:
        if moment.pending or between is not None:
            out.line()
        for wait in moment.waits:
            out.show(wait)
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
    """Print the state of an invocation. This does not require a running worker."""
    if not is_past(source, at, diff, called):
        values = await (await ctx.connect()).invocation(source).state()
        ctx.out.result(values, terminal.format_state(values))
        return Exit.OK
    recording = await _read_moments(ctx, source, called)
    if diff is None:
        values = recording.moment(at).state
        ctx.out.result(values, terminal.format_state(values))
        return Exit.OK
    changes = difference(*map(recording.moment, diff))
    record = {"from": changes.before.number, "to": changes.after.number, **changes.state.to_json()}
    ctx.out.record(record) if json else ctx.out.show(changes)
    return Exit.OK


async def prompt(
    ctx: CommandContext,
    source: Source,
    at: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Print the prompt at event N. Default: the last prompt."),
    ] = None,
    diff: Between = None,
    called: Called = None,
    agents: Agents = None,
    callbacks: Callbacks = False,
    session: SessionSource = None,
    json: AsJson = False,
) -> Exit:
    """Print the prompt that event N was the model's reply to, or the next prompt if event N is not a model's reply.

    Without --agents, only the contents are printed. Instruction, tools and settings are part of the agent's code and
    are not recorded in histories.
    """
    recording = await _read_moments(ctx, source, called)
    prompts = await read_prompts(ctx, recording, diff or (at,), agents=agents, callbacks=callbacks, session=session)
    if diff is None:
        ctx.out.record(asdict(prompts[0])) if json else ctx.out.show(prompts[0])
        return Exit.OK
    changes = difference(*prompts)
    record = {
        "from": changes.before.at,
        "to": changes.after.at,
        "contents": [{"sign": sign, "content": content} for sign, content in changes.contents],
        "instruction": list(changes.instruction),
        "tools": changes.tools.to_json(),
        "config": changes.config.to_json(),
    }
    ctx.out.record(record) if json else ctx.out.show(changes)
    return Exit.OK


async def diff(
    ctx: CommandContext,
    left: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Invocation ID, or a file with the invocation's history.", autocompletion=complete_id
        ),
    ],
    right: Annotated[
        str,
        typer.Argument(metavar="B", help="ID or history file of the other invocation.", autocompletion=complete_id),
    ],
    every: Annotated[bool, typer.Option("--all", help="Show all events, including the equal ones.")] = False,
    json: AsJson = False,
) -> Exit:
    """Print the events of two invocations side by side, and where they first differ.

    IDs and times are not compared. The exit code is 0 if the invocations are equal, and 1 if they differ.
    """
    comparison = difference(await read_invocation(ctx, left), await read_invocation(ctx, right))
    if json:
        first = comparison.first
        ctx.out.record(
            {
                "left": comparison.left.source,
                "right": comparison.right.source,
                "first": {"left": first.left, "right": first.right} if first else None,
                "state": comparison.state.to_json(),
                "pairs": [{"left": pair.left, "right": pair.right, "same": pair.same} for pair in comparison.pairs],
            }
        )
    else:
        ctx.out.show(comparison.side_by_side(None if every else CONTEXT))
    return Exit.FAILED if comparison else Exit.OK


async def print_past_waits(ctx: CommandContext, source: str, at: int | None, called: str | None) -> Exit:
    """Write the calls that were pending at a past moment, for `waystation pending --at`."""
    moment = (await read_recording(ctx, source, called)).moment(at)
    if ctx.out.json:
        for call in moment.pending:
            ctx.out.record(call.model_dump(mode="json"))
        return Exit.OK
    ctx.out.line(moment.position)
    for wait in moment.waits:
        ctx.out.show(wait)
    if not moment.pending:
        ctx.out.line("No calls were waiting for a person.")
    return Exit.OK


def is_past(source: str, *options: object) -> bool:
    """Return whether a command is about a file or, because one of its `options` is set, about a past moment."""
    return any(option is not None for option in options) or is_file(source)


async def _read_moments(ctx: CommandContext, source: str, called: str | None) -> Recording:
    if ctx.params["at"] is not None and ctx.params["diff"] is not None:
        raise typer.BadParameter("use only one of these options", param_hint="--at, --diff")
    return await read_recording(ctx, source, called)


async def report(
    ctx: CommandContext,
    source: Source,
    output: OutputFile = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object instead of an HTML page.")] = False,
) -> Exit:
    """Write a report about an invocation and the agents that it called, as a single self-contained HTML page.

    The report contains the timeline, prompts, events, state changes, approvals, costs, errors and retries. If you pass
    a history file, no server is needed.
    """
    if output is None and not json and sys.stdout.isatty():
        raise CommandProblem(
            Exit.USAGE, "Cannot show an HTML page in a terminal. Name an output file with -o, or use --json."
        )
    recording = await read_source(ctx, source)
    # A history file covers the time until it was written, so the report of an open invocation ends there.
    now = await asyncio.to_thread(os.path.getmtime, source) if is_file(source) else None
    try:
        page = create_report(recording, now=now)
        text = terminal.format_json(page.to_json()) + "\n" if json else page.html()
    except ForeignHistory as error:
        raise CommandProblem(Exit.USAGE if is_file(source) else Exit.UNKNOWN, str(error)) from None
    except ModuleNotFoundError as error:
        raise CommandProblem(
            Exit.USAGE,
            f"`waystation report` needs the package {error.name!r}, except with --json. Install it with: "
            "pip install 'waystation[report]'",
        ) from None
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return Exit.OK
    with translate_file_errors(output, "written"):
        output.write_text(text, encoding="utf-8")
    if not json:
        ctx.out.line(f"{output}: {len(text.encode()):,} bytes")
    return Exit.OK


@contextmanager
def translate_source_errors(target: ServerTarget, source: str) -> Iterator[None]:
    """Translate errors from reading a source into problems that name the source. A bad file is a usage error.

    DeletedHistory is not translated, because some commands handle it.
    """
    try:
        with translate_file_errors(source):
            yield
    except DeletedHistory:
        raise
    except ForeignHistory as error:
        raise CommandProblem(
            Exit.USAGE if is_file(source) else Exit.UNKNOWN,
            str(error) if source in str(error) else f"{source}: {error}",
        ) from None
    except RPCError as error:  # translated here because only this code knows which of several sources is missing
        raise to_problem(error, target.describe(), source) from None


async def read_source(ctx: CommandContext, source: str) -> Recording:
    """Return the recording of a source, which is an ID or a file.

    Raises:
        Problem: The source cannot be read, or is not the history of a Waystation workflow.
    """
    with translate_source_errors(ctx.target, source):
        if is_file(source):
            return await Recording.read(source, store=ctx.target.store)
        return await Recording.of((await ctx.connect()).invocation(source))


async def read_invocation(ctx: CommandContext, source: str, called: str | None = None) -> Recording:
    """Return the recording of an invocation, or of an agent that it called directly or indirectly.

    Args:
        ctx: Context of the command.
        source: An invocation ID or a history file.
        called: The call IDs that lead to the called agent, separated by slashes, such as `fc-1/fc-2`.

    Raises:
        Problem: The source is not an invocation, or no agent was called by such a call.
    """
    recording = await read_source(ctx, source)
    if recording.kind != WORKFLOW:
        raise CommandProblem(
            Exit.USAGE if is_file(source) else Exit.UNKNOWN,
            f"{source!r} is a history of {recording.kind!r}, not of an invocation. Pass an invocation, such as "
            f"{recording.id}/1 for the first one of a session.",
        )
    for call in called.split("/") if called else ():
        if call not in recording.called:
            raise CommandProblem(
                Exit.UNKNOWN,
                f"No agent was called by {call!r} in {recording.source!r}. Calls that called an agent: "
                f"{', '.join(recording.called) or 'none'}.",
            )
        recording = recording.called[call]
    return recording


async def read_recording(ctx: CommandContext, source: str, called: str | None) -> Recording:
    """Return the recording of a command's source. Report how many of its large values are missing, if any."""
    recording = await read_invocation(ctx, source, called)
    if missing := len(recording.lacking):
        ctx.out.remark(f"{missing} large values are shown in short form. Name the workers' store with --store.")
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
    """Return the prompts at the given events. The keyword parameters are options of `waystation prompt`."""
    history = await _read_session(ctx, recording, session)
    return [
        await prompt_at(recording, number, agents=agents, callbacks=callbacks, session=history, store=ctx.target.store)
        for number in numbers
    ]


async def _read_session(ctx: CommandContext, recording: Recording, source: str | None) -> Recording | None:
    """Return the recording of an invocation's session, read from `source` or, by default, from the server.

    By default, return None if the invocation was read from a file, or has no session that can be read.

    Raises:
        Problem: The `source` cannot be read, or is not the history of the invocation's session.
    """
    link = recording.log.state.input.session if recording.log.state.input else None
    if source is not None:
        session = await read_source(ctx, source)
        if session.kind != SESSION_WORKFLOW:
            raise CommandProblem(
                Exit.USAGE, f"--session {source!r} is a history of {session.kind!r}, not of a session."
            )
        if link is None or link.id != session.id:
            owner = f"belongs to {link.id!r}" if link else "does not belong to a session"
            raise CommandProblem(
                Exit.USAGE,
                f"--session {source!r} is a history of {session.id!r}, but {recording.source!r} {owner}.",
            )
        return session
    if link is None or is_file(recording.source):
        return None
    try:
        return await read_source(ctx, link.id)
    except (WaystationError, RPCError) as error:
        ctx.out.remark(f"The session {link.id!r} cannot be read: {error}")
        return None


def is_file(source: str) -> bool:
    """Return whether a source is the path of a file or folder, not an ID. Any name that ends in `.json` is a path."""
    path = Path(source)
    return source.endswith(".json") or path.is_file() or ("/" in source and path.is_dir())


def check_on_server(id: str) -> None:
    """Check that an argument is an invocation ID.

    Raises:
        BadParameter: The argument is the path of a file or folder.
    """
    if is_file(id):
        kind = "folder" if Path(id).is_dir() else "file"
        raise typer.BadParameter(f"{id!r} is a {kind}; pass the ID of an invocation on a server", param_hint="ID")


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A recording and the outcome of replaying it."""

    recording: Recording
    divergence: Divergence | None = None
    missing: str | None = None
    """Why the recording was not replayed, which happens if large values are missing. None if it was replayed."""

    @property
    def problem(self) -> str | None:
        """Why the recording was not replayed or does not replay, or None if it replays."""
        return self.missing or (str(self.divergence) if self.divergence else None)

    @property
    def length(self) -> int:
        """The number of history events in all runs."""
        return sum(len(history.events) for history in self.recording.histories)

    def to_json(self) -> JsonObject:
        """Return the result as the record that `--json` prints."""
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
        typer.Option(
            metavar="RULE",
            help="What to redact: `secrets`, `text`, or `field:NAME`, such as field:email. Can be repeated.",
        ),
    ] = None,
) -> Exit:
    """Print the history of an invocation, including all of its runs, as JSON.

    You can save the output to a file and pass the file to `replay`. For an invocation with a single run, the output
    equals that of `temporal workflow show -o json`. Redaction keeps events, IDs, numbers and lengths, so a redacted
    history still replays.
    """
    with translate_source_errors(ctx.target, source):
        if is_file(source):
            saved = await asyncio.to_thread(read_history_file, Path(source))
            converter = offloading(Blobs(ctx.target.store), short_forms=True)
        else:
            client = await ctx.connect()
            saved = await client.invocation(source).saved()
            converter = offloading(client.blobs, short_forms=True, converter=client.temporal.data_converter)
        try:
            saved = await redaction.redact(saved, redact, converter=converter) if redact else saved
        except redaction.InvalidRule as error:
            raise CommandProblem(Exit.USAGE, str(error)) from None
    ctx.out.record(format_saved_history(saved))
    return Exit.OK


async def replay(
    ctx: CommandContext,
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID|FILE...", help="Invocation IDs, or files with the histories of invocations."),
    ] = None,
    open: Annotated[
        bool, typer.Option("--open", help="Replay all open workflows in the namespace, to check a deployment.")
    ] = False,
    agents: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="With --open: folder with the agents to deploy. Checks that they still have the tools of open calls.",
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --open: also replay the N most recently closed workflows.")
    ] = 0,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With --open: number of processes to use. Default: one per core."),
    ] = None,
    json: AsJson = False,
) -> Exit:
    """Replay histories against the current code, and print the state at each event.

    You can save history files with `waystation history` or `temporal workflow show -o json`, or download them from the
    Temporal Web UI. Replaying files does not require a server. Exit code 1 means that a history does not replay.
    Sources that cannot be read are reported and skipped, and the exit code is then that of the first such error.

    With --open, exit code 1 means that this build could not continue at least one open workflow.
    """
    if open == bool(sources):
        raise typer.BadParameter("pass either invocations or files, or --open", param_hint="ID|FILE...")
    if not open and (agents or sample or processes):
        raise typer.BadParameter("--agents, --sample and --processes require --open", param_hint="--open")
    if open:
        return await _replay_open(ctx, agents or [], sample, processes)
    failed, unread = False, Exit.OK
    for source in sources or ():
        try:
            recording = await read_source(ctx, source)
        except CommandProblem as problem:
            write_error(str(problem))
            unread = unread or problem.exit
            continue
        except DeletedHistory as deleted:  # the commands of a workflow cannot be compared without its content
            about = f"  {terminal.escape(source)}, {len(deleted.events)} history events"
            text = Text.assemble(("[deleted]", "bold"), about)
            ctx.out.result({"id": source, "deleted": True, "problem": None}, text)
            continue
        for part in (recording, *recording.below()):
            result = await replay_runs(part)
            failed = failed or result.problem is not None
            ctx.out.record(result.to_json()) if json else _write(ctx.out, result)
    return unread or (Exit.FAILED if failed else Exit.OK)


async def replay_runs(recording: Recording) -> ReplayResult:
    """Replay all runs of a workflow, without called agents. If large values are missing, replay nothing."""
    if missing := recording.lacking:
        return ReplayResult(
            recording,
            missing=f"{len(missing)} large values are missing. Name the workers' store with --store. "
            f"{next(iter(missing.values()))}",
        )
    return ReplayResult(recording, await divergence_of(dataclasses.replace(recording, called={})))


def _write(out: Output, result: ReplayResult) -> None:
    recording = result.recording
    runs = f" in {len(recording.histories)} runs" if len(recording.histories) > 1 else ""
    about = f"  {terminal.escape(recording.source)}, {result.length} history events{runs}"
    failure = "not replayed" if result.missing else "differs"
    out.line(Text.assemble((failure, "bold red") if result.problem else ("replays", "bold green"), about))
    if result.divergence:
        out.line(format_divergence(result.divergence))
    elif result.problem:
        out.line(terminal.escape(result.problem), style="red")
    if recording.events:
        out.table(create_state_table(recording))


def format_divergence(divergence: Divergence) -> Text:
    """Describe in a few lines where the code and the history diverge."""
    place = [f"after event {divergence.event}"] if divergence.event is not None else []
    place += [f"run {divergence.run} of {divergence.runs}"] if divergence.runs > 1 else []
    text = Text.assemble(
        *("  recorded  ", (terminal.escape(divergence.recorded), "green")),
        f"   after {divergence.after}" if divergence.after else "",
        *("\n  now       ", (terminal.escape(divergence.now), "red")),
        f"\n  where     {', '.join([*place, f'history event {divergence.history_event}'])}",
        f"\n  code      {divergence.line}" if divergence.line else "",
    )
    for part in divergence.parts:
        recorded, now = (terminal.escape(format_value(value, part.name)) for value in (part.recorded, part.now))
        text.append_text(
            Text.assemble(f"\n  differs   {terminal.escape(part.name)}: ", (recorded, "green"), " → ", (now, "red"))
        )
    return text


def create_state_table(recording: Recording) -> Table:
    """Return a table of all events, each with the state after it."""
    columns = Column("#", justify="right", style="dim"), Column("event", ratio=3), Column("state after it", ratio=2)
    before, rows = None, list[tuple[str | Text, ...]]()
    for moment in recording.moments():
        lines = terminal.format_event(moment.event) if moment.event else ()
        event = Text("\n").join(line.styled() for line in lines if line.kind != "state")
        style = "dim" if moment.state == before else "magenta"
        rows.append((str(moment.number), event, Text(terminal.clip_json(moment.state), style=style)))
        before = moment.state
    return make_table(columns, rows)


async def _replay_open(ctx: CommandContext, agents: list[Path], sample: int, processes: int | None) -> Exit:
    """Check that this build can continue all open workflows in the namespace and replays a sample of closed ones."""
    client = await ctx.target.connect()
    console = Console(stderr=True)
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[broken]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, broken="")

        def show_progress(report: GateReport, total: int) -> None:
            count = sum(report.counts[verdict] for verdict in BREAKS)
            bar.update(
                task,
                completed=report.checked,
                total=max(total + sample, report.checked),
                broken=f"{count} would break" if count else "",
            )

        report = await gate(client, agents=agents, sample=sample, processes=processes, progress=show_progress)
    ctx.out.record(report.to_json()) if ctx.out.json else _write_report(ctx.out, report)
    return Exit.OK if report.passes else Exit.FAILED


def _write_report(out: Output, report: GateReport) -> None:
    for problem in report.problems:
        out.line(terminal.escape(problem), style="red")
    if report.problems:
        out.line("The agents could not be loaded, so nothing was replayed.", style="bold red")
        return
    for verdict in _OUTCOMES:
        findings = [finding for finding in report.findings if finding.verdict == verdict]
        if not findings:
            continue
        out.line(f"{report.counts[verdict]} {_OUTCOMES[verdict]}", style="bold red" if verdict in BREAKS else "yellow")
        columns = Column("workflow", overflow="fold", ratio=1), Column("problem", overflow="fold", ratio=3)
        out.table(make_table(columns, ((finding.id, finding.problem) for finding in findings)))
        if len(findings) < report.counts[verdict]:
            out.line(f"… and {report.counts[verdict] - len(findings)} more", style="dim")
    closed = f", {report.sampled} of them closed" if report.sampled else ""
    counts = [f"{report.counts[verdict]} {text}" for verdict, text in _OUTCOMES.items() if report.counts[verdict]]
    out.line(
        Text.assemble(
            ("passes", "bold green") if report.passes else ("would break", "bold red"),
            f"  {report.checked} checked{closed}: {', '.join(counts) or 'nothing is open'}",
        )
    )
    if not report.tools_checked:
        out.line("Tools were not checked. To check them, pass the agents to deploy with --agents DIR.", style="dim")
