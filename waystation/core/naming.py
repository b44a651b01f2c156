"""Build error messages for invalid fields: the field's name, its value, and what to use instead."""

import difflib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

_VOWELS = ("a", "e", "i", "o", "A", "E", "I", "O", "Ll", "HTTP")
"""Prefixes of type names that take the article `an`."""
_BRANCHES = ("str", "int", "float", "bool", "dict", "list", "tuple", "callable")
"""Names of union branches in pydantic's error locations. All other branch names contain a bracket or start with a
capital letter."""
_REMEDIES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "True or False"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_attributes_type"), "a dictionary"),
    **dict.fromkeys(("time_delta_type", "time_delta_parsing"), "a timedelta, such as timedelta(seconds=30)"),
    **dict.fromkeys(("model_type", "dataclass_type"), "an instance of {class_name}"),
    **dict.fromkeys(("literal_error", "enum"), "{expected}"),
    "string_type": "text",
    "callable_type": "a function",
    "is_instance_of": "an instance of {class}",
    "is_subclass_of": "a subclass of {class}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
"""Maps pydantic error types to what to use instead. For all other error types, pydantic's own message is shown."""


def with_article(value: object) -> str:
    """Return the name of a value's type with its article, such as `an int` or `a list`, or `None` for None."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name.startswith(_VOWELS) else 'a'} {name}"


def describe_errors(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Return a message that lists each invalid field, its value, and what to use instead.

    `known` contains the names of valid fields, for suggestions. If a type hides its input in errors, as credential
    types do, the message shows only the type of the value.
    """
    format_value = reprlib.repr if "input_value=" in str(error) else with_article
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for problem in error.errors(include_url=False):
        groups.setdefault(str(problem["loc"][0]) if problem["loc"] else "", []).append(problem)
    return "; ".join(text for group in groups.values() for text in _describe_field(group, known, format_value))


def _describe_field(
    group: Sequence[Mapping[str, Any]], known: Iterable[str], format_value: Callable[[object], str]
) -> Iterator[str]:
    """Yield the messages for one field.

    For a union, pydantic reports the errors of every branch. Only the deepest errors are described, because their
    branch is the closest match.
    """
    depth = max(len(problem["loc"]) for problem in group)
    places: dict[str, list[Mapping[str, Any]]] = {}
    for problem in group:
        if len(problem["loc"]) == depth:
            places.setdefault(".".join(_path(problem["loc"])), []).append(problem)
    for name, problems in places.items():
        first = problems[0]
        uses = dict.fromkeys(
            _REMEDIES[problem["type"]].format(**problem.get("ctx", {}))
            for problem in problems
            if problem["type"] in _REMEDIES
        )
        if first["type"] == "missing":
            yield f"`{name}` is missing"
        elif first["type"] in ("extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"):
            near = difflib.get_close_matches(name, list(known), n=1)
            yield f"there is no field `{name}`{f'; did you mean `{near[0]}`?' if near else ''}"
        elif uses:
            yield f"{f'`{name}` is' if name else 'it is'} {format_value(first['input'])}; use {' or '.join(uses)}"
        else:
            text = first["msg"].removeprefix("Value error, ")
            yield f"`{name}` is {format_value(first['input'])}: {text}" if name else text


def _path(location: Sequence[int | str]) -> list[str]:
    """Return an error location without the names that pydantic inserts for union branches."""
    first, *rest = map(str, location or ("",))
    return [first, *(step for step in rest if step not in _BRANCHES and "[" not in step and not step[:1].isupper())]
