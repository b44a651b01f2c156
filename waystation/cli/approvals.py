"""`waystation pending`, the commands that answer what it lists, and `authorize`."""

import asyncio
import contextlib
import difflib
import getpass
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import (
    AsJson,
    At,
    By,
    Called,
    CommandContext,
    Exit,
    Problem,
    Target,
    file_problems,
    parse_json_object,
    parse_object,
    quote,
    to_problem,
    write_waits,
)
from waystation.cli.invocations import Watch
from waystation.cli.output import Output
from waystation.cli.terminal_input import NOTHING_SENT, Person, present
from waystation.client import AgentClient
from waystation.configuration import login_name
from waystation.core import Action, JsonObject, PendingCall, Stores, decode, ids, summary
from waystation.presentation import policy_terms, terminal

T = TypeVar("T")

NEEDED = {"edit": ("args", "--args"), "respond": ("response", "--response"), "progress": ("response", "--response")}
"""What some actions cannot do without, and its option."""
WITHOUT_COMMENT = ("claim", "release", "progress")
"""Actions for which no policy asks for a comment."""
MIN_CALL = 24
"""Columns for what is called; where there are fewer beside the ids, each call has lines of its own."""
MAX_LISTED = 50
"""So many calls are listed for a person to choose from or to agree to."""
WIDE = 110
"""From so many columns on there is room for who asks."""
CREDENTIALS = Stores().credentials
"""Where workers keep credentials by default."""
TOKEN = "WAYSTATION_TOKEN"  # the name of a variable
MAX_TOKEN_BYTES = 100_000

AnyId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Approval id, as `pending` lists it, or an invocation; asked for in a terminal."),
]
CallId = Annotated[
    str | None, typer.Argument(metavar="CALL", help="With an invocation: the call, such as fc-1, when several wait.")
]
Comment = Annotated[str | None, typer.Option(help="Comment for the agent.")]
Fields = Annotated[str | None, typer.Option(metavar="JSON", help="Further fields of the response, an object.")]
Response = Annotated[
    str | None, typer.Option(metavar="JSON", help="The response for the agent, an object. Asked for in a terminal.")
]
Args = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="All arguments with which the tool runs instead. Asked for in a terminal."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not wake the agent; it sees this update on its next turn.")]
Remember = Annotated[
    bool, typer.Option("--remember", help="Also approve later calls like this one, for as long as its policy says.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"Holds the token that proves who answers; it is sent encrypted. Default: the variable {TOKEN}.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Answer every pending call that matches the filters below.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: do not ask first.")]
ByAgent = Annotated[str | None, typer.Option("--agent", help="Only in invocations of this agent.")]
ByTool = Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")]
ByPerson = Annotated[
    str | None,
    typer.Option("--person", metavar="NAME[,ROLE...]", help="Only what this person may answer; roles as role:finance."),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="AGE", help="Only what has waited longer, such as 30m, 2h or 1d.")
]
Below = Annotated[
    str | None, typer.Option("--below", metavar="ID", help="Only in what this invocation or session has started.")
]
FILTERS = {"agent": ByAgent, "tool": ByTool, "person": ByPerson, "older_than": OlderThan, "below": Below}
ANSWERED: dict[Action, str] = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved",
    "respond": "answered",
    "progress": "reported the progress of",
    "claim": "claimed",
    "release": "released",
    "waive": "waived the approval of",
    "cancel": "cancelled",
}


