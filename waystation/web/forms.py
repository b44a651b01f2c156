"""HTML forms: parse what browsers send, and create fields for JSON values.

A form has one field for each argument of a call, or for each property of a JSON schema.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from http import HTTPStatus
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from waystation.core.errors import NotJson
from waystation.core.payload import JsonObject, decode_foreign
from waystation.core.secrets import has_named_secret
from waystation.presentation.text_safety import escape, is_invisible
from waystation.web.http_responses import RequestRefused

Kind = Literal["line", "lines", "integer", "number", "boolean", "choice", "date", "moment", "json"]
_FORMATS: Mapping[Any, Kind] = {"date": "date", "date-time": "moment"}
LONG = 80
"""Maximum length of a string in a one-line field. A longer string gets a field with several lines."""
MAX_TYPED = 10_000
"""Maximum length of a string in a text field. A string that is longer or has invisible characters is edited as JSON."""
MAX_FIELDS = 100
MAX_SENT_FIELDS = 2_000
YES_NO = (("true", "yes"), ("false", "no"))
PREFIX = "value."
WHOLE = "json"
"""Name of the field that contains all values as one JSON object."""

Form: TypeAlias = ImmutableMultiDict[str, str]
"""The fields of a form that was sent. If several fields have the same name, `get` returns the last of them."""


def parse_form(body: bytes) -> Form:
    """Parse a form without checking which page sent it.

    Raises:
        Refused: The body is not a form.
    """
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MAX_SENT_FIELDS
        )
    except ValueError:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", "The body is not a valid form.") from None
    # Convert line breaks, because browsers send them as CRLF.
    return Form([(name, value.replace("\r\n", "\n")) for name, value in pairs])


async def read_form(request: Request) -> Form:
    """Read a form, and check that it comes from a page of the same login.

    Raises:
        Refused: The body is not a form, or the form does not come from a page of this login.
    """
    form, login = parse_form(await request.body()), request.state.login
    csrf = form.get("csrf", "").encode(errors="replace")
    if not (login.browser and hmac.compare_digest(csrf, login.csrf.encode())):
        text = "This page was opened before you logged in. Open it again, then send the form."
        raise RequestRefused(HTTPStatus.FORBIDDEN, "ForeignForm", text)
    return form


class InvalidForm(Exception):
    """A person entered something invalid. The message says what is wrong, or what to enter instead."""

    def __init__(self, message: str, fields: Sequence["Field"] | None = None) -> None:
        self.fields = fields
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form, for one value to fill in."""

    key: str
    kind: Kind
    value: str = ""
    required: bool = False
    text: str = ""
    """The description from the schema."""
    choices: tuple[tuple[str, str], ...] = ()
    """The options of a `choice` or `boolean` field: pairs of a value in JSON form and its label."""
    bounds: tuple[tuple[str, str], ...] = ()
    """The `min` and `max` attributes for the browser, which checks the value before sending it."""
    error: str = ""
    keep_empty: bool = False
    """Whether an empty string is a value. If not, an empty field is left out of the result."""
    secret: bool = False
    """Whether the name suggests a secret. The form does not show a secret value, and an empty field keeps the value."""
    current: Any = None
    """The value of a secret field."""

    @property
    def name(self) -> str:
        """The field's name in the HTML form."""
        return PREFIX + self.key

    @property
    def moment(self) -> datetime | None:
        """The date and time in a field of the kind `moment`, in the server's zone. None if it is empty or invalid."""
        with suppress(ValueError, InvalidForm):
            return _read_moment(self.value).astimezone() if self.kind == "moment" else None
        return None


def make_argument_fields(args: JsonObject) -> list[Field]:
    """Return a field for each argument. The kind of field depends on the current value."""
    return [
        _make_secret_field(name, value) if has_named_secret(value, name) else _make_value_field(name, value)
        for name, value in args.items()
    ]


def make_schema_fields(schema: JsonObject) -> list[Field] | None:
    """Return a field for each property.

    Return None if the schema is not an object with named properties, or has more than `MAX_FIELDS` of them.
    """
    resolved = _resolve(schema, schema)
    properties = resolved.get("properties")
    if not isinstance(properties, dict) or not 0 < len(properties) <= MAX_FIELDS:
        return None
    required = resolved.get("required")
    needed = set(required) if isinstance(required, list) else set()
    return [_make_property_field(str(key), part, schema, key in needed) for key, part in properties.items()]


def parse_fields(fields: Iterable[Field], form: Form) -> JsonObject:
    """Return the values that were filled in, and the current values of secret fields that were left empty.

    Raises:
        InvalidInput: Some values are invalid. `fields` contains all fields as filled in, with errors on invalid ones.
    """
    values: JsonObject = {}
    again: list[Field] = []
    for field in fields:
        text = form.get(field.name, "")
        filled = replace(field, value=text)
        is_missing = text.strip() == "" and not (field.keep_empty and field.kind in ("line", "lines"))
        if field.secret and not text:
            values[field.key], filled = field.current, field
        elif is_missing:
            filled = replace(filled, error="Fill this in." if field.required else "")
        else:
            try:
                values[field.key] = _parse(field, text)
            except InvalidForm as error:
                filled = replace(filled, error=str(error))
        again.append(filled)
    if any(field.error for field in again):
        raise InvalidForm("Some fields are invalid; see below.", again)
    return values


def parse_object(text: str) -> JsonObject:
    """Parse a JSON object.

    Raises:
        InvalidInput: The text is not a JSON object.
    """
    value = _json(text)
    if not isinstance(value, dict):
        raise InvalidForm('Enter one JSON object, such as {"name": "value"}.')
    return value


