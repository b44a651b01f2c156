"""The interactive form of the commands that answer: shows the call, and asks the person for what is missing."""

import difflib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rich.text import Text

from waystation.cli.exits import Exit, Problem
from waystation.cli.output import Output
from waystation.cli.person import NOTHING_SENT, Person
from waystation.cli.target import Target
from waystation.cli.waiting import MAX_LISTED, listing
from waystation.core.answer import Action, PendingCall
from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject, decode
from waystation.presentation import policy_terms, terminal

T = TypeVar("T")

NEEDED = {"edit": ("args", "--args"), "respond": ("response", "--response"), "progress": ("response", "--response")}
"""What some actions cannot do without, and its option."""
NOTED = ("claim", "release", "progress")
"""Actions for which no policy asks for a comment."""


def lacking(action: Action, call: PendingCall | None, fields: JsonObject) -> list[str]:
    """Return the options that are missing for an answer."""
    missing = []
    if action in NEEDED and fields.get(NEEDED[action][0]) is None:
        missing.append(NEEDED[action][1])
    if call and action not in NOTED and policy_terms.needs_comment(call) and not fields.get("comment"):
        missing.append("--comment")
    return missing


def choose(person: Person, out: Output, target: Target, calls: list[PendingCall]) -> PendingCall:
    """Have the person choose one of several calls.

    Raises:
        Problem: They choose none.
    """
    if len(calls) == 1:
        return calls[0]
    shown = calls[:MAX_LISTED]
    listing(out, target, shown, numbered=True)
    if len(calls) > len(shown):
        out.line(f"… and {len(calls) - len(shown)} more; `pending` lists all of them, with their ids.")
    chosen = person.ask(f"Which one, 1 to {len(shown)}")
    if not chosen.isdecimal() or not 1 <= int(chosen) <= len(shown):
        raise Problem(Exit.USAGE, f"{chosen!r} is none of them. {NOTHING_SENT}")
    return calls[int(chosen) - 1]


def show(out: Output, call: PendingCall) -> None:
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
    for label, text in facts:
        out.hanging(Text(f"  {label:8} ", style="dim"), [Text(text)])
    out.line(Text("  with", style="dim"))
    for line in terminal.safe_json(_unsecret(call.args), indent=2).splitlines():
        out.line(f"    {line}")
    out.line()


def fill(person: Person, out: Output, call: PendingCall, action: Action, fields: JsonObject) -> JsonObject:
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
        wanted = policy_terms.needs_comment(call) and action not in NOTED
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
    args = _in_editor(person, out, call.args)
    if args is None:
        args = {name: _asked(person, out, name, value) for name, value in call.args.items()}
    if args == call.args:
        raise Problem(Exit.FAILED, f"The arguments are unchanged; `approve` has the call run with them. {NOTHING_SENT}")
    for line in difference(_unsecret(call.args), _unsecret(args)):
        out.line(line)
    return args


def _unsecret(args: JsonObject) -> JsonObject:
    return {name: terminal.unsecret(name, value) for name, value in args.items()}


def _in_editor(person: Person, out: Output, args: JsonObject) -> JsonObject | None:
    """Have arguments changed in the person's editor; None when they have none."""
    return edited_into(_object, person, out, terminal.safe_json(args, indent=2) + "\n", undone=NOTHING_SENT)


def edited_into(read: Callable[[str], T], person: Person, out: Output, text: str, *, undone: str) -> T | None:
    """Have a text changed in the person's editor, as often as it takes until `read` takes it; None without an editor.

    Raises:
        Problem: The person would rather not; `undone` says what was not done.
    """
    while (left := person.edited(text)) is not None:
        try:
            return read(left)
        except (ValueError, WaystationError) as error:
            out.line(terminal.safe(f"{str(error).removesuffix('.')}."), style="red")
        if not person.agrees("Edit it again?"):
            raise Problem(Exit.FAILED, undone)
        text = left
    return None


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
