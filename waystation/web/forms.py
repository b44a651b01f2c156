"""Fields of a form for JSON values: one for each argument of a call, or for each property of a schema."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Literal, cast

from waystation.core.errors import NotJson
from waystation.core.payload import JsonObject, decode_foreign
from waystation.core.summary import SECRET_NAMES
from waystation.presentation.text_safety import escaped, hides
from waystation.web.posted import Posted

Kind = Literal["line", "lines", "integer", "number", "boolean", "choice", "date", "moment", "json"]
_KINDS: Mapping[Any, Kind] = {"string": "line", "integer": "integer", "number": "number", "boolean": "boolean"}
_FORMATS: Mapping[Any, Kind] = {"date": "date", "date-time": "moment"}
LONG = 80
"""Characters from which a text gets several lines."""
MAX_TYPED = 10_000
"""Longer texts are edited as JSON, which shows what hides in them."""
MAX_FIELDS = 100
PREFIX = "value."
WHOLE = "json"
"""The field that holds everything as JSON, where there are no fields for the parts."""


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


def read(fields: Iterable[Field], form: Posted) -> tuple[JsonObject, list[Field]]:
    """Return the values of fields as they were filled in, and the fields again, each with what is wrong with it."""
    values: JsonObject = {}
    again: list[Field] = []
    for field in fields:
        given = form.text(field.name)
        if field.secret and not given:
            values[field.key] = field.kept
            again.append(field)
            continue
        filled = replace(field, value=given)
        if given.strip() == "" and not (field.keep_empty and field.kind in ("line", "lines")):
            again.append(replace(filled, error="Fill this in." if field.required else ""))
            continue
        try:
            values[field.key] = _value(field, given)
            again.append(filled)
        except ValueError as error:
            again.append(replace(filled, error=str(error)))
    return values, again


def object_of(text: str) -> JsonObject:
    """Return the JSON object that was typed.

    Raises:
        ValueError: It is none; the text says so to whoever typed it.
    """
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError('Write one JSON object, such as {"name": "value"}.')
    return value


def said(text: str) -> JsonObject:
    """Return what was typed as a response: an object as it stands, any other text as its `result`.

    Raises:
        ValueError: It begins like an object, but is none.
    """
    return object_of(text) if text.lstrip().startswith("{") else {"result": text}


def written(value: object) -> str:
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
            return _boolean(Field(key, "boolean", "true" if value else "false", required=True))
        case int() | float():  # a whole number may stand where the tool takes any
            return Field(key, "number", json.dumps(value), required=True)
        case str() if len(value) <= MAX_TYPED and not any(hides(char) for char in value):
            kind: Kind = "lines" if "\n" in value or len(value) > LONG else "line"
            return Field(key, kind, value, keep_empty=True)
        case _:
            return Field(key, "json", written(value), required=True)


def _of_property(key: str, part: Any, schema: JsonObject, required: bool) -> Field:
    found = _resolved(part if isinstance(part, dict) else {}, schema)
    text = found.get("description") or ""
    field = Field(key, "json", required=required, text=str(text), value=_default(found))
    choices = found.get("enum", [found["const"]] if "const" in found else None)
    if isinstance(choices, list) and choices:
        listed = tuple(
            (json.dumps(choice), choice if isinstance(choice, str) else written(choice)) for choice in choices
        )
        return replace(
            field, kind="choice", choices=listed, value=json.dumps(found.get("default")) if "default" in found else ""
        )
    kind = found.get("type")
    if kind == "string":
        longest = found.get("maxLength")
        is_long = isinstance(longest, int) and longest > LONG * 2
        drawn: Kind = _FORMATS.get(found.get("format"), "lines" if is_long else "line")
        default = found.get("default")
        # An empty text is one, unless the author says that it has to have something in it.
        return replace(field, kind=drawn, value=default if isinstance(default, str) else "")
    if kind == "boolean":
        return _boolean(replace(field, kind="boolean"))
    if kind in ("integer", "number"):
        bounds = tuple(
            (to, json.dumps(found[of])) for of, to in (("minimum", "min"), ("maximum", "max")) if of in found
        )
        return replace(field, kind=_KINDS[kind], bounds=bounds)
    return field


def _boolean(field: Field) -> Field:
    return replace(field, choices=(("true", "yes"), ("false", "no")))


def _default(found: JsonObject) -> str:
    return written(found["default"]) if "default" in found else ""


def _resolved(part: JsonObject, schema: JsonObject, depth: int = 0) -> JsonObject:
    """Return a schema with its reference followed, and of alternatives the only one that is not null."""
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and depth < 10:
        found: Any = schema
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        beside = {key: value for key, value in part.items() if key != "$ref"}
        return _resolved({**found, **beside}, schema, depth + 1) if isinstance(found, dict) else beside
    for alternatives in ("anyOf", "oneOf"):
        listed = part.get(alternatives)
        if isinstance(listed, list):
            some = [each for each in listed if isinstance(each, dict) and each.get("type") != "null"]
            if len(some) == 1 and depth < 10:
                beside = {key: value for key, value in part.items() if key != alternatives}
                return _resolved({**some[0], **beside}, schema, depth + 1)
    kind = part.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        return {**part, "type": kinds[0] if len(kinds) == 1 else None}
    # Gemini's schemas name types in capitals.
    return {**part, "type": kind.lower()} if isinstance(kind, str) else part


def _value(field: Field, given: str) -> Any:
    match field.kind:
        case "line" | "lines":
            return given
        case "integer":
            if not re.fullmatch(r"\s*[+-]?\d{1,19}\s*", given, re.ASCII):
                raise ValueError("Write a whole number.")
            return int(given)
        case "number":
            try:
                return cast(float, _number(given))
            except (ValueError, NotJson):
                raise ValueError("Write a number, such as 12.5.") from None
        case "boolean" | "choice":
            if given not in dict(field.choices):
                raise ValueError("Choose one of those that are offered.")
            return json.loads(given)
        case "date":
            return _date(given)
        case "moment":
            return _moment(given)
        case "json":
            return _json(given)


def _number(given: str) -> Any:
    value = decode_foreign(given.strip().encode())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return value


def _date(given: str) -> str:
    try:
        return date.fromisoformat(given.strip()).isoformat()
    except ValueError:
        raise ValueError("Write a date, such as 2026-05-31.") from None


def _moment(given: str) -> str:
    text = given.strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("Write a date and a time, such as 2026-05-31T12:00.") from None
    # What browsers send has no zone. As in the rest of the page, the time is this server's.
    return (moment if moment.tzinfo else moment.astimezone()).isoformat()


def _json(text: str) -> Any:
    try:
        return decode_foreign(text.encode())
    except NotJson as error:
        raise ValueError(f"This cannot be recorded: it has {error.found}.") from None
    except ValueError as error:
        where = re.search(r"line (\d+)", str(error))
        raise ValueError(f"This is not JSON{f'; see line {where[1]}' if where else ''}.") from None
