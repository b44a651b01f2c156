"""How errors name what was given, and what to give instead."""

import difflib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

_AN = ("a", "e", "i", "o", "A", "E", "I", "O", "Ll", "HTTP")
_BRANCHES = ("str", "int", "float", "bool", "dict", "list", "tuple", "callable")
"""How pydantic names some branches of a union; others have a bracket in them, or are called as a class is."""
_USE = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "True or False",
    "list": "a list",
    "tuple": "a list",
    "dict": "a dictionary",
    "mapping": "a dictionary",
    "callable": "a function",
    "time_delta": "a timedelta, such as timedelta(seconds=30)",
}
"""By the first words of pydantic's types of errors."""
_BOUNDS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
}


def a(value: object) -> str:
    """Return what kind of thing a value is, with its article: `an int`, `a list`, `None`."""
    return "None" if value is None else _with_article(type(value).__name__)


def mistakes(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Return what was given wrong, by name, with its value and what to give instead.

    `known` is what the fields are called, to say which one may have been meant. Of a type whose errors hide what was
    given, as those with credentials do, it is only said what kind of value it was.
    """
    shown = reprlib.repr if "input_value=" in str(error) else a
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for problem in error.errors(include_url=False):
        groups.setdefault(str(problem["loc"][0]) if problem["loc"] else "", []).append(problem)
    return "; ".join(text for group in groups.values() for text in _told(group, known, shown))


def _told(group: Sequence[Mapping[str, Any]], known: Iterable[str], shown: Callable[[object], str]) -> Iterator[str]:
    """Yield what is wrong with one field. Of a union each branch complains: the deepest have got the furthest."""
    depth = max(len(problem["loc"]) for problem in group)
    places: dict[str, list[Mapping[str, Any]]] = {}
    for problem in group:
        if len(problem["loc"]) == depth:
            places.setdefault(".".join(_path(problem["loc"])), []).append(problem)
    for name, problems in places.items():
        first = problems[0]
        uses = list(dict.fromkeys(use for problem in problems if (use := _use(problem))))
        if first["type"] == "missing":
            yield f"`{name}` is missing"
        elif first["type"] in ("extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"):
            near = difflib.get_close_matches(name, list(known), n=1)
            yield f"there is no field `{name}`{f'; did you mean `{near[0]}`?' if near else ''}"
        elif uses:
            yield f"{f'`{name}` is' if name else 'it is'} {shown(first['input'])}; use {' or '.join(uses)}"
        else:
            text = first["msg"].removeprefix("Value error, ")
            yield f"`{name}` is {shown(first['input'])}: {text}" if name else text


def _path(location: Sequence[int | str]) -> list[str]:
    """Return a location without what pydantic calls the branches of a union."""
    first, *rest = map(str, location or ("",))
    return [first, *(step for step in rest if step not in _BRANCHES and "[" not in step and not step[:1].isupper())]


def _use(problem: Mapping[str, Any]) -> str | None:
    """Return what to give instead, None when pydantic's own words are the best."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        return words.format(f"{bound:g}") if isinstance(bound, int | float) else _USE["time_delta"]
    if kind in ("literal_error", "enum"):
        return str(context["expected"])
    if kind == "is_subclass_of":
        return f"a subclass of {context['class']}"
    if kind == "model_attributes_type":
        return "a dictionary"
    if kind in ("is_instance_of", "model_type", "dataclass_type"):
        wanted = str(context.get("class") or context.get("class_name"))
        return f"an instance of {wanted}" if isinstance(problem["input"], type) else _with_article(wanted)
    if not kind.endswith(("_type", "_parsing", "_from_float")):
        return None
    return next((words for start, words in _USE.items() if kind.startswith(f"{start}_")), None)


def _with_article(name: str) -> str:
    return f"{'an' if name.startswith(_AN) else 'a'} {name}"