async def pending(
    ctx: CommandContext,
    id: Annotated[str | None, typer.Argument(metavar="ID|FILE", help="An invocation; all of them if left out.")] = None,
    at: At = None,
    called: Called = None,
    agent: ByAgent = None,
    tool: ByTool = None,
    person: ByPerson = None,
    older_than: OlderThan = None,
    below: Below = None,
    json: AsJson = False,
) -> Exit:
    """Print what waits for a person. No worker has to run."""
    filters = [name for name in FILTERS if ctx.params[name] is not None]
    if id is None:
        for option, value in (("--at", at), ("--called", called)):
            if value is not None:
                raise typer.BadParameter("name the invocation, or the file, that it is about", param_hint=option)
    else:
        from waystation.cli.recordings import is_past, print_past_waits  # loads what replays histories

        if is_past(id, at, called):
            if filters:
                text = "narrows what waits now; of a moment, or a file, everything is shown"
                hint = ", ".join(f"--{name.replace('_', '-')}" for name in filters)
                raise typer.BadParameter(text, param_hint=hint)
            return await print_past_waits(ctx, id, at, called)
    out, target, client = ctx.out, ctx.target, await ctx.connect()
    if id is None:
        waiting = await _find_calls(ctx, client)
    elif filters:
        raise Problem(Exit.USAGE, "Name an invocation, or say which calls are meant by options; not both.")
    else:
        waiting = [*await client.invocation(id).pending(), *await client.approvals.pending(below=id)]
    if json:
        for call in waiting:
            out.record(call.model_dump(mode="json"))
    elif not waiting:
        where = terminal.safe(id) if id else target.describe()
        out.line(f"Nothing{' like that' if filters else ''} waits for a person in {where}.")
    elif id is not None:
        write_waits(out, target, waiting)
    else:
        write_list(out, target, waiting)
    if id is not None and not waiting:
        await Watch(client, out, id).look_for_retries()
    return Exit.OK


async def _find_calls(ctx: CommandContext, client: AgentClient) -> list[PendingCall]:
    """Return the pending calls that match the filters, oldest first."""
    filters: dict[str, Any] = {name: ctx.params[name] or None for name in FILTERS}
    if filters["person"]:
        filters["person"] = filters["person"].split(",")
    if filters["older_than"]:
        filters["older_than"] = parse_duration(filters["older_than"])
    return sorted([call async for call in client.approvals.each(**filters)], key=lambda call: call.requested_at)


def parse_duration(text: str) -> timedelta:
    """Parse a length of time such as `90s`, `30m`, `2h` or `1d`.

    Raises:
        Problem: It is none.
    """
    match = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if not match:
        raise Problem(Exit.USAGE, f"{text!r} is not a length of time; write such as 90s, 30m, 2h or 1d.")
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    return timedelta(**{units[match[2]]: int(match[1])})


def _answering(action: Action, text: str, **own: Any) -> Callable[..., Any]:
    """Return the command for an action; `own` are the options that only some actions have, with their types."""

    async def command(ctx: CommandContext, **options: Any) -> Exit:
        return await _answer(ctx, action, own, **options)

    options: dict[str, tuple[Any, Any]] = {
        **{"id": (AnyId, None), "call": (CallId, None), "comment": (Comment, None), "by": (By, None)},
        **{name: (kind, False if kind in (Quiet, Remember) else None) for name, kind in own.items()},
        **{"token_file": (TokenFile, None), "all": (All, False)},
        **{name: (kind, None) for name, kind in FILTERS.items()},
        **{"yes": (Yes, False), "json": (AsJson, False)},
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in options.items()
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=CommandContext)
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {"ctx": CommandContext, **{name: kind for name, (kind, _) in options.items()}}
    command.__name__, command.__doc__ = action, text
    return command


approve = _answering(
    "approve", "Approve a call that waits, and say whether the answer counts.", response=Fields, remember=Remember
)
reject = _answering("reject", "Reject a call that waits, and say whether the answer counts.", response=Fields)
edit = _answering("edit", "Have a call that waits for a confirmation run with other arguments.", args=Args)
respond = _answering("respond", "Give a long-running call its response, unchanged.", response=Response)
progress = _answering(
    "progress", "Report the progress of a long-running call; it stays open.", response=Response, quiet=Quiet
)
claim = _answering("claim", "Claim a call. Others see the claim and cannot answer until you release it.")
release = _answering("release", "Release a claimed call.")
waive = _answering("waive", "As an operator, run a call without the approval that its policy requires.")
cancel = _answering("cancel", "As an operator, close a call that waits; its invocation goes on.")


