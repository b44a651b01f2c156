"""What a person is shown and asked who answers calls in a terminal: the list, the call, what the answer lacks."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from waystation.cli.exit_codes import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.target import Target, quoted
from waystation.cli.terminal_input import NOTHING_SENT, Person
from waystation.core.answer import Action, PendingCall
from waystation.core.payload import JsonObject, decode
from waystation.presentation import policy_terms, terminal

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
    given = dict(fields)
    if action == "edit" and given.get("args") is None:
        given["args"] = _edited(person, out, call)
    if action in ("respond", "progress") and given.get("response") is None:
        given["response"] = _response(person, out, call, action)
    if not given.get("comment"):
        wanted = policy_terms.needs_comment(call) and action not in WITHOUT_COMMENT
        given["comment"] = _insisted(person, "Comment") if wanted else person.ask("Comment, if any") or None
    if action == "approve" and call.policy and call.policy.remember and not given.get("remember"):
        length = terminal.span(call.policy.remember.total_seconds())
        given["remember"] = person.agrees(f"Have calls like this one run unasked for {length}?") or None
    if not person.agrees(f"Send {action!r}?"):
        raise Problem(Exit.FAILED, NOTHING_SENT)
    return given


def difference(before: JsonObject, after: JsonObject) -> Iterator[Text]:
    """Yield the lines of a unified diff of two objects."""
    asked, edited = (terminal.safe_json(value, indent=2).splitlines() for value in (before, after))
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in difflib.unified_diff(asked, edited, "asked", "edited", lineterm=""):
        yield Text(line, style=styles.get(line[0], ""))


def _edited(person: Person, out: Output, call: PendingCall) -> JsonObject:
    """Have the arguments changed, in an editor or one by one, and show what changes."""
    text = terminal.safe_json(call.args, indent=2) + "\n"
    args = person.edited_into(_object, out, text, undone=NOTHING_SENT)
    if args is None:
        args = {name: _asked(person, out, name, value) for name, value in call.args.items()}
    if args == call.args:
        raise Problem(Exit.FAILED, f"The arguments are unchanged; `approve` has the call run with them. {NOTHING_SENT}")
    for line in difference(_unsecret(call.args), _unsecret(args)):
        out.line(line)
    return args


def _unsecret(args: JsonObject) -> JsonObject:
    return {name: terminal.unsecret(name, value) for name, value in args.items()}


def _asked(person: Person, out: Output, name: str, value: Any) -> Any:
    """Ask for one value of the kind that it has now; texts as they are, anything else as JSON."""
    visible = terminal.unsecret(name, value)
    shown = visible if isinstance(visible, str) else terminal.safe_json(visible)
    while True:
        said = person.ask(f"  {terminal.safe(name)}", terminal.safe(shown))
        if said == terminal.safe(shown):
            return value
        if isinstance(value, str):
            return said
        try:
            return decode(said)
        except ValueError:
            out.line(f"{said!r} is no JSON.", style="red")


def _response(person: Person, out: Output, call: PendingCall, action: Action) -> JsonObject:
    """Ask for a response: the fields of its schema, or the whole as JSON."""
    fields = (call.response_schema or {}).get("properties")
    if action == "progress" or not isinstance(fields, dict) or not fields:
        while True:
            said = person.ask('Response, as JSON, such as {"status": "done"}')
            try:
                return _object(said)
            except ValueError as error:
                out.line(f"{error}.", style="red")
    required = (call.response_schema or {}).get("required") or ()
    asked = {name: _field(person, out, name, field, name in required) for name, field in fields.items()}
    return {name: value for name, value in asked.items() if value is not _LEFT_OUT}


_LEFT_OUT: Any = object()
_WRITTEN: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number, such as 12"),
    "number": ((int, float), "a number, such as 12.5"),
    "array": ((list,), 'JSON, such as ["one", "two"]'),
    "object": ((dict,), 'JSON, such as {"name": "value"}'),
}
"""What JSON of a type becomes, and how it is written."""


def _field(person: Person, out: Output, name: str, schema: Any, required: bool) -> Any:
    """Ask for one field of a response, of the type that its schema says."""
    about = schema if isinstance(schema, dict) else {}
    choices = about.get("enum")
    kind = str(about.get("type") or "")
    types, written = _WRITTEN.get(kind, ((), ""))
    hints = [text for text in (written if kind == "boolean" else kind, str(about.get("description") or "")) if text]
    hints += [f"one of {', '.join(map(str, choices))}"] if isinstance(choices, list) else []
    hints += [] if required else ["optional"]
    about_it = terminal.safe("; ".join(hints))
    prompt = f"  {terminal.safe(name)}{f' ({about_it})' if hints else ''}"
    while True:
        said = person.ask(prompt)
        if not said and not required:
            return _LEFT_OUT
        value: Any = said
        if about.get("type") not in ("string", None) or (isinstance(choices, list) and said not in choices):
            try:
                value = decode(said)
                if types and type(value) not in types:  # not isinstance: true is no integer
                    raise ValueError
            except ValueError:
                remedy = f"; write {written}" if written else ""
                out.line(f"{said!r} is no {kind or 'such value'}{remedy}.", style="red")
                continue
        if isinstance(choices, list) and value not in choices:
            out.line(f"{said!r} is none of them.", style="red")
            continue
        if said or about.get("type") == "string":
            return value


def _insisted(person: Person, prompt: str) -> str:
    while True:
        if said := person.ask(f"{prompt}, which the policy asks for"):
            return said


def _object(text: str) -> JsonObject:
    try:
        value = decode(text)
    except ValueError as error:
        raise ValueError(f"That is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("That is no JSON object")
    return value


def write_list(out: Output, target: Target, calls: Sequence[PendingCall], *, numbered: bool = False) -> None:
    """Write many calls briefly, in a table where that fits; `numbered`: the first of them, to choose from."""
    left_out = len(calls) - MAX_LISTED if numbered else 0
    calls = calls[:MAX_LISTED] if numbered else calls
    ids = [quoted(call.approval_id) for call in calls]
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
            out.command(action, target.approval_command(action, call.approval_id))


def _table(calls: Sequence[PendingCall], ids: list[str], *, wide: bool, numbered: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=False)
    if numbered:
        table.add_column("#", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("call", ratio=1, overflow="fold", style="bold yellow")
    if wide:
        table.add_column("asked by", overflow="fold", max_width=18)
    table.add_column("waits", no_wrap=True, justify="right")
    table.add_column("left", no_wrap=True, justify="right")
    table.add_column("who", overflow="fold", max_width=24 if wide else 14)
    for number, (call, id) in enumerate(zip(calls, ids, strict=True), 1):
        row = [Text(id), Text(terminal.asked(call)), Text(policy_terms.waited(call)), Text(policy_terms.left(call))]
        row.append(Text(policy_terms.who(call), style="dim"))
        if wide:
            row.insert(2, Text(f"{terminal.safe(call.agent)}, for {terminal.safe(call.requester or call.user_id)}"))
        table.add_row(*([Text(str(number))] if numbered else []), *row)
    return table


def _brief(out: Output, call: PendingCall, number: str) -> None:
    out.line(Text(f"{number}{terminal.asked(call)}", style="bold yellow"))
    out.line(Text(f"  {terminal.safe(call.approval_id)}"))
    about = f"waits {policy_terms.waited(call)}, {policy_terms.left(call)} left; asked by {terminal.safe(call.agent)}"
    out.hanging(Text("  "), [Text(f"{about}; {policy_terms.who(call)}", style="dim")])
