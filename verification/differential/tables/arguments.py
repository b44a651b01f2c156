"""Arguments on their way to a function. Section 1.4 of the semantics page."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from verification.differential.scenario import Json, Scenario, alone, calls, shows


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    zip: int = 12345


class Person(BaseModel):
    """Somebody."""

    name: str
    address: Address | None = None


class Company(BaseModel):
    """Some company."""

    registered: str


@dataclasses.dataclass
class Point:
    """A place."""

    x: int
    y: int = 0


class Color(enum.Enum):
    """A color."""

    RED = "red"
    GREEN = "green"


class Options(TypedDict):
    """Some options."""

    depth: int


Row = tuple[Any, Any, Mapping[str, Any]]

VALIDATED = shows("arguments-are-validated")


def refused(**types: str) -> Mapping[str, Any]:
    """Return the deviations of a refused call; `types` maps ADK's names of types -> Waystation's."""
    return {**VALIDATED, "short-validation-errors": types}


BELOW_ONE = {
    "error": "Invoking `take()` failed due to argument validation errors:\n"
    "Parameter 'a': expected type 'int', validation error: Input should be greater than or equal to 1\n"
    "You could retry calling this tool with corrected argument types."
}

GIVEN: dict[str, Row] = {
    "text": (str, "a", {}),
    "text_as_number": (str, 5, refused()),
    "integer": (int, 5, {}),
    "integer_as_whole_fraction": (int, 5.0, {}),
    "integer_as_fraction": (int, 5.5, refused()),
    "integer_as_text": (int, "5", VALIDATED),
    "integer_as_words": (int, "five", refused()),
    "integer_as_none": (int, None, refused()),
    "fraction_as_integer": (float, 5, VALIDATED),
    "truth": (bool, True, {}),
    "truth_as_text": (bool, "true", VALIDATED),
    "list": (list, [1, "a"], {}),
    "integers": (list[int], [1, 2], {}),
    "integers_as_whole_fractions": (list[int], [1.0, 2.0], {}),
    "integers_as_texts": (list[int], ["1", "2"], VALIDATED),
    "integers_and_a_word": (list[int], [1, "two"], refused(list="list[int]")),
    "dictionary": (dict, {"a": 1}, {}),
    "dictionary_of_integers": (dict[str, int], {"a": 1}, {}),
    "dictionary_of_integers_as_texts": (dict[str, int], {"a": "1"}, VALIDATED),
    "tuple": (tuple[int, str], [1, "a"], VALIDATED),
    "set": (set[str], ["a", "a"], VALIDATED),
    "optional_given": (Optional[str], "a", {}),  # noqa: UP045  # the older way to write it
    "optional_none": (str | None, None, {}),
    "union": (int | str, "5", {}),
    "literal": (Literal["x", "y"], "x", {}),
    "literal_unknown": (Literal["x", "y"], "z", refused(Literal="Literal['x', 'y']")),
    "enumeration": (Color, "red", VALIDATED),
    "enumeration_unknown": (Color, "blue", refused()),
    "model": (Address, {"street": "s"}, {}),
    "model_nested": (Person, {"name": "a", "address": {"street": "s", "zip": 1}}, {}),
    "model_optional": (Optional[Address], {"street": "s"}, {}),  # noqa: UP045
    "model_optional_none": (Address | None, None, {}),
    "model_invalid": (Address, {"zip": 1}, refused()),
    "models": (list[Address], [{"street": "s"}, {"street": "t"}], {}),
    "models_one_invalid": (list[Address], [{"street": "s"}, {"bad": 1}], refused(list=f"list[{__name__}.Address]")),
    "one_of_two_models": (Union[Address, Company], {"registered": "r"}, {}),  # noqa: UP007
    "dataclass": (Point, {"x": 1}, VALIDATED),
    "typed_dict": (Options, {"depth": 1}, {}),
    "time": (datetime.datetime, "2026-01-02T03:04:05+00:00", VALIDATED),
    "constrained": (Annotated[int, Field(description="A number.", ge=1)], 3, {}),
    "constrained_out_of_range": (Annotated[int, Field(ge=1)], 0, shows(constraints_are_checked={"take": BELOW_ONE})),
    "unannotated": (None, [1], {}),
    "anything": (Any, {"a": [1.0, None]}, {}),
}
"""An annotation, the argument of a model, and whether ADK's opt-in validation has the same result as Waystation."""


def _taking(annotation: Any) -> list[Any]:
    def take(a) -> Json:  # type: ignore[no-untyped-def]  # annotated below
        """Tell what was given."""
        return {
            "type": type(a).__name__,
            "value": a,
            "items": [type(each).__name__ for each in a] if isinstance(a, list) else [],
        }

    if annotation is not None:
        take.__annotations__["a"] = annotation
    return [take]


def _scenario(name: str, annotation: Any, argument: Any, deviations: Mapping[str, Any]) -> Scenario:
    reply = calls(("take", {"a": argument}))
    return alone(f"given_{name}", reply, "done", tools=lambda: _taking(annotation), deviations=deviations)


def _with_defaults() -> list[Any]:
    def take(  # the ways to write a default
        a: int = 1,
        b: str | None = None,
        c: str = None,  # type: ignore[assignment]  # noqa: RUF013
        d: list[str] = ["q"],  # noqa: B006
        e: Literal["x", 1] = "x",
        f: Color = Color.RED,
        g: Address | None = None,
        h: Annotated[int, Field(description="Eight.")] = 8,
    ) -> Json:
        """Take what is given."""
        return {"a": a, "b": b, "c": c, "d": d, "e": e, "g": g, "h": h}

    return [take]


DEFAULTS: dict[str, Json] = {
    "none_given": {},
    "all_given": {"a": 2, "b": "b", "c": "c", "d": ["d"], "e": 1, "f": "green", "g": {"street": "s"}, "h": 9},
    "none_for_optional": {"b": None, "g": None},
}

TABLE: list[Scenario] = [
    *(_scenario(name, *row) for name, row in GIVEN.items()),
    *(
        alone(f"defaults_{name}", calls(("take", args)), "done", tools=_with_defaults)
        for name, args in DEFAULTS.items()
    ),
]