async def _answer(
    ctx: CommandContext,
    action: Action,
    own: dict[str, Any],
    *,
    id: str | None,
    call: str | None,
    comment: str | None,
    by: str | None,
    token_file: Path | None,
    all: bool,
    yes: bool,
    **options: Any,
) -> Exit:
    if all and id is not None:
        raise typer.BadParameter("names one call; leave it out with --all", param_hint="ID")
    if not all and (yes or any(options[name] for name in FILTERS)):
        raise typer.BadParameter("is for many calls; give --all with it", param_hint="--yes" if yes else "--agent …")
    fields: dict[str, Any] = {"comment": comment, "by": by or login_name()}
    for name in own:
        match name:
            case "quiet":
                fields["wake"] = False if options[name] else None
            case "remember":
                fields[name] = options[name] or None
            case _:
                fields[name] = parse_object(f"--{name}", options[name])
    client = await ctx.connect()
    fields["token"] = _read_token(token_file)
    if all:
        return await _answer_all(ctx, client, action, fields, yes=yes)
    return await _answer_one(ctx, client, action, id, call, fields)


def _read_token(file: Path | None) -> str | None:
    """Return the token that proves who answers; None for an answer without one."""
    if file is None:
        return (os.environ.get(TOKEN) or "").strip() or None
    with file_problems(file, option="--token-file"), file.open("rb") as opened:
        data = opened.read(MAX_TOKEN_BYTES).strip()
    if not data or not data.isascii():
        raise Problem(Exit.USAGE, f"--token-file: {file} holds no token.")
    return data.decode("ascii")


async def _answer_one(
    ctx: CommandContext,
    client: AgentClient,
    action: Action,
    id: str | None,
    call_id: str | None,
    fields: dict[str, Any],
) -> Exit:
    """Answer a call and say whether the answer counts; a person in a terminal is asked for what is missing."""
    out, target = ctx.out, ctx.target
    person = None if out.json else present()
    if id is None:
        if person is None:
            raise Problem(Exit.USAGE, "Say which call is answered, by its approval id; `pending` lists them.")
        waiting = await client.approvals.pending()
        if not waiting:
            raise Problem(Exit.UNKNOWN, f"Nothing waits for a person in {target.describe()}.")
    else:
        id, call_id = await _parse_id(client, id, call_id)
        requested = ids.requesting_call(call_id) if call_id is not None else None
        waiting = [c for c in await client.invocation(id).pending() if requested in (None, c.function_call_id)]
    chosen = id is None or len(waiting) > 1
    call = None
    if len(waiting) == 1 or (person and waiting):
        call = choose(person, out, target, waiting) if person else waiting[0]
        id, call_id = call.invocation_id, call.function_call_id
    missing = missing_options(action, call, fields)
    if person and call and (missing or chosen):
        call = await client.approvals.get(call.approval_id)
        show_call(out, call)
        fields = ask_for_missing(person, out, call, action, fields)
    elif missing:
        raise Problem(Exit.USAGE, f"`{action}` needs {' and '.join(missing)} here.")
    assert id is not None
    # Answers what was shown, should the call be another by the time the answer arrives.
    receipt = await client.invocation(id).answer(action, call_id, digest=call.digest if call else None, **fields)
    name = terminal.asked(call) if call else terminal.safe(str(receipt.get("tool")))
    if call and action == "edit":
        name += f" as {terminal.safe(summary.call(call.tool, fields['args']))}"
    number = terminal.safe(str(receipt.get("function_call_id")))
    out.result(receipt, Text.assemble((ANSWERED[action], "bold"), f" {name} [{number}] of {terminal.safe(id)}"))
    if out.json:
        return Exit.OK
    if lacking := receipt.get("lacking"):
        out.line(f"It still waits: {lacking} more {'person has' if lacking == 1 else 'people have'} to approve it.")
    elif call and call.kind == "credential" and action == "approve":
        # The answer is right where the credential came into the store by another way.
        out.line("The tool runs again, and asks anew unless the credential is in the workers' store; to put it there:")
        out.command("authorize", target.answer_command("authorize", call.invocation_id, call.function_call_id))
    return Exit.OK


