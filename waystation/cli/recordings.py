"""Recordings from a server or a file; `waystation events`, `state`, `prompt`, `diff` and `report` show them."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from temporalio.service import RPCError

from waystation.cli.command_context import (
    Agents,
    AsJson,
    At,
    Between,
    Callbacks,
    Called,
    CommandContext,
    OutputFile,
    SessionSource,
    Source,
)
from waystation.cli.exit_codes import Exit, Problem, file_problems, problem_of
from waystation.cli.invocations import print_events
from waystation.cli.output import Output
from waystation.cli.target import Target
from waystation.core import SESSION_WORKFLOW, WORKFLOW, ForeignHistory, WaystationError
from waystation.presentation import recording_views, terminal
from waystation.presentation import report as invocation_report
from waystation.replay.comparison import difference
from waystation.replay.prompt import Prompt
from waystation.replay.prompt_lookup import prompt_at
from waystation.replay.recording import Moment, Recording


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
        raise problem_of(error, target.where(), source) from None


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
