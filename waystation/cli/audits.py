"""The `waystation audit` command: export an invocation's audit as a tamper-evident file, or verify such a file."""

import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from waystation.approvers.audit import (
    Accounts,
    Fault,
    ReviewHabit,
    ReviewHabits,
    check_subject,
    compare,
    create_account,
    format_sheet,
    gather_files,
    gather_invocation,
    load_signer,
    read_sheet,
    verify_signature,
)
from waystation.approvers.audit.review_habits import HASTY_S
from waystation.cli.command_context import (
    AsJson,
    CommandContext,
    CommandProblem,
    Exit,
    OutputFile,
    ServerTarget,
    translate_file_errors,
)
from waystation.cli.command_execution import AsyncCommand, create_command_group
from waystation.cli.history_sources import HistorySources, OnlyAgent, ReadLimit, Since, Until, read_logs
from waystation.cli.recordings import is_file, translate_source_errors
from waystation.presentation import terminal
from waystation.presentation.text_safety import format_duration
from waystation.replay.history_logs import UnreadableHistory
from waystation.storage import Blobs, offloading

audit = create_command_group(
    "Export the audit of an invocation (its requests, its answers and the calls that ran), or verify an exported file."
)

Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Signature key as a JWK: `oct` (HMAC) or `OKP` with Ed25519."),
]


@audit.command(cls=AsyncCommand)
async def export(
    ctx: CommandContext,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="ID|FILE...", help="Invocation ID, workflow ID of a session, or history files."),
    ],
    output: OutputFile = None,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Write digests of arguments and responses instead of their content.")
    ] = False,
    key: Key = None,
) -> Exit:
    """Export the audit of an invocation or a session, including all called agents, as hash-chained JSON lines.

    The audit is built from histories only, so repeated exports are identical. The command does not require a running
    worker.
    """
    sign = load_signer(key) if key else None
    accounts = await _gather(ctx.target, sources, arguments=not no_arguments)
    lines = accounts.sheet(sign)
    if output is None:
        sys.stdout.write(format_sheet(lines))
        sys.stdout.flush()
    else:
        output.write_bytes(format_sheet(lines).encode())
        status = _format_status(accounts.closed) + (", signed" if sign else "")
        ctx.out.line(f"{output}: {len(lines)} lines, {status}; head {lines[-1]['hash']}")
    if accounts.missing:
        ctx.out.remark(f"The histories of these called agents are missing: {', '.join(accounts.missing)}.")
    return Exit.OK


@audit.command(cls=AsyncCommand)
async def verify(
    ctx: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File from `waystation audit export`.")],
    against: Annotated[
        str | None, typer.Option(metavar="ID|FILE", help="Also compare the audit with this invocation or history file.")
    ] = None,
    key: Key = None,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="Expected hash of the last line, as printed by `export`.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a single JSON object and nothing else.")] = False,
) -> Exit:
    """Check that an audit file is unaltered. Otherwise print the first altered line and exit with code 1."""
    out = ctx.out
    with translate_file_errors(file):
        data = file.read_bytes()
    newer = 0
    try:
        sheet = read_sheet(data)
        last = sheet.signature or sheet.end
        if head is not None and head != last["hash"]:
            raise Fault(int(last["n"]) + 1, f"the hash of the last line is {last['hash']}, not {head}")
        if key:
            verify_signature(sheet, key)
        if against is not None:
            live = await _gather(ctx.target, [against], arguments=bool(sheet.about.get("arguments")))
            check_subject(sheet, next(iter(live.by_invocation)))
            newer = compare(sheet, live)
    except Fault as fault:
        if json:
            out.record({"whole": False, "line": fault.line, "problem": fault.problem})
            return Exit.FAILED
        raise CommandProblem(Exit.FAILED, f"{file}, line {fault.line}: {fault.problem}.") from None
    closed, count = bool(sheet.end.get("closed")), int(last["n"]) + 1
    record = {"whole": True, "lines": count, "invocations": sheet.invocations, "closed": closed, "head": last["hash"]}
    record |= {"signed": sheet.signature is not None, "signature_verified": bool(key)}
    signature = ", signature verified" if key else ", signature not verified (--key)" if sheet.signature else ""
    text = f"{file}: unaltered, {count} lines, {_format_status(closed)}{signature}; head {last['hash']}"
    if against is not None:
        record["newer"] = newer
        text += f"\nIt matches the history{f', which has {newer} newer entries' if newer else ''}."
    out.result(record, text)
    return Exit.OK


@audit.command(cls=AsyncCommand)
async def approvers(
    ctx: CommandContext,
    sources: HistorySources = None,
    agent: OnlyAgent = None,
    since: Since = None,
    until: Until = None,
    limit: ReadLimit = None,
    json: AsJson = False,
) -> Exit:
    """Show how people review calls: their approvals, how fast they answer, and whether their comments repeat.

    Everybody who can read the histories can run this, and no page of `waystation web` shows it.
    """
    habits = ReviewHabits()
    async with aclosing(await read_logs(ctx, sources, agent=agent, since=since, until=until, limit=limit)) as logs:
        async for log in logs:
            if isinstance(log, UnreadableHistory):
                ctx.out.remark(f"{log.source}: {log.problem}")
            else:
                habits.add(create_account(log, arguments=False))
    for habit in habits.list():
        ctx.out.result(habit.to_json(), terminal.escape(_format_habit(habit)))
    return Exit.OK


def _format_habit(habit: ReviewHabit) -> str:
    values = habit.to_json()
    name = habit.approver if habit.is_verified else f"{habit.approver} (not verified)"
    parts = [
        f"{habit.approvals:,} of {habit.answers:,} approved",
        f"median wait {format_duration(values['median_wait_s'])}",
        f"{habit.hasty:,} within {HASTY_S:g} s of opening" if habit.hasty else "",
        f"{habit.unopened:,} not opened on a page" if habit.unopened else "",
        f"{values['repeated']:,} times the comment {values['most_frequent_comment']!r}"
        if values["repeated"] > 1
        else "",
    ]
    return f"{name}, `{habit.tool}`: {'; '.join(filter(None, parts))}"


async def _gather(target: ServerTarget, sources: Sequence[str], *, arguments: bool) -> Accounts:
    with translate_source_errors(target, sources[0]):
        if all(map(is_file, sources)):
            blobs = Blobs(target.store)
            return await gather_files(
                [Path(source) for source in sources], offloading(blobs), blobs.get, arguments=arguments
            )
        if len(sources) > 1:
            raise CommandProblem(Exit.USAGE, "Name either one invocation or one or more history files, but not both.")
        return await gather_invocation(await target.connect(whole=True), sources[0], arguments=arguments)


def _format_status(closed: bool) -> str:
    return "closed" if closed else "still open"