async def _parse_id(client: AgentClient, id: str, call_id: str | None) -> tuple[str, str | None]:
    """Return the invocation, and the call of it, that an argument names: an invocation or an approval id."""
    if call_id is not None:
        return id, call_id
    try:
        await client.invocation(id).handle.describe()
    except RPCError as error:
        # An agent that is called has the id of the call. Where there is such an invocation, it is meant.
        if error.status is not RPCStatusCode.NOT_FOUND or "/" not in id:
            raise
        with contextlib.suppress(ValueError):
            return ids.approved_call(id)
        raise
    return id, None


async def _answer_all(
    ctx: CommandContext, client: AgentClient, action: Action, fields: dict[str, Any], *, yes: bool
) -> Exit:
    """Answer all calls that match the filters, each as it was shown; say of each whether the answer counts.

    The exit code is that of the first answer that does not count.
    """
    out, target = ctx.out, ctx.target
    calls = await _find_calls(ctx, client)
    if missing := sorted({option for call in calls for option in missing_options(action, call, fields)}):
        raise Problem(Exit.USAGE, f"`{action}` needs {' and '.join(missing)} here.")
    if not calls:
        if not out.json:
            out.line(f"Nothing like that waits for a person in {target.describe()}.")
        return Exit.OK
    if not yes:
        count = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
        person = None if out.json else present()
        if person is None:
            raise Problem(Exit.USAGE, f"{count} would be answered; --yes says that they are to be.")
        write_list(out, target, calls, numbered=True)
        if not person.agrees(f"Send {action!r} for {count}?"):
            raise Problem(Exit.FAILED, NOTHING_SENT)
    shown = {call.approval_id: call for call in calls}
    exit = Exit.OK
    async for outcome in client.approvals.answer_all(calls, action, **fields):
        id = terminal.safe(outcome.approval_id)
        if outcome.error:
            problem = to_problem(outcome.error, target.describe(), outcome.approval_id)
            exit = exit or problem.exit
            record: JsonObject = {"error": type(outcome.error).__name__, "message": str(problem)}
            text = Text.assemble(("not answered", "bold red"), f" {id}: {terminal.safe(str(problem))}")
        else:
            record = {"receipt": outcome.receipt}
            call = terminal.asked(shown[outcome.approval_id])
            text = Text.assemble((ANSWERED[action], "bold"), f" {call} [{id}]")
        out.result({"approval_id": outcome.approval_id, **record}, text)
    return exit


def missing_options(action: Action, call: PendingCall | None, fields: JsonObject) -> list[str]:
    """Return the options that are missing for an answer."""
    missing = []
    if action in NEEDED and fields.get(NEEDED[action][0]) is None:
        missing.append(NEEDED[action][1])
    if call and action not in WITHOUT_COMMENT and policy_terms.needs_comment(call) and not fields.get("comment"):
        missing.append("--comment")
    return missing


def choose(person: Person, out: Output, target: Target, calls: list[PendingCall]) -> PendingCall:
    """Have the person choose one of several calls.

    Raises:
        Problem: They choose none.
    """
    if len(calls) == 1:
        return calls[0]
    write_list(out, target, calls, numbered=True)
    count = min(len(calls), MAX_LISTED)
    chosen = person.ask(f"Which one, 1 to {count}")
    if not chosen.isdecimal() or not 1 <= int(chosen) <= count:
        raise Problem(Exit.USAGE, f"{chosen!r} is none of them. {NOTHING_SENT}")
    return calls[int(chosen) - 1]


