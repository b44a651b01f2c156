"""The `waystation pending` command, the commands that answer pending calls, and `authorize`."""

import asyncio
import contextlib
import difflib
import getpass
import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Column
from rich.text import Text
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import (
    AsJson,
    At,
    By,
    Called,
    CommandContext,
    CommandProblem,
    Exit,
    ServerTarget,
    TokenFile,
    name_sender,
    parse_json_object,
    parse_object,
    quote,
    read_token,
    to_problem,
    write_waits,
)
from waystation.cli.command_execution import AsyncCommand
from waystation.cli.invocations import Watch
from waystation.cli.output import Output
from waystation.cli.shell_completion import complete_id
from waystation.cli.terminal_input import NOTHING_SENT, TerminalUser, find_person
from waystation.client import AgentClient
from waystation.client.search_attributes import ANY_TENANT
from waystation.core import ids, summary
from waystation.core.actions import ACTIONS, Action, ActionSpec
from waystation.core.approval import PendingCall
from waystation.core.contract import Stores
from waystation.core.payload import JsonObject, decode
from waystation.core.secrets import hide_named_secrets
from waystation.presentation import terminal, words
from waystation.presentation.tables import make_table
from waystation.storage import describe_place

T = TypeVar("T")

OWN_OPTIONS = frozenset(option for row in ACTIONS.values() for option in row.options)
"""The options that not every command has."""
MIN_CALL = 24
"""Minimum width of the table's call column. If less space is left, calls are listed without a table."""
MAX_LISTED = 20
"""Maximum number of calls to list at a time when the user chooses one."""
WIDE = 110
"""Minimum terminal width, in columns, for including the requester in the table."""
CREDENTIALS = Stores().credentials
"""The credential store that workers use by default."""

AnyId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Approval ID from `pending`, or an invocation ID. If you omit it in a terminal, you choose from a list.",
        autocompletion=complete_id,
    ),
]
CallId = Annotated[
    str | None,
    typer.Argument(metavar="CALL", help="Call ID, such as fc-1, if the invocation has several pending calls."),
]
Comment = Annotated[str | None, typer.Option(help="Comment for the agent.")]
Response = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Fields of the response, as a JSON object. If they are required, a terminal prompts for them.",
    ),
]
Args = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Complete new arguments, as a JSON object. If you omit them in a terminal, you are prompted.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Do not wake the agent. It receives the update with its next message.")
]
Remember = Annotated[
    bool,
    typer.Option("--remember", help="Also approve identical calls in the future, for as long as the policy allows."),
]
All = Annotated[bool, typer.Option("--all", help="Answer every pending call that matches the filters below.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: answer without asking for confirmation.")]
ByAgent = Annotated[str | None, typer.Option("--agent", help="Only calls in invocations of this agent.")]
ByTool = Annotated[str | None, typer.Option("--tool", help="Only calls to this tool.")]
ByPerson = Annotated[
    str | None,
    typer.Option(
        "--person",
        metavar="NAME[,ROLE...]",
        help="Only calls that this person may answer. Write roles like role:finance.",
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="AGE", help="Only calls pending for longer than this, such as 30m, 2h or 1d."),
]
Below = Annotated[
    str | None,
    typer.Option("--below", metavar="ID", help="Only calls in invocations started by this invocation or session."),
]
ByTenant = Annotated[str | None, typer.Option("--tenant", help="Only calls in invocations of this tenant.")]
Machines = Annotated[
    bool, typer.Option("--machines", help="List the calls that are waiting for a machine instead, for operators.")
]
FILTERS = {
    "agent": ByAgent,
    "tool": ByTool,
    "person": ByPerson,
    "older_than": OlderThan,
    "below": Below,
    "tenant": ByTenant,
}