def parse_response(text: str) -> JsonObject:
    """Parse a response, which is either a JSON object or any other text, which becomes the field `result`.

    Raises:
        InvalidInput: The text is empty, or starts with `{` but is not a JSON object.
    """
    if not text.strip():
        raise InvalidForm("Enter a response for the agent.")
    return parse_object(text) if text.lstrip().startswith("{") else {"result": text}


def format_json(value: object) -> str:
    """Format a value as JSON for editing, with invisible characters escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return "".join(escape(char) if is_invisible(char) else char for char in text)


def _make_secret_field(key: str, value: Any) -> Field:
    field = _make_value_field(key, value)
    kind: Kind = "json" if field.kind in ("json", "lines", "boolean") else field.kind
    return replace(field, kind=kind, value="", required=False, secret=True, current=value, choices=())


def _make_value_field(key: str, value: Any) -> Field:
    match value:
        case bool():
            return Field(key, "boolean", "true" if value else "false", required=True, choices=YES_NO)
        case int() | float():  # the tool may take any number where the value is a whole one
            return Field(key, "number", json.dumps(value), required=True)
        case str() if len(value) <= MAX_TYPED and not any(is_invisible(char) for char in value):
            kind: Kind = "lines" if "\n" in value or len(value) > LONG else "line"
            return Field(key, kind, value, keep_empty=True)
        case _:
            return Field(key, "json", format_json(value), required=True)


def _make_property_field(key: str, part: Any, schema: JsonObject, required: bool) -> Field:
    resolved = _resolve(part if isinstance(part, dict) else {}, schema)
    default = resolved.get("default")
    field = Field(
        key,
        "json",
        required=required,
        text=str(resolved.get("description") or ""),
        value=format_json(default) if "default" in resolved else "",
    )
    choices = resolved.get("enum", [resolved["const"]] if "const" in resolved else None)
    if isinstance(choices, list) and choices:
        listed = tuple(
            (json.dumps(choice), choice if isinstance(choice, str) else format_json(choice)) for choice in choices
        )
        return replace(field, kind="choice", choices=listed, value=json.dumps(default) if "default" in resolved else "")
    match resolved.get("type"):
        case "string":
            longest = resolved.get("maxLength")
            is_long = isinstance(longest, int) and longest > LONG * 2
            kind = _FORMATS.get(resolved.get("format"), "lines" if is_long else "line")
            # Do not set `keep_empty`: an optional string whose field is empty is left out of the result.
            return replace(field, kind=kind, value=default if isinstance(default, str) else "")
        case "boolean":
            return replace(field, kind="boolean", choices=YES_NO)
        case "integer" | "number" as kind:
            limits = (("minimum", "min"), ("maximum", "max"))
            bounds = tuple((to, json.dumps(resolved[of])) for of, to in limits if of in resolved)
            return replace(field, kind=kind, bounds=bounds)
        case _:
            return field


def _resolve(part: JsonObject, schema: JsonObject, depth: int = 0) -> JsonObject:
    """Follow a schema's reference, and replace a choice between null and one other type with that other type."""
    for key in ("$ref", "anyOf", "oneOf"):
        target = _find_target(part.get(key), schema)
        if target is not None and depth < 10:
            beside = {name: value for name, value in part.items() if name != key}
            return _resolve({**target, **beside}, schema, depth + 1)
    kind = part.get("type")
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        return {**part, "type": kinds[0] if len(kinds) == 1 else None}
    # In Gemini's schemas, types are in upper case.
    return {**part, "type": kind.lower()} if isinstance(kind, str) else part


def _find_target(value: Any, schema: JsonObject) -> JsonObject | None:
    target = None
    if isinstance(value, list):
        alternatives = [part for part in value if isinstance(part, dict) and part.get("type") != "null"]
        target = alternatives[0] if len(alternatives) == 1 else None
    elif isinstance(value, str) and value.startswith("#/"):
        target = schema
        for step in value[2:].split("/"):
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    return target if isinstance(target, dict) else None


def _parse(field: Field, text: str) -> Any:
    parse, advice = _PARSERS[field.kind]
    try:
        return parse(field, text)
    except (ValueError, NotJson):
        raise InvalidForm(advice) from None


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
    return _read_moment(text).isoformat()


def _read_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.strip())
    # Without a script, browsers do not send a time zone. Assume the server's, because pages show times in it, too.
    return moment if moment.tzinfo else moment.astimezone()


_TEXT: tuple[Callable[[Field, str], Any], str] = (lambda _, text: text, "")
_CHOICE: tuple[Callable[[Field, str], Any], str] = (_choice, "Choose one of the options.")
_PARSERS: Mapping[Kind, tuple[Callable[[Field, str], Any], str]] = {
    "line": _TEXT,
    "lines": _TEXT,
    "json": (lambda _, text: _json(text), ""),
    "boolean": _CHOICE,
    "choice": _CHOICE,
    "integer": (_integer, "Enter a whole number."),
    "number": (_number, "Enter a number, such as 12.5."),
    "date": (lambda _, text: date.fromisoformat(text.strip()).isoformat(), "Enter a date, such as 2026-05-31."),
    "moment": (_moment, "Enter a date and a time, such as 2026-05-31T12:00."),
}
"""The parser for each kind of field, and the message to show if the parser fails without a message of its own."""


def _json(text: str) -> Any:
    try:
        return decode_foreign(text.encode())
    except NotJson as error:
        raise InvalidForm(f"This value cannot be recorded: it contains {error.found}.") from None
    except ValueError as error:
        where = re.search(r"line (\d+)", str(error))
        raise InvalidForm(f"This is not valid JSON{f'; see line {where[1]}' if where else ''}.") from None