def show_call(out: Output, call: PendingCall) -> None:
    """Write everything that one has to know before answering."""
    out.line()
    out.line(Text(terminal.asked(call), style="bold yellow"))
    facts = [
        ("call", f"{terminal.safe(call.function_call_id)} of {terminal.safe(call.invocation_id)}"),
        ("asked by", f"{terminal.safe(call.agent)}, for {terminal.safe(call.requester or call.user_id)}"),
        *((label, text) for label, text in terminal.facts(call) if label != "with"),
        *policy_terms.terms(call),
        ("digest", call.digest),
    ]
    out.facts(facts)
    out.line(Text("  with", style="dim"))
    for line in terminal.safe_json(_unsecret(call.args), indent=2).splitlines():
        out.line(f"    {line}")
    out.line()


def ask_for_missing(person: Person, out: Output, call: PendingCall, action: Action, fields: JsonObject) -> JsonObject:
    """Ask for what an answer lacks, and whether to send it; return its fields.

    Raises:
        Problem: The person does not want it sent.
    """
    answer = dict(fields)
    if action == "edit" and answer.get("args") is None:
        answer["args"] = _edited(person, out, call)
    if action in ("respond", "progress") and answer.get("response") is None:
        answer["response"] = _ask_for_response(person, out, call, action)
    if not answer.get("comment"):
        wanted = policy_terms.needs_comment(call) and action not in WITHOUT_COMMENT
        answer["comment"] = (
            _ask_until(person, out, "Comment, which the policy asks for", _parse_comment)
            if wanted
            else person.ask("Comment, if any") or None
        )
    if action == "approve" and call.policy and call.policy.remember and not answer.get("remember"):
        length = terminal.span(call.policy.remember.total_seconds())
        answer["remember"] = person.agrees(f"Have calls like this one run unasked for {length}?") or None
    if not person.agrees(f"Send {action!r}?"):
        raise Problem(Exit.FAILED, NOTHING_SENT)
    return answer


def _edited(person: Person, out: Output, call: PendingCall) -> JsonObject:
    """Have the arguments changed, in an editor or one by one, and show what changes."""
    text = terminal.safe_json(call.args, indent=2) + "\n"
    args = person.edited_into(parse_json_object, out, text, undone=NOTHING_SENT)
    if args is None:
        args = {name: _ask_for_value(person, out, name, value) for name, value in call.args.items()}
    if args == call.args:
        raise Problem(Exit.FAILED, f"The arguments are unchanged; `approve` has the call run with them. {NOTHING_SENT}")
    before, after = (terminal.safe_json(_unsecret(value), indent=2).splitlines() for value in (call.args, args))
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in difflib.unified_diff(before, after, "asked", "edited", lineterm=""):
        out.line(Text(line, style=styles.get(line[0], "")))
    return args


def _unsecret(args: JsonObject) -> JsonObject:
    return {name: terminal.unsecret(name, value) for name, value in args.items()}


def _ask_until(person: Person, out: Output, prompt: str, parse: Callable[[str], T], default: str = "") -> T:
    """Ask until `parse` accepts the answer; its errors are shown."""
    while True:
        try:
            return parse(person.ask(prompt, default))
        except ValueError as error:
            if text := str(error):
                out.line(f"{text}.", style="red")


def _ask_for_value(person: Person, out: Output, name: str, value: Any) -> Any:
    """Ask for one value of the kind that it has now; texts as they are, anything else as JSON."""
    visible = terminal.unsecret(name, value)
    shown = terminal.safe(visible if isinstance(visible, str) else terminal.safe_json(visible))

    def parse(text: str) -> Any:
        if text == shown:
            return value
        return text if isinstance(value, str) else _parse_json(text, "is no JSON")

    return _ask_until(person, out, f"  {terminal.safe(name)}", parse, shown)


def _ask_for_response(person: Person, out: Output, call: PendingCall, action: Action) -> JsonObject:
    """Ask for a response: the fields of its schema, or the whole as JSON."""
    schema = call.response_schema or {}
    fields = schema.get("properties")
    if action == "progress" or not isinstance(fields, dict) or not fields:
        return _ask_until(person, out, 'Response, as JSON, such as {"status": "done"}', parse_json_object)
    required = schema.get("required") or ()
    values = {name: _ask_for_field(person, out, name, field, name in required) for name, field in fields.items()}
    return {name: value for name, value in values.items() if value is not _LEFT_OUT}