async def pending(
    ctx: CommandContext,
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID|FILE",
            help="Invocation ID or history file. Default: calls of all invocations.",
            autocompletion=complete_id,
        ),
    ] = None,
    at: At = None,
    called: Called = None,
    agent: ByAgent = None,
    tool: ByTool = None,
    person: ByPerson = None,
    older_than: OlderThan = None,
    below: Below = None,
    tenant: ByTenant = None,
    machines: Machines = False,
    json: AsJson = False,
) -> Exit:
    """List the calls that are waiting for a person. This does not require a running worker."""
    filters = [f"--{name.replace('_', '-')}" for name in (*FILTERS, "machines") if ctx.params[name]]
    if id is None:
        for option, value in (("--at", at), ("--called", called)):
            if value is not None:
                raise typer.BadParameter("requires an invocation ID or a history file", param_hint=option)
    else:
        from waystation.cli.recordings import is_past, print_past_waits  # slow to import, because it loads the replayer

        if is_past(id, at, called):
            if filters:
                raise typer.BadParameter("cannot be used with a file or a past moment", param_hint=", ".join(filters))
            return await print_past_waits(ctx, id, at, called)
        if filters:
            raise CommandProblem(Exit.USAGE, f"Pass an invocation ID or use {', '.join(filters)}, but not both.")
    out, client = ctx.out, await ctx.connect()
    calls = await (_find_calls(ctx, client) if id is None else _fetch_pending(client, id))
    if not json:
        await ctx.compare_stores(payloads=client.blobs.files)
    if json:
        for call in calls:
            out.record(call.model_dump(mode="json"))
    elif not calls:
        place = terminal.escape(id) if id else ctx.target.describe()
        kind = "machine" if machines else "person"
        out.line(f"No {'such calls' if {*filters} - {'--machines'} else 'calls'} are waiting for a {kind} in {place}.")
    else:
        with out.pages():
            if id is None:
                write_list(out, ctx.target, calls)
            else:
                write_waits(out, ctx.target, calls)
    if not (json or filters):
        await _write_held(out, client, id)
    if id is not None and not calls:
        await Watch(client, out, id).look_for_retries()
    return Exit.OK


async def unknown(
    ctx: CommandContext,
    agent: ByAgent = None,
    tool: ByTool = None,
    person: ByPerson = None,
    older_than: OlderThan = None,
    below: Below = None,
    tenant: ByTenant = None,
    json: AsJson = False,
) -> Exit:
    """List the calls about which it is unknown whether they took effect, also those of ended invocations.

    Find out where the tool acts, with the idempotency key, and answer with `ran`, `not-run` or `start-again`.
    """
    out, client = ctx.out, await ctx.connect()
    calls = await _find_calls(ctx, client, unknown=True)
    for call in calls if json else ():
        out.record(call.model_dump(mode="json"))
    if not calls and not json:
        out.line(f"No outcomes of calls are unknown in {ctx.target.describe()}.")
    elif not json:
        with out.pages():
            write_list(out, ctx.target, calls)
    return Exit.OK


async def _write_held(out: Output, client: AgentClient, id: str | None) -> None:
    """Write why invocations are held: all of them, or only the one with the given ID."""
    if id is not None:
        held = [(id, hold) for hold in await client.held.holds(id)]
    else:
        found = client.held.each(searchable=bool(await client.searchable(ANY_TENANT)))
        held = [(invocation.invocation_id, hold) async for invocation in found for hold in invocation.holds]
    for invocation_id, hold in held:
        out.line(f"held: {terminal.format_held(invocation_id, hold)}", style="red")


async def _fetch_pending(client: AgentClient, id: str) -> list[PendingCall]:
    """Return the pending calls of an invocation and of all agents that it called directly or indirectly."""
    return [*await client.invocation(id).pending(), *await client.approvals.pending(below=id, machines=None)]


