"""`waystation audit`: export the audit of an invocation as a tamper-evident file, and verify such a file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from waystation.audit import (
    Fault,
    Gathered,
    check_subject,
    compare,
    of_files,
    of_invocation,
    read,
    signer,
    verify_signature,
    written,
)
from waystation.cli.command_context import (
    AsyncCommand,
    CommandContext,
    Exit,
    OutputFile,
    Problem,
    Target,
    command_group,
    file_problems,
)
from waystation.cli.recordings import is_file, source_problems
from waystation.storage import Blobs
from waystation.storage.driver import offloading

audit = command_group("Export the record of requests, answers and their effects, and verify that it is unaltered.")

Key = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", help="Key that signs the audit, as a JWK: `oct` (HMAC) or `OKP` with Ed25519."
    ),
]


@audit.command(cls=AsyncCommand)
async def export(
    ctx: CommandContext,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="ID|FILE...", help="Id of an invocation, workflow id of a session, or history files."),
    ],
    output: OutputFile = None,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Omit arguments and responses, but keep their digests.")
    ] = False,
    key: Key = None,
) -> Exit:
    """Write the audit of an invocation or a session, with all called agents, as JSON lines in a chain of hashes.

    The audit comes from histories alone, so every export is the same. Needs no worker.
    """
    sign = signer(key) if key else None
    gathered = await _gather(ctx.target, sources, arguments=not no_arguments)
    lines = gathered.sheet(sign)
    if output is None:
        sys.stdout.write(written(lines))
        sys.stdout.flush()
    else:
        output.write_bytes(written(lines).encode())
        status = _status(gathered.closed) + (", signed" if sign else "")
        ctx.out.line(f"{output}: {len(lines)} lines, {status}; head {lines[-1]['hash']}")
    if gathered.lacking:
        ctx.out.remark(f"The histories of these called agents are missing: {', '.join(gathered.lacking)}.")
    return Exit.OK


@audit.command(cls=AsyncCommand)
async def verify(
    ctx: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File from `waystation audit export`.")],
    against: Annotated[
        str | None, typer.Option(metavar="ID|FILE", help="Also compare it with this invocation or history.")
    ] = None,
    key: Key = None,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="Expected hash of the last line, which `export` prints.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> Exit:
    """Check that an audit is unaltered. Exit code 0; or 1, with the first altered line."""
    out = ctx.out
    with file_problems(file):
        data = file.read_bytes()
    newer = 0
    try:
        sheet = read(data)
        last = sheet.signature or sheet.end
        if head is not None and head != last["hash"]:
            raise Fault(int(last["n"]) + 1, f"the hash of the last line is {last['hash']}, not {head}")
        if key:
            verify_signature(sheet, key)
        if against is not None:
            live = await _gather(ctx.target, [against], arguments=bool(sheet.about.get("arguments")))
            check_subject(sheet, next(iter(live.accounts)))
            newer = compare(sheet, live)
    except Fault as fault:
        if json:
            out.record({"whole": False, "line": fault.line, "problem": fault.problem})
            return Exit.FAILED
        raise Problem(Exit.FAILED, f"{file}, line {fault.line}: {fault.problem}.") from None
    closed, count = bool(sheet.end.get("closed")), int(last["n"]) + 1
    record = {"whole": True, "lines": count, "invocations": sheet.invocations, "closed": closed, "head": last["hash"]}
    record |= {"signed": sheet.signature is not None, "signature_verified": bool(key)}
    signature = ", signature verified" if key else ", signature not verified (--key)" if sheet.signature else ""
    text = f"{file}: unaltered, {count} lines, {_status(closed)}{signature}; head {last['hash']}"
    if against is not None:
        record["newer"] = newer
        text += f"\nIt matches the history{f', which has {newer} newer entries' if newer else ''}."
    out.result(record, text)
    return Exit.OK


async def _gather(target: Target, sources: Sequence[str], *, arguments: bool) -> Gathered:
    with source_problems(target, sources[0]):
        if all(map(is_file, sources)):
            blobs = Blobs(target.store)
            return await of_files(
                [Path(source) for source in sources], offloading(blobs), blobs.get, arguments=arguments
            )
        if len(sources) > 1:
            raise Problem(Exit.USAGE, "Name either one invocation or only files.")
        return await of_invocation(await target.connect(whole=True), sources[0], arguments=arguments)


def _status(closed: bool) -> str:
    return "closed" if closed else "still open"
