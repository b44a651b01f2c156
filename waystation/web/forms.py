"""Forms: those that browsers send, and fields for JSON values in them.

There is a field for each argument of a call, or for each property of a schema.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from http import HTTPStatus
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from waystation.core import SECRET_NAMES, JsonObject, NotJson, decode_foreign
from waystation.presentation.text_safety import escaped, hides
from waystation.web.responses import Refused

Kind = Literal["line", "lines", "integer", "number", "boolean", "choice", "date", "moment", "json"]
_FORMATS: Mapping[Any, Kind] = {"date": "date", "date-time": "moment"}
LONG = 80
"""Characters from which a text gets several lines."""
MAX_TYPED = 10_000
"""Longer texts are edited as JSON, which shows what hides in them."""
MAX_FIELDS = 100
MAX_SENT_FIELDS = 2_000
YES_NO = (("true", "yes"), ("false", "no"))
PREFIX = "value."
WHOLE = "json"
"""The field that holds everything as JSON, where there are no fields for the parts."""

Form: TypeAlias = ImmutableMultiDict[str, str]
"""The fields of a form that was sent; of several with one name `get` returns the last."""


def parse_form(body: bytes) -> Form:
    """Return the fields of a form, from any page.

    Raises:
        Refused: It is no form.
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MAX_SENT_FIELDS
        )
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "InvalidRequest", "This is not a form as browsers send it.") from None
    # Only in forms do lines end like this.
    return Form([(name, value.replace("\r\n", "\n")) for name, value in pairs])


async def read_form(request: Request) -> Form:
    """Return the form that was sent from a page of the login that sends it.

    Raises:
        Refused: It is none, or from another page.
    """
    form, login = parse_form(await request.body()), request.state.login
    csrf = form.get("csrf", "").encode(errors="replace")
    if not (login.browser and hmac.compare_digest(csrf, login.csrf.encode())):
        text = "This form is not from a page that you opened since you logged in. Open it again, and send it then."
        raise Refused(HTTPStatus.FORBIDDEN, "ForeignForm", text)
    return form


class InvalidInput(Exception):
    """A person typed something that cannot be taken; the message says what to write instead."""

    def __init__(self, message: str, fields: Sequence["Field"] | None = None) -> None:
        self.fields = fields
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Field:
    """One value that a person fills in."""

    key: str
    kind: Kind
    value: str = ""
    required: bool = False
    text: str = ""
    """What the author of the schema says of it."""
    choices: tuple[tuple[str, str], ...] = ()
    """For `choice`: the value as JSON, and how it reads."""
    bounds: tuple[tuple[str, str], ...] = ()
    """Further attributes for the browser; what is sent is looked at again."""
    error: str = ""
    keep_empty: bool = False
    """Whether an empty text is a value, rather than none."""
    secret: bool = False
    """Whether its name is that of a secret: the value stays out of the form, and is kept when nothing is filled in."""
    kept: Any = None

    @property
    def name(self) -> str:
        """The name under which it is sent."""
        return PREFIX + self.key


def of_arguments(args: JsonObject) -> list[Field]:
    """Return a field for each argument, of the kind that its recorded value has."""
    return [
        _of_secret(key, value) if SECRET_NAMES.search(key) else _of_value(key, value) for key, value in args.items()
    ]


def of_schema(schema: JsonObject) -> list[Field] | None:
    """Return a field for each property; None for a schema that is not of an object with named properties."""
    found = _resolved(schema, schema)
    properties = found.get("properties")
    if not isinstance(properties, dict) or not 0 < len(properties) <= MAX_FIELDS:
        return None
    required = found.get("required")
    needed = set(required) if isinstance(required, list) else set()
    return [_of_property(str(key), part, schema, key in needed) for key, part in properties.items()]


def read(fields: Iterable[Field], form: Form) -> JsonObject:
    """Return the values of fields as they were filled in.

    Raises:
        InvalidInput: Some do not fit; it has the fields again, each with what is wrong with it.
    """
    values: JsonObject = {}
    again: list[Field] = []
    for field in fields:
        text = form.get(field.name, "")
        filled = replace(field, value=text)
        is_missing = text.strip() == "" and not (field.keep_empty and field.kind in ("line", "lines"))
        if field.secret and not text:
            values[field.key], filled = field.kept, field
        elif is_missing:
            filled = replace(filled, error="Fill this in." if field.required else "")
        else:
            try:
                values[field.key] = _parse(field, text)
            except InvalidInput as error:
                filled = replace(filled, error=str(error))
        again.append(filled)
    if any(field.error for field in again):
        raise InvalidInput("Some fields need another look.", again)
    return values


def parse_object(text: str) -> JsonObject:
    """Return the JSON object that was typed.

    Raises:
        InvalidInput: It is none.
    """
    value = _json(text)
    if not isinstance(value, dict):
        raise InvalidInput('Write one JSON object, such as {"name": "value"}.')
    return value


def parse_response(text: str) -> JsonObject:
    """Return what was typed as a response: an object as it stands, any other text as its `result`.

    Raises:
        InvalidInput: It is empty, or begins like an object, but is none.
    """
    if not text.strip():
        raise InvalidInput("Write what the agent is told.")
    return parse_object(text) if text.lstrip().startswith("{") else {"result": text}