_LEFT_OUT: Any = object()
_WRITTEN: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number, such as 12"),
    "number": ((int, float), "a number, such as 12.5"),
    "array": ((list,), 'JSON, such as ["one", "two"]'),
    "object": ((dict,), 'JSON, such as {"name": "value"}'),
}
"""What JSON of a type becomes, and how it is written."""


def _ask_for_field(person: Person, out: Output, name: str, schema: Any, required: bool) -> Any:
    """Ask for one field of a response, of the type that its schema says."""
    about = schema if isinstance(schema, dict) else {}
    choices, kind = about.get("enum"), str(about.get("type") or "")
    types, written = _WRITTEN.get(kind, ((), ""))
    wrong = f"is no {kind or 'such value'}{f'; write {written}' if written else ''}"
    hints = [text for text in (written if kind == "boolean" else kind, str(about.get("description") or "")) if text]
    hints += [f"one of {', '.join(map(str, choices))}"] if isinstance(choices, list) else []
    hints += [] if required else ["optional"]
    hint = f" ({terminal.safe('; '.join(hints))})" if hints else ""

    def parse(text: str) -> Any:
        if not text and not required:
            return _LEFT_OUT
        value: Any = text
        if kind not in ("string", "") or (isinstance(choices, list) and text not in choices):
            value = _parse_json(text, wrong)
            if types and type(value) not in types:  # not isinstance: true is no integer
                raise ValueError(f"{text!r} {wrong}")
        if isinstance(choices, list) and value not in choices:
            raise ValueError(f"{text!r} is none of them")
        if not text and kind != "string":
            raise ValueError
        return value

    return _ask_until(person, out, f"  {terminal.safe(name)}{hint}", parse)


def _parse_json(text: str, wrong: str) -> Any:
    try:
        return decode(text)
    except ValueError:
        raise ValueError(f"{text!r} {wrong}") from None


def _parse_comment(text: str) -> str:
    if not text:
        raise ValueError
    return text


def write_list(out: Output, target: Target, calls: Sequence[PendingCall], *, numbered: bool = False) -> None:
    """Write many calls briefly, in a table where that fits; `numbered`: the first of them, to choose from."""
    left_out = len(calls) - MAX_LISTED if numbered else 0
    calls = calls[:MAX_LISTED] if numbered else calls
    ids = [quote(call.approval_id) for call in calls]
    width = out.console.width
    columns = 24 if width < WIDE else 44
    if width - max(map(len, ids)) - columns < MIN_CALL:
        for number, call in enumerate(calls, 1):
            _brief(out, call, f"{number}  " if numbered else "")
    else:
        out.table(_table(calls, ids, wide=width >= WIDE, numbered=numbered))
    if left_out > 0:
        out.line(f"… and {left_out} more; `pending` lists all of them, with their ids.")
    if not numbered:
        first = {terminal.answers(call)[0]: call for call in reversed(calls)}
        for action, call in first.items():
            out.command(action, target.answer_command(action, call.approval_id))


