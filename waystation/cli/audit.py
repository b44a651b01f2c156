"""`waystation audit`: what was asked, answered and done, in a file that shows whether it was altered."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.command import run_offline_command

if TYPE_CHECKING:
    from waystation.audit import Gathered
    from waystation.cli.output import Output
    from waystation.cli.target import Target

audit_commands = typer.Typer(
    name="audit",
    help="Write down what people were asked and answered, and see whether that was altered.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="A JWK: `oct` (HMAC) or `OKP` with Ed25519.")]


@audit_commands.command()
def export(
    ctx: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="ID|FILE...", help="An invocation, a session's workflow id, or histories."),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there.")] = None,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Leave out arguments and responses; their digests stay.")
    ] = False,
    key: Key = None,
) -> None:
    """Write the audit of an invocation or a session, and of all agents called there, as JSON lines chained by hashes.

    It is derived from history alone, and the same whenever it is written. No worker has to run.
    """

    async def action(out: "Output", target: "Target") -> int:
        from waystation.audit import KeyRefused, signer, written
        from waystation.cli.exits import Exit, Problem

        try:
            sign = signer(key) if key else None
        except KeyRefused as error:
            raise Problem(Exit.USAGE, str(error)) from None
        gathered = await _gathered(target, sources, arguments=not no_arguments)
        lines = gathered.sheet(sign)
        text = written(lines)
        if output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            output.write_bytes(text.encode())
            signed = ", signed" if sign else ""
            out.line(f"{output}: {len(lines)} lines, {_open(gathered.closed)}{signed}; head {_head(lines[-1])}")
        if gathered.lacking:
            out.remark(f"The histories of called agents are not there: {', '.join(gathered.lacking)}.")
        return Exit.OK

    run_offline_command(ctx, action, json=False, invocation=next(iter(sources), None))


@audit_commands.command()
def verify(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `waystation audit export` writes it.")],
    against: Annotated[
        str | None, typer.Option(metavar="ID|FILE", help="Compare it with this invocation's history, too.")
    ] = None,
    key: Key = None,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="The hash of the last line, as `export` said it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object, and nothing else.")] = False,
) -> None:
    """Say whether an audit is as it was written: exit code 0, or 1 and the first line that shows that it is not."""

    async def action(out: "Output", target: "Target") -> int:
        from waystation.audit import Fault, KeyRefused, compare, read, same_start, verify_signature
        from waystation.cli.exits import Exit, Problem

        try:
            data = file.read_bytes()
        except OSError as error:
            raise Problem(Exit.USAGE, f"Cannot read {str(file)!r}: {error.strerror}.") from None
        newer = 0
        try:
            sheet = read(data)
            last = sheet.signature or sheet.end
            if head is not None and head != last["hash"]:
                raise Fault(int(last["n"]) + 1, f"the hash of the last line is {last['hash']}, not the one given")
            if key:
                verify_signature(sheet, key)
            if against is not None:
                live = await _gathered(target, [against], arguments=bool(sheet.about.get("arguments")))
                same_start(sheet, next(iter(live.accounts)))
                newer = compare(sheet, live)
        except KeyRefused as error:
            raise Problem(Exit.USAGE, str(error)) from None
        except Fault as fault:
            if json:
                out.record({"whole": False, "line": fault.line, "problem": fault.problem})
                return Exit.FAILED
            raise Problem(Exit.FAILED, f"{file}, line {fault.line}: {fault.problem}.") from None
        closed = bool(sheet.end.get("closed"))
        found = {"lines": int(last["n"]) + 1, "invocations": sheet.invocations, "closed": closed}
        if json:
            told = {"signed": sheet.signature is not None, "signature_verified": bool(key)}
            compared = {"newer": newer} if against is not None else {}
            out.record({"whole": True, **found, "head": last["hash"], **told, **compared})
            return Exit.OK
        signature = ", signature verified" if key else ", signature not looked at (--key)" if sheet.signature else ""
        out.line(f"{file}: whole, {found['lines']} lines, {_open(closed)}{signature}; head {_head(last)}")
        if against is not None:
            out.line(f"The history says the same{f', and has {newer} newer entries' if newer else ''}.")
        return Exit.OK

    run_offline_command(ctx, action, json=json, invocation=against)


async def _gathered(target: "Target", sources: Sequence[str], *, arguments: bool) -> "Gathered":
    from waystation.audit import of_files, of_invocation
    from waystation.cli.exits import Exit, Problem
    from waystation.cli.recordings import is_file
    from waystation.core.errors import ForeignHistory
    from waystation.storage import Blobs
    from waystation.storage.driver import offloading

    files = [is_file(source) for source in sources]
    try:
        if all(files):
            blobs = Blobs(target.store)
            paths = [Path(source) for source in sources]
            return await of_files(paths, offloading(blobs), blobs.get, arguments=arguments)
        if len(sources) > 1:
            raise Problem(Exit.USAGE, "Name one invocation, or files alone.")
        return await of_invocation(await target.connect(whole=True), sources[0], arguments=arguments)
    except ForeignHistory as error:
        raise Problem(Exit.USAGE if files[0] else Exit.UNKNOWN, str(error)) from None
    except OSError as error:
        raise Problem(Exit.USAGE, f"Cannot read {error.filename!r}: {error.strerror}.") from None


def _open(closed: bool) -> str:
    return "closed" if closed else "still open"


def _head(line: dict[str, object]) -> str:
    return str(line["hash"])
