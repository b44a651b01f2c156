"""`waystation audit`: what was asked, answered and done, in a file that shows whether it was altered."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from waystation.audit import (
    Fault,
    Gathered,
    KeyRefused,
    compare,
    of_files,
    of_invocation,
    read,
    same_start,
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

audit = command_group("Write down what people were asked and answered, and see whether that was altered.")

Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="A JWK: `oct` (HMAC) or `OKP` with Ed25519.")]


@audit.command(cls=AsyncCommand)
async def export(
    ctx: CommandContext,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="ID|FILE...", help="An invocation, a session's workflow id, or histories."),
    ],
    output: OutputFile = None,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Leave out arguments and responses; their digests stay.")
    ] = False,
    key: Key = None,
) -> Exit:
    """Write the audit of an invocation or a session, and of all agents called there, as JSON lines chained by hashes.

    It is derived from history alone, and the same whenever it is written. No worker has to run.
    """
    try:
        sign = signer(key) if key else None
    except KeyRefused as error:
        raise Problem(Exit.USAGE, str(error)) from None
    gathered = await _gather(ctx.target, sources, arguments=not no_arguments)
    lines = gathered.sheet(sign)
    text = written(lines)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        output.write_bytes(text.encode())
        signed = ", signed" if sign else ""
        ctx.out.line(f"{output}: {len(lines)} lines, {_open(gathered.closed)}{signed}; head {lines[-1]['hash']}")
    if gathered.lacking:
        ctx.out.remark(f"The histories of called agents are not there: {', '.join(gathered.lacking)}.")
    return Exit.OK


@audit.command(cls=AsyncCommand)
async def verify(
    ctx: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `waystation audit export` writes it.")],
    against: Annotated[
        str | None, typer.Option(metavar="ID|FILE", help="Compare it with this invocation's history, too.")
    ] = None,
    key: Key = None,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="The hash of the last line, as `export` said it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object, and nothing else.")] = False,
) -> Exit:
    """Say whether an audit is as it was written: exit code 0, or 1 and the first line that shows that it is not."""
    out = ctx.out
    with file_problems(file):
        data = file.read_bytes()
    newer = 0
    try:
        sheet = read(data)
        last = sheet.signature or sheet.end
        if head is not None and head != last["hash"]:
            raise Fault(int(last["n"]) + 1, f"the hash of the last line is {last['hash']}, not the one given")
        if key:
            verify_signature(sheet, key)
        if against is not None:
            live = await _gather(ctx.target, [against], arguments=bool(sheet.about.get("arguments")))
            same_start(sheet, next(iter(live.accounts)))
            newer = compare(sheet, live)
    except KeyRefused as error:
        raise Problem(Exit.USAGE, str(error)) from None
    except Fault as fault:
        if json:
            out.record({"whole": False, "line": fault.line, "problem": fault.problem})
            return Exit.FAILED
        raise Problem(Exit.FAILED, f"{file}, line {fault.line}: {fault.problem}.") from None
    closed, count = bool(sheet.end.get("closed")), int(last["n"]) + 1
    record = {"whole": True, "lines": count, "invocations": sheet.invocations, "closed": closed, "head": last["hash"]}
    record |= {"signed": sheet.signature is not None, "signature_verified": bool(key)}
    record |= {"newer": newer} if against is not None else {}
    signature = ", signature verified" if key else ", signature not looked at (--key)" if sheet.signature else ""
    text = f"{file}: whole, {count} lines, {_open(closed)}{signature}; head {last['hash']}"
    if against is not None:
        text += f"\nThe history says the same{f', and has {newer} newer entries' if newer else ''}."
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
            raise Problem(Exit.USAGE, "Name one invocation, or files alone.")
        return await of_invocation(await target.connect(whole=True), sources[0], arguments=arguments)


def _open(closed: bool) -> str:
    return "closed" if closed else "still open"