def _table(calls: Sequence[PendingCall], ids: list[str], *, wide: bool, numbered: bool) -> Table:
    columns = [
        Column("id", no_wrap=True),
        Column("call", ratio=1, overflow="fold", style="bold yellow"),
        *([Column("asked by", overflow="fold", max_width=18)] if wide else []),
        Column("waits", no_wrap=True, justify="right"),
        Column("left", no_wrap=True, justify="right"),
        Column("who", overflow="fold", max_width=24 if wide else 14, style="dim"),
    ]
    number_column = [Column("#", justify="right", no_wrap=True)] if numbered else []
    table = Table(*number_column, *columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    for number, (call, id) in enumerate(zip(calls, ids, strict=True), 1):
        asked_by = f"{terminal.safe(call.agent)}, for {terminal.safe(call.requester or call.user_id)}"
        times = policy_terms.waited(call), policy_terms.left(call)
        row = [id, terminal.asked(call), *([asked_by] if wide else []), *times, policy_terms.who(call)]
        table.add_row(*map(Text, [str(number), *row] if numbered else row))
    return table


def _brief(out: Output, call: PendingCall, number: str) -> None:
    out.line(Text(f"{number}{terminal.asked(call)}", style="bold yellow"))
    out.line(Text(f"  {terminal.safe(call.approval_id)}"))
    about = f"waits {policy_terms.waited(call)}, {policy_terms.left(call)} left; asked by {terminal.safe(call.agent)}"
    out.hanging(Text("  "), [Text(f"{about}; {policy_terms.who(call)}", style="dim")])


async def authorize(
    ctx: CommandContext,
    id: Annotated[str, typer.Argument(metavar="ID", help="Approval id, as `pending` lists it, or an invocation.")],
    call: CallId = None,
    credentials: Annotated[str, typer.Option(metavar="STORE", help="The credential store of the workers.")] = str(
        CREDENTIALS
    ),
    by: By = None,
    json: AsJson = False,
) -> Exit:
    """Provide the credential that a call waits for: prompts for a login or a key, and saves it to the store."""
    out, client = ctx.out, await ctx.connect()
    waits = await _credential_call(client, id, call)
    uri = terminal.login_uri(waits)
    if uri is not None:
        out.remark("Log in here, then give the address of the page at which the login ended:")
        out.remark(terminal.safe(uri))
    # In a thread: reading from a terminal blocks.
    text = (await asyncio.to_thread(_read_hidden, f"{_wanted(waits)} (not shown): ")).strip()
    if not text:
        raise Problem(Exit.USAGE, "Nothing was given; the call waits on.")
    from waystation.auth import store_at  # loads what tools know of authentication

    what: dict[str, Any] = {"credential": text} if uri is None else {"auth_response_uri": text}
    try:
        receipt = await client.invocation(waits.invocation_id).authorize(
            waits.function_call_id, store=store_at(credentials), by=by, **what
        )
    except ValueError as error:  # of a text that is no credential for the scheme; it does not quote it
        raise Problem(Exit.USAGE, str(error)) from None
    about = f" {terminal.asked(waits)} [{terminal.safe(waits.function_call_id)}] of {terminal.safe(id)}"
    out.result(receipt, Text.assemble(("authorized", "bold"), about))
    return Exit.OK


async def _credential_call(client: AgentClient, id: str, call_id: str | None) -> PendingCall:
    id, call_id = await _parse_id(client, id, call_id)
    waiting = [*await client.invocation(id).pending(), *await client.approvals.pending(below=id)]
    asking = [call for call in waiting if call.kind == "credential" and call_id in (None, call.function_call_id)]
    if not asking:
        which = f"Call {call_id!r} does not wait" if call_id else "No call waits"
        raise Problem(Exit.UNKNOWN, f"{which} for a credential in {id!r}.")
    if len(asking) > 1:
        listed = ", ".join(f"{call.invocation_id} {call.function_call_id}" for call in asking)
        raise Problem(Exit.UNKNOWN, f"Say which call is meant; waiting for a credential: {listed}.")
    return asking[0]


def _wanted(call: PendingCall) -> str:
    scheme = terminal.auth_scheme(call)
    match scheme.get("type"):
        case "apiKey":
            return f"API key for the {terminal.safe(str(scheme.get('in')))} {terminal.safe(str(scheme.get('name')))}"
        case "http" if scheme.get("scheme") == "basic":
            return "user:password"
        case "http":
            return "Token"
        case _:
            return "Address"


def _read_hidden(prompt: str) -> str:
    """Read one line: from a terminal without showing it, or from standard input."""
    if sys.stdin.isatty():
        return getpass.getpass(prompt)
    return sys.stdin.readline()