async def _find_calls(ctx: CommandContext, client: AgentClient, *, unknown: bool = False) -> list[PendingCall]:
    """Return the pending calls, or those with an unknown outcome, that match the command's filters, oldest first."""
    filters: dict[str, Any] = {"unknown": unknown, **{name: ctx.params[name] or None for name in FILTERS}}
    if filters["person"]:
        filters["person"] = filters["person"].split(",")
    if filters["older_than"]:
        filters["older_than"] = parse_duration(filters["older_than"])
    filters["machines"] = ctx.params.get("machines", False)
    return sorted([call async for call in client.approvals.each(**filters)], key=lambda call: call.requested_at)


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `90s`, `30m`, `2h` or `1d`.

    Raises:
        Problem: The text is not a valid duration.
    """
    match = re.fullmatch(r"(\d{1,6})([smhd])", text.strip())
    if not match:
        raise CommandProblem(
            Exit.USAGE, f"{text!r} is not a valid duration. Use a number and a unit, such as 90s, 30m, 2h or 1d."
        )
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    return timedelta(**{units[match[2]]: int(match[1])})


class AnswerCommand(AsyncCommand):
    """The command of one action: the command `answer`, with those of its options that the action has."""

    def __init__(self, name: str, *, params: list[Any], **settings: Any) -> None:
        row = ACTIONS[name.replace("-", "_")]
        params = [param for param in params if param.name in row.options or param.name not in OWN_OPTIONS]
        super().__init__(name, params=params, **{**settings, "help": row.help})


async def answer(
    ctx: CommandContext,
    id: AnyId = None,
    call: CallId = None,
    comment: Comment = None,
    by: By = None,
    response: Response = None,
    remember: Remember = False,
    args: Args = None,
    quiet: Quiet = False,
    token_file: TokenFile = None,
    all: All = False,
    agent: ByAgent = None,
    tool: ByTool = None,
    person: ByPerson = None,
    older_than: OlderThan = None,
    below: Below = None,
    tenant: ByTenant = None,
    yes: Yes = False,
    json: AsJson = False,
) -> Exit:
    """Send the answer whose action is the name of the command."""
    if all and id is not None:
        raise typer.BadParameter("cannot be used with --all", param_hint="ID")
    if not all and (yes or any((agent, tool, person, older_than, below, tenant))):
        raise typer.BadParameter("requires --all", param_hint="--yes" if yes else "--agent …")
    token = read_token(token_file)
    fields: dict[str, Any] = {
        "comment": comment,
        "by": by or name_sender(token),
        "token": token,
        "response": parse_object("--response", response),
        "args": parse_object("--args", args),
        "remember": remember or None,
        "wake": False if quiet else None,
    }
    client, action = await ctx.connect(), ACTIONS[(ctx.command.name or "").replace("-", "_")]
    if all:
        return await _answer_all(ctx, client, action, fields, yes=yes)
    return await _answer_one(ctx, client, action, id, call, fields)


def _create_command(action: Action) -> typer.Typer:
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command(ACTIONS[action].command, cls=AnswerCommand)(answer)
    return program


approve = _create_command("approve")
reject = _create_command("reject")
edit = _create_command("edit")
respond = _create_command("respond")
progress = _create_command("progress")
claim = _create_command("claim")
release = _create_command("release")
waive = _create_command("waive")
cancel = _create_command("cancel")
replace = _create_command("replace")
revoke = _create_command("revoke")
ran = _create_command("ran")
not_run = _create_command("not_run")
start_again = _create_command("start_again")


async def _answer_one(
    ctx: CommandContext,
    client: AgentClient,
    action: ActionSpec,
    id: str | None,
    call_id: str | None,
    fields: dict[str, Any],
) -> Exit:
    """Answer a call and print the receipt. In a terminal, ask which call to answer and for missing fields if needed."""
    out, target = ctx.out, ctx.target
    person = None if out.json else find_person()
    if id is None:
        if person is None:
            raise CommandProblem(
                Exit.USAGE, "Pass the approval ID of the call to answer. `waystation pending` lists these IDs."
            )
        machines, unknown = action.of_machines, action.is_about_outcome
        listed = client.approvals.each(machines=machines, unknown=unknown)
        calls = sorted([call async for call in listed], key=lambda call: call.requested_at)
        if not calls:
            kind = "machine" if action.of_machines else "person"
            raise CommandProblem(Exit.UNKNOWN, f"No calls are waiting for a {kind} in {target.describe()}.")
    else:
        id, call_id = await _parse_id(client, id, call_id)
        requested = ids.requesting_call(call_id) if call_id is not None else None
        calls = [c for c in await client.invocation(id).pending() if requested in (None, c.function_call_id)]
    is_choice = id is None or len(calls) > 1
    call = None
    if len(calls) == 1 or (person and calls):
        call = choose(person, out, target, calls) if person else calls[0]
        id, call_id = call.invocation_id, call.function_call_id
    if call and action.runs_tool and (warning := await client.agents.find_missing_tool(call)):
        out.remark(warning)
    missing = find_missing_options(action, call, fields)
    if call and (action.accepts or (person and (missing or is_choice))):
        call = await client.approvals.get(call.approval_id)
    if person and call and (missing or is_choice):
        show_call(out, call)
        fields = ask_for_missing(person, out, call, action, fields)
    elif missing:
        raise CommandProblem(Exit.USAGE, f"`{action.name}` requires {' and '.join(missing)} for this call.")
    assert id is not None
    # The digest ties the answer to the call that the user saw: by now, that call's ID may belong to another call.
    seen = call.as_seen if call else {}
    receipt = await client.invocation(id).answer(action.name, call_id, **seen, **fields)
    name = terminal.format_call(call) if call else terminal.escape(str(receipt.get("tool")))
    if call and action.name == "edit":
        name += f" as {terminal.escape(summary.call(call.tool, fields['args']))}"
    answered_id = terminal.escape(str(receipt.get("function_call_id")))
    out.result(receipt, Text.assemble((action.done, "bold"), f" {name} [{answered_id}] of {terminal.escape(id)}"))
    if out.json:
        return Exit.OK
    if count := receipt.get("lacking"):
        out.line(f"The call still needs {count} more {'approval' if count == 1 else 'approvals'}.")
    elif call and call.kind == "credential" and action.name == "approve":
        # Approving helps only if someone has put the credential into the store by other means.
        out.line(
            "The tool runs again. If the workers' store still has no credential, the tool asks again. To store one:"
        )
        out.command("authorize", target.answer_command("authorize", call.invocation_id, call.function_call_id))
    return Exit.OK


async def _parse_id(client: AgentClient, id: str, call_id: str | None) -> tuple[str, str | None]:
    """Return the invocation ID and call ID that an argument stands for.

    The argument `id` is an invocation ID or, if `call_id` is None, possibly an approval ID.
    """
    if call_id is not None:
        return id, call_id
    try:
        await client.invocation(id).handle.describe()
    except RPCError as error:
        # The invocation ID of a called agent looks like an approval ID, so check first whether the invocation exists.
        if error.status is not RPCStatusCode.NOT_FOUND or "/" not in id:
            raise
        with contextlib.suppress(ValueError):
            return ids.parse_approval(id)
        raise
    return id, None


async def _answer_all(
    ctx: CommandContext, client: AgentClient, action: ActionSpec, fields: dict[str, Any], *, yes: bool
) -> Exit:
    """Answer all calls that match the filters, and print for each call whether the answer was accepted.

    Unless `yes` is true, ask for confirmation first. Return the exit code of the first answer that was not accepted, or
    `Exit.OK`.
    """
    out, target = ctx.out, ctx.target
    calls = await _find_calls(ctx, client, unknown=action.is_about_outcome)
    if missing := sorted({option for call in calls for option in find_missing_options(action, call, fields)}):
        raise CommandProblem(Exit.USAGE, f"`{action.name}` requires {' and '.join(missing)} for these calls.")
    if not calls:
        if not out.json:
            out.line(f"No such calls are waiting for a person in {target.describe()}.")
        return Exit.OK
    for large in calls if action.accepts else ():
        if set(large.args) == {"omitted_bytes"}:  # fail before anything is sent if they cannot be read
            await client.approvals.get(large.approval_id)
    if not yes:
        count = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
        person = None if out.json else find_person()
        if person is None:
            raise CommandProblem(Exit.USAGE, f"This would answer {count}. Pass --yes to confirm.")
        with out.pages():
            write_list(out, target, calls, first=1)
        if not person.agrees(f"Send {action.name!r} for {count}?"):
            raise CommandProblem(Exit.FAILED, NOTHING_SENT)
    by_id = {call.approval_id: call for call in calls}
    code = Exit.OK
    async for outcome in client.approvals.answer_all(calls, action.name, **fields):
        id = terminal.escape(outcome.approval_id)
        if outcome.error:
            problem = to_problem(outcome.error, target.describe(), outcome.approval_id)
            code = code or problem.exit
            record: JsonObject = {"error": type(outcome.error).__name__, "message": str(problem)}
            text = Text.assemble(("not answered", "bold red"), f" {id}: {terminal.escape(str(problem))}")
        else:
            record = {"receipt": outcome.receipt}
            call = terminal.format_call(by_id[outcome.approval_id])
            text = Text.assemble((action.done, "bold"), f" {call} [{id}]")
        out.result({"approval_id": outcome.approval_id, **record}, text)
    return code


def find_missing_options(action: ActionSpec, call: PendingCall | None, fields: JsonObject) -> list[str]:
    """Return the names of required options that an answer to the call still lacks."""
    missing = []
    if action.requires and fields.get(action.requires) is None:
        missing.append(f"--{action.requires}")
    if call and words.needs_comment(call, action) and not fields.get("comment"):
        missing.append("--comment")
    return missing


def choose(person: TerminalUser, out: Output, target: ServerTarget, calls: list[PendingCall]) -> PendingCall:
    """Let the user choose one of several calls, page by page. A single call is returned without asking.

    Raises:
        Problem: The user did not choose a call from the list.
    """
    if len(calls) == 1:
        return calls[0]
    start = 0
    while True:
        page = calls[start : start + MAX_LISTED]
        write_list(out, target, page, first=start + 1)
        shown, left = start + len(page), len(calls) - start - len(page)
        hint = f", or Enter for {left} more" if left else ""
        number = person.ask(f"Which call (1 to {shown}{hint})")
        if not number and left:
            start += MAX_LISTED
            continue
        if not number.isdecimal() or not 1 <= int(number) <= shown:
            raise CommandProblem(Exit.USAGE, f"{number!r} is not a number from 1 to {shown}. {NOTHING_SENT}")
        return calls[int(number) - 1]


def show_call(out: Output, call: PendingCall) -> None:
    """Write everything that the approver should know before answering."""
    out.line()
    out.line(Text(terminal.format_call(call), style="bold yellow"))
    out.facts(
        [
            ("call", f"{terminal.escape(call.function_call_id)} of {terminal.escape(call.invocation_id)}"),
            ("asked by", _format_requester(call)),
            *((label, text) for label, text in terminal.list_facts(call) if label != "with"),
            *words.list_terms(call),
            ("digest", call.digest),
        ]
    )
    out.line(Text("  with", style="dim"))
    for line in terminal.format_json(hide_named_secrets(call.args), indent=2).splitlines():
        out.line(f"    {line}")
    out.line()


def _format_requester(call: PendingCall) -> str:
    names = ", ".join([call.requester or call.user_id, *call.joined_requesters])
    return f"{terminal.escape(call.agent)}, for {terminal.escape(names)}"


def ask_for_missing(
    person: TerminalUser, out: Output, call: PendingCall, action: ActionSpec, fields: JsonObject
) -> JsonObject:
    """Ask for the missing fields of an answer, required or optional, and for confirmation. Return all fields.

    Raises:
        Problem: The user did not confirm, stopped editing, or left the arguments to edit unchanged.
    """
    answer = dict(fields)
    if action.requires == "args" and answer.get("args") is None:
        answer["args"] = _edit_args(person, out, call)
    if action.requires == "response" and answer.get("response") is None:
        answer["response"] = _ask_for_response(person, out, call, action)
    if not answer.get("comment"):
        required = words.needs_comment(call, action)
        answer["comment"] = (
            _ask_until(person, out, "Comment (required by the policy)", _parse_comment)
            if required
            else person.ask("Comment (optional)") or None
        )
    if "remember" in action.options and call.policy and call.policy.remember and not answer.get("remember"):
        length = terminal.format_span(call.policy.remember.total_seconds())
        answer["remember"] = person.agrees(f"Also approve identical calls for {length}?") or None
    if not person.agrees(f"Send {action.name!r}?"):
        raise CommandProblem(Exit.FAILED, NOTHING_SENT)
    return answer


def _edit_args(person: TerminalUser, out: Output, call: PendingCall) -> JsonObject:
    """Let the user edit the arguments, in an editor or, if none is configured, one by one, and show the changes.

    Raises:
        Problem: The user stopped editing, or the arguments are unchanged.
    """
    text = terminal.format_json(call.args, indent=2) + "\n"
    args = person.edit_until(parse_json_object, out, text, on_stop=NOTHING_SENT)
    if args is None:
        args = {name: _ask_for_value(person, out, name, value) for name, value in call.args.items()}
    if args == call.args:
        raise CommandProblem(
            Exit.FAILED, f"The arguments are unchanged. To run the call with them, use `approve`. {NOTHING_SENT}"
        )
    before, after = (
        terminal.format_json(hide_named_secrets(value), indent=2).splitlines() for value in (call.args, args)
    )
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in difflib.unified_diff(before, after, "asked", "edited", lineterm=""):
        out.line(Text(line, style=styles.get(line[0], "")))
    return args


def _ask_until(person: TerminalUser, out: Output, prompt: str, parse: Callable[[str], T], default: str = "") -> T:
    """Ask until `parse` accepts the input. Show the user the errors that it raises."""
    while True:
        try:
            return parse(person.ask(prompt, default))
        except ValueError as error:
            if text := str(error):
                out.line(f"{text}.", style="red")


def _ask_for_value(person: TerminalUser, out: Output, name: str, value: Any) -> Any:
    """Ask for the value of one argument: as plain text if its current value is a string, otherwise as JSON."""
    visible = hide_named_secrets(value, name)
    default = terminal.escape(visible if isinstance(visible, str) else terminal.format_json(visible))

    def parse(text: str) -> Any:
        if text == default:
            return value
        return text if isinstance(value, str) else _parse_json(text, "is not valid JSON")

    return _ask_until(person, out, f"  {terminal.escape(name)}", parse, default)


def _ask_for_response(person: TerminalUser, out: Output, call: PendingCall, action: ActionSpec) -> JsonObject:
    """Ask for a response: field by field if a final response must match a schema, otherwise as one JSON object."""
    schema = call.response_schema or {}
    fields = schema.get("properties")
    if not action.completes or not isinstance(fields, dict) or not fields:
        return _ask_until(person, out, 'Response as JSON, such as {"status": "done"}', parse_json_object)
    required = schema.get("required") or ()
    values = {name: _ask_for_field(person, out, name, field, name in required) for name, field in fields.items()}
    return {name: value for name, value in values.items() if value is not _OMITTED}


_OMITTED: Any = object()
_JSON_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number, such as 12"),
    "number": ((int, float), "a number, such as 12.5"),
    "array": ((list,), 'JSON, such as ["one", "two"]'),
    "object": ((dict,), 'JSON, such as {"name": "value"}'),
}
"""For each JSON Schema type except strings, its Python types and a description of valid input to show the user."""


def _ask_for_field(person: TerminalUser, out: Output, name: str, schema: Any, required: bool) -> Any:
    """Ask for one field of a response until the input is valid. Return `_OMITTED` for an optional field left empty."""
    schema = schema if isinstance(schema, dict) else {}
    choices, kind = schema.get("enum"), str(schema.get("type") or "")
    types, example = _JSON_TYPES.get(kind, ((), ""))
    problem = f"is not {f'of type {kind}' if kind else 'valid'}{f'; enter {example}' if example else ''}"
    hints = [text for text in (example if kind == "boolean" else kind, str(schema.get("description") or "")) if text]
    hints += [f"one of {', '.join(map(str, choices))}"] if isinstance(choices, list) else []
    hints += [] if required else ["optional"]
    hint = f" ({terminal.escape('; '.join(hints))})" if hints else ""

    def parse(text: str) -> Any:
        if not text and not required:
            return _OMITTED
        value: Any = text
        if kind not in ("string", "") or (isinstance(choices, list) and text not in choices):
            value = _parse_json(text, problem)
            if types and type(value) not in types:  # isinstance would accept a bool as an int
                raise ValueError(f"{text!r} {problem}")
        if isinstance(choices, list) and value not in choices:
            raise ValueError(f"{text!r} is not one of these values")
        if not text and kind != "string":
            raise ValueError
        return value

    return _ask_until(person, out, f"  {terminal.escape(name)}{hint}", parse)


def _parse_json(text: str, problem: str) -> Any:
    try:
        return decode(text)
    except ValueError:
        raise ValueError(f"{text!r} {problem}") from None


def _parse_comment(text: str) -> str:
    if not text:
        raise ValueError
    return text


def write_list(out: Output, target: ServerTarget, calls: Sequence[PendingCall], *, first: int | None = None) -> None:
    """Write a compact list of calls, as a table if the terminal is wide enough.

    Args:
        out: The output to write to.
        target: The server, for the commands that answer the calls.
        calls: The calls to list.
        first: The number of the first call, to choose from numbered calls. Without it, the commands that answer calls
            follow the list.
    """
    approval_ids = [quote(call.approval_id) for call in calls]
    width = out.console.width
    if width - max(map(len, approval_ids)) - (24 if width < WIDE else 44) < MIN_CALL:
        for number, call in enumerate(calls, first or 1):
            _write_brief(out, call, f"{number}  " if first else "")
    else:
        _write_table(out, calls, approval_ids, wide=width >= WIDE, first=first)
    if first is None:
        for action, call in {terminal.list_answers(call)[0]: call for call in reversed(calls)}.items():
            out.command(action, target.answer_command(action, call.approval_id))


def _write_table(
    out: Output, calls: Sequence[PendingCall], approval_ids: list[str], *, wide: bool, first: int | None
) -> None:
    columns = [
        *([Column("#", justify="right", no_wrap=True)] if first else []),
        Column("id", no_wrap=True),
        Column("call", ratio=1, overflow="fold", style="bold yellow"),
        *([Column("asked by", overflow="fold", max_width=18)] if wide else []),
        Column("waits", no_wrap=True, justify="right"),
        Column("left", no_wrap=True, justify="right"),
        Column("who", overflow="fold", max_width=24 if wide else 14, style="dim"),
    ]
    rows = (
        (
            *([str(number)] if first else []),
            id,
            terminal.format_titled_call(call),
            *([_format_requester(call)] if wide else []),
            words.format_waiting_time(call),
            words.format_time_left(call),
            words.format_approvers(call),
        )
        for number, (call, id) in enumerate(zip(calls, approval_ids, strict=True), first or 1)
    )
    out.table(make_table(columns, rows))


def _write_brief(out: Output, call: PendingCall, number: str) -> None:
    out.line(Text(f"{number}{terminal.format_titled_call(call)}", style="bold yellow"))
    out.line(Text(f"  {terminal.escape(call.approval_id)}"))
    times = f"waiting {words.format_waiting_time(call)}, {words.format_time_left(call)} left"
    about = f"{times}; asked by {terminal.escape(call.agent)}; {words.format_approvers(call)}"
    out.hanging(Text("  "), [Text(about, style="dim")])


async def authorize(
    ctx: CommandContext,
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Approval ID from `pending`, or an invocation ID.", autocompletion=complete_id
        ),
    ],
    call: CallId = None,
    credentials: Annotated[str, typer.Option(metavar="STORE", help="The workers' credential store.")] = str(
        CREDENTIALS
    ),
    by: By = None,
    json: AsJson = False,
) -> Exit:
    """Provide the credential that a call is waiting for.

    Prompts for a login or a key and saves the credential in the store.
    """
    from waystation.auth import open_store  # slow to import, because it loads the tools' authentication code

    out, client, store = ctx.out, await ctx.connect(), open_store(credentials)
    pending_call = await _find_credential_call(client, id, call)
    await ctx.compare_stores(credentials=store)
    uri = terminal.get_login_uri(pending_call)
    if uri is not None:
        out.remark("Log in at this address. Then enter the address of the page that you end up on:")
        out.remark(terminal.escape(uri))
    out.remark(f"The credential will be saved in {describe_place(credentials)}.")
    # Read the input in a thread, because reading from a terminal blocks.
    text = (await asyncio.to_thread(_read_hidden, f"{_name_credential(pending_call)} (not shown): ")).strip()
    if not text:
        raise CommandProblem(Exit.USAGE, "No credential was entered. The call is still waiting.")
    credential: dict[str, Any] = {"credential": text} if uri is None else {"auth_response_uri": text}
    try:
        receipt = await client.invocation(pending_call.invocation_id).authorize(
            pending_call.function_call_id, store=store, by=by, **credential
        )
    except ValueError as error:  # the text does not match the auth scheme; the message does not contain the secret
        raise CommandProblem(Exit.USAGE, str(error)) from None
    call_id = terminal.escape(pending_call.function_call_id)
    about = f" {terminal.format_call(pending_call)} [{call_id}] of {terminal.escape(id)}"
    out.result(receipt, Text.assemble(("authorized", "bold"), about))
    return Exit.OK


async def _find_credential_call(client: AgentClient, id: str, call_id: str | None) -> PendingCall:
    id, call_id = await _parse_id(client, id, call_id)
    calls = [
        call
        for call in await _fetch_pending(client, id)
        if call.kind == "credential" and call_id in (None, call.function_call_id)
    ]
    if not calls:
        subject = f"Call {call_id!r} is not waiting" if call_id else "No call is waiting"
        raise CommandProblem(Exit.UNKNOWN, f"{subject} for a credential in {id!r}.")
    if len(calls) > 1:
        names = ", ".join(f"{call.invocation_id} {call.function_call_id}" for call in calls)
        raise CommandProblem(Exit.UNKNOWN, f"Several calls are waiting for a credential. Name one of them: {names}.")
    return calls[0]


def _name_credential(call: PendingCall) -> str:
    scheme = terminal.get_auth_scheme(call)
    match scheme.get("type"):
        case "apiKey":
            return (
                f"API key for the {terminal.escape(str(scheme.get('in')))} {terminal.escape(str(scheme.get('name')))}"
            )
        case "http" if scheme.get("scheme") == "basic":
            return "user:password"
        case "http":
            return "Token"
        case _:
            return "Address"


def _read_hidden(prompt: str) -> str:
    """Read one line from the terminal without echoing it, or from standard input if that is not a terminal."""
    if sys.stdin.isatty():
        return getpass.getpass(prompt)
    return sys.stdin.readline()