def format_json(value: object) -> str:
    """Return JSON to be edited: characters that cannot be seen are written out."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return "".join(escaped(char) if hides(char) else char for char in text)


def _of_secret(key: str, value: Any) -> Field:
    field = _of_value(key, value)
    kind: Kind = "json" if field.kind in ("json", "lines", "boolean") else field.kind
    return replace(field, kind=kind, value="", required=False, secret=True, kept=value, choices=())


def _of_value(key: str, value: Any) -> Field:
    match value:
        case bool():
            return Field(key, "boolean", "true" if value else "false", required=True, choices=YES_NO)
        case int() | float():  # a whole number may stand where the tool takes any
            return Field(key, "number", json.dumps(value), required=True)
        case str() if len(value) <= MAX_TYPED and not any(hides(char) for char in value):
            kind: Kind = "lines" if "\n" in value or len(value) > LONG else "line"
            return Field(key, kind, value, keep_empty=True)
        case _:
            return Field(key, "json", format_json(value), required=True)


def _of_property(key: str, part: Any, schema: JsonObject, required: bool) -> Field:
    found = _resolved(part if isinstance(part, dict) else {}, schema)
    default = found.get("default")
    field = Field(
        key,
        "json",
        required=required,
        text=str(found.get("description") or ""),
        value=format_json(default) if "default" in found else "",
    )
    choices = found.get("enum", [found["const"]] if "const" in found else None)
    if isinstance(choices, list) and choices:
        listed = tuple(
            (json.dumps(choice), choice if isinstance(choice, str) else format_json(choice)) for choice in choices
        )
        return replace(field, kind="choice", choices=listed, value=json.dumps(default) if "default" in found else "")
    match found.get("type"):
        case "string":
            longest = found.get("maxLength")
            is_long = isinstance(longest, int) and longest > LONG * 2
            kind = _FORMATS.get(found.get("format"), "lines" if is_long else "line")
            # An empty text is one, unless the author says that it has to have something in it.
            return replace(field, kind=kind, value=default if isinstance(default, str) else "")
        case "boolean":
            return replace(field, kind="boolean", choices=YES_NO)
        case "integer" | "number" as kind:
            limits = (("minimum", "min"), ("maximum", "max"))
            bounds = tuple((to, json.dumps(found[of])) for of, to in limits if of in found)
            return replace(field, kind=kind, bounds=bounds)
        case _:
            return field


def _resolved(part: JsonObject, schema: JsonObject, depth: int = 0) -> JsonObject:
    """Return a schema with its reference followed, and of alternatives the only one that is not null."""
    for key in ("$ref", "anyOf", "oneOf"):
        target = _target(part.get(key), schema)
        if target is not None and depth < 10:
            beside = {name: value for name, value in part.items() if name != key}
            return _resolved({**target, **beside}, schema, depth + 1)
    kind = part.get("type")
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        return {**part, "type": kinds[0] if len(kinds) == 1 else None}
    # Gemini's schemas name types in capitals.
    return {**part, "type": kind.lower()} if isinstance(kind, str) else part


def _target(value: Any, schema: JsonObject) -> JsonObject | None:
    found = None
    if isinstance(value, list):
        alternatives = [part for part in value if isinstance(part, dict) and part.get("type") != "null"]
        found = alternatives[0] if len(alternatives) == 1 else None
    elif isinstance(value, str) and value.startswith("#/"):
        found = schema
        for step in value[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _parse(field: Field, text: str) -> Any:
    parse, advice = _PARSERS[field.kind]
    try:
        return parse(field, text)
    except (ValueError, NotJson):
        raise InvalidInput(advice) from None


def _choice(field: Field, text: str) -> Any:
    if text not in dict(field.choices):
        raise ValueError
    return json.loads(text)


def _integer(_: Field, text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text, re.ASCII):
        raise ValueError
    return int(text)


def _number(_: Field, text: str) -> int | float:
    value = decode_foreign(text.encode())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return value


def _moment(_: Field, text: str) -> str:
    moment = datetime.fromisoformat(text.strip())
    # What browsers send has no zone. As in the rest of the page, the time is this server's.
    return (moment if moment.tzinfo else moment.astimezone()).isoformat()


_TEXT: tuple[Callable[[Field, str], Any], str] = (lambda _, text: text, "")
_CHOICE: tuple[Callable[[Field, str], Any], str] = (_choice, "Choose one of those that are offered.")
_PARSERS: Mapping[Kind, tuple[Callable[[Field, str], Any], str]] = {
    "line": _TEXT,
    "lines": _TEXT,
    "json": (lambda _, text: _json(text), ""),
    "boolean": _CHOICE,
    "choice": _CHOICE,
    "integer": (_integer, "Write a whole number."),
    "number": (_number, "Write a number, such as 12.5."),
    "date": (lambda _, text: date.fromisoformat(text.strip()).isoformat(), "Write a date, such as 2026-05-31."),
    "moment": (_moment, "Write a date and a time, such as 2026-05-31T12:00."),
}
"""The parser of each kind of field, and the advice for a text that it does not take."""


def _json(text: str) -> Any:
    try:
        return decode_foreign(text.encode())
    except NotJson as error:
        raise InvalidInput(f"This cannot be recorded: it has {error.found}.") from None
    except ValueError as error:
        where = re.search(r"line (\d+)", str(error))
        raise InvalidInput(f"This is not JSON{f'; see line {where[1]}' if where else ''}.") from None
