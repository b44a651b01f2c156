"""Forms for arguments and schemas."""

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.conftest import SetZone
from waystation.web import forms

SCHEMA = {
    "type": "object",
    "required": ["who", "many", "sure", "size"],
    "properties": {
        "who": {"type": "string", "description": "The person to ask."},
        "many": {"type": "integer", "minimum": 1, "maximum": 9},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "size": {"$ref": "#/$defs/Size"},
        "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "at": {"type": "string", "format": "date-time"},
        "rest": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "list": {"type": ["array", "null"]},
        "told": {"type": "STRING", "default": "yes"},
    },
    "$defs": {"Size": {"enum": ["small", "large", 3]}},
}


def submitted(pairs: list[tuple[str, str]]) -> forms.Form:
    """Return a form that a browser sent."""
    return forms.parse_form(urlencode(pairs).encode())


def filled(**values: str) -> forms.Form:
    """Return a form that was filled in and sent."""
    return submitted([(f"value.{key}", value) for key, value in values.items()])


def test_a_schema_gives_a_field_of_the_right_kind_for_each_property() -> None:
    """References and nullable alternatives are resolved, and nested values are edited as JSON."""
    fields = forms.make_schema_fields(SCHEMA) or []
    assert {field.key: field.kind for field in fields} == {
        "who": "line",
        "many": "integer",
        "share": "number",
        "sure": "boolean",
        "size": "choice",
        "day": "date",
        "at": "moment",
        "rest": "json",
        "list": "json",
        "told": "line",
    }
    assert [field.key for field in fields if field.required] == ["who", "many", "sure", "size"]
    assert fields[4].choices == (('"small"', "small"), ('"large"', "large"), ("3", "3"))
    assert (fields[0].text, fields[1].bounds, fields[9].value) == (
        "The person to ask.",
        (("min", "1"), ("max", "9")),
        "yes",
    )


def test_filled_fields_become_values_and_empty_ones_are_omitted() -> None:
    """Values get the types of the schema."""
    form = filled(who="dana", many="3", share="0.5", sure="false", size="3", day="2026-05-31", rest='{"a": 1}')
    assert forms.parse_fields(forms.make_schema_fields(SCHEMA) or [], form) == {
        "who": "dana",
        "many": 3,
        "share": 0.5,
        "sure": False,
        "size": 3,
        "day": "2026-05-31",
        "rest": {"a": 1},
    }


def test_a_time_without_a_zone_has_the_zone_of_the_server(set_zone: SetZone) -> None:
    """The offset of the server at that time is added; a given zone is kept."""
    set_zone("Europe/Berlin")
    fields = forms.make_schema_fields({"properties": {"at": {"type": "string", "format": "date-time"}}}) or []
    for text, expected in (
        ("2026-10-25T01:59", "2026-10-25T01:59:00+02:00"),
        ("2026-10-25T03:00", "2026-10-25T03:00:00+01:00"),
        ("2026-10-25T03:00Z", "2026-10-25T03:00:00+00:00"),
    ):
        assert forms.parse_fields(fields, filled(at=text)) == {"at": expected}


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("who", "", "Fill this in."),
        ("many", "3.5", "Enter a whole number."),
        ("many", "9" * 30, "Enter a whole number."),
        ("share", "NaN", "Enter a number, such as 12.5."),
        ("share", "1e999", "Enter a number, such as 12.5."),
        ("sure", "maybe", "Choose one of the options."),
        ("size", '"huge"', "Choose one of the options."),
        ("day", "31.5.2026", "Enter a date, such as 2026-05-31."),
        ("at", "noon", "Enter a date and a time, such as 2026-05-31T12:00."),
        ("rest", '{"a": }', "This is not valid JSON; see line 1."),
        ("rest", "[" * 100 + "]" * 100, "This value cannot be recorded: it contains nesting deeper than 64 levels."),
    ],
)
def test_an_invalid_value_is_reported_at_its_field(key: str, text: str, error: str) -> None:
    """The invalid text stays in its field."""
    with pytest.raises(forms.InvalidForm) as raised:
        forms.parse_fields(forms.make_schema_fields(SCHEMA) or [], filled(**{key: text}))
    (field,) = [field for field in raised.value.fields or () if field.key == key]
    assert (field.error, field.value) == (error, text)


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": "object"}, {"properties": []}, {"$ref": "#/x"}])
def test_a_schema_without_properties_has_no_fields(schema: dict[str, Any]) -> None:
    """The response is then written as text or JSON."""
    assert forms.make_schema_fields(schema) is None


def test_a_recursive_schema_has_finite_fields() -> None:
    """A schema that refers to itself does not hang the server."""
    schema = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert [field.kind for field in forms.make_schema_fields(schema) or []] == ["json"]


@pytest.mark.parametrize(
    "args",
    [
        {"to": "dana", "amount": 5, "share": 0.25, "sure": True, "none": None, "list": [1], "map": {"a": {}}},
        {"text": "two\nlines", "empty": "", "spaces": "  x  ", "leading": "\n\nx", "tabs": "a\tb"},
        {"hidden": "a\u202eb\u00a0", "control": "\x00\x1b", "return": "a\r\nb", "long": "x" * 20_000},
        {"big": 2**62, "small": -5, "e": 1e30, "zero": 0.0, "quote": '"<&>'},
        {"api_key": "sk-1", "password": 5, "token": None, "secret": {"a": "x\ny"}},
        {"": "no name", "a.b": 1, "value.a": 2, "ключ": "ö"},
    ],
)
def test_unchanged_arguments_survive_a_round_trip(args: dict[str, Any]) -> None:
    """Every JSON value survives the form, although browsers change line breaks."""
    fields = forms.make_argument_fields(args)
    form = submitted([(field.name, field.value.replace("\n", "\r\n")) for field in fields])
    values = forms.parse_fields(fields, form)
    assert values == args
    assert [type(value) for value in values.values()] == [type(value) for value in args.values()]


def test_secrets_are_never_in_a_form_but_can_be_replaced() -> None:
    """An empty secret field keeps the value."""
    fields = forms.make_argument_fields({"api_key": "sk-1", "password": "hunter2"})
    assert [field.value for field in fields] == ["", ""]
    assert forms.parse_fields(fields, filled(api_key="sk-2", password="")) == {"api_key": "sk-2", "password": "hunter2"}


def test_a_response_is_text_or_an_object() -> None:
    """Text that starts with a brace must be a JSON object."""
    assert forms.parse_response("Friday") == {"result": "Friday"}
    assert forms.parse_response(' {"day": "Friday"}') == {"day": "Friday"}
    with pytest.raises(forms.InvalidForm, match="This is not valid JSON"):
        forms.parse_response('{"day": Friday}')
