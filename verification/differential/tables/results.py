"""Results of tools, and the responses that the model reads. Section 1.5 of the semantics page."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from typing import Any

from google.genai import types
from pydantic import BaseModel

from verification.differential.scenario import Scenario, alone, calls, shows


class Item(BaseModel):
    """A pydantic model."""

    name: str
    on: datetime.date = datetime.date(2026, 1, 2)
    note: str | None = None


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    y: float = 0.5


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"


def _image() -> types.Part:
    return types.Part.from_bytes(data=b"\xff\xfe\xfd?>", mime_type="image/png")


def _file() -> types.Part:
    return types.Part.from_uri(file_uri="gs://bucket/a.pdf", mime_type="application/pdf")


RETURNS: dict[str, Callable[[], Any]] = {
    "dictionary": lambda: {"x": 1, "y": [True, None, 1.5, "é🙂"]},
    "empty_dictionary": dict,
    "nested": lambda: {"a": {"b": [{"c": {}}]}},
    "dictionary_with_result": lambda: {"result": {"result": 1}},
    "dictionary_with_none": lambda: {"x": None},
    "text": lambda: "hello",
    "empty_text": lambda: "",
    "whole_number": lambda: 3,
    "fraction": lambda: 2.0,
    "true": lambda: True,
    "false": lambda: False,
    "none": lambda: None,
    "list": lambda: [1, "a", None],
    "empty_list": list,
    "tuple": lambda: (1, 2),
    "model": lambda: Item(name="a"),
    "model_inside": lambda: {"item": Item(name="a")},
    "models_in_a_list": lambda: [Item(name="a"), Item(name="b")],
    "dataclass": lambda: Point(1),
    "enumeration": lambda: {"color": Color.RED},
    "time": lambda: {"at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)},
    "date": lambda: datetime.date(2026, 1, 2),
    "duration": lambda: {"took": datetime.timedelta(minutes=90)},
    "set": lambda: {"tags": {"a"}},
    "decimal": lambda: {"price": decimal.Decimal("1.50")},
    "uuid": lambda: {"id": uuid.UUID(int=7)},
    "part_with_data": _image,
    "part_with_data_inside": lambda: {"text": "see", "image": _image()},
    "parts_with_data_in_a_list": lambda: [_image(), "see", _file()],
    "part_with_file": _file,
    "part_with_text": lambda: types.Part(text="only text"),
    "function_response": lambda: types.FunctionResponse(response={"x": 1}),
    "function_response_under_another_name": lambda: types.FunctionResponse(name="other", id="x", response={"x": 1}),
}
"""The result of a tool, created for each run."""


def _returning(make: Callable[[], Any]) -> list[Any]:
    def give() -> Any:
        """Give something."""
        return make()

    return [give]


def _scenario(name: str, make: Callable[[], Any]) -> Scenario:
    deviations = shows(function_responses_are_understood={"give": {"x": 1}}) if "function_response" in name else {}
    return alone(f"returns_{name}", calls(("give", {})), "done", tools=lambda: _returning(make), deviations=deviations)


TABLE: list[Scenario] = [_scenario(name, make) for name, make in RETURNS.items()]
