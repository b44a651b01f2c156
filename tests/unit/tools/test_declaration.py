"""Declarations of functions for models: name, description and JSON schema."""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    """Where somebody lives."""

    street: str = Field(description="With the house number.")
    floor: int = 0


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    a: int


class Unknowable:
    """A class that has no JSON schema."""


def schema_of(function: Callable[..., Any]) -> dict[str, Any] | None:
    declared = FunctionTool(function)._get_declaration()
    assert declared is not None
    schema: dict[str, Any] | None = declared.get("parametersJsonSchema")
    return schema


def property_of(annotation: Any) -> Any:
    """Return the schema of one parameter `a` without a default."""

    def f(a):  # type: ignore[no-untyped-def]
        return a

    f.__annotations__["a"] = annotation
    schema = schema_of(f)
    assert schema is not None
    assert schema["required"] == ["a"]
    return schema["properties"]["a"]


def test_a_declaration_has_name_description_and_schema() -> None:
    """The whole declaration is plain JSON in genai's camelCase and equals ADK 2.13's."""

    def meet(
        topic: str, who: list[str], when: str | None = None, *args: int, tool_context: ToolContext, **kw: int
    ) -> None:
        "Plan."

    assert FunctionTool(meet)._get_declaration() == {
        "name": "meet",
        "description": "Plan.",
        "parametersJsonSchema": {
            "title": "meetParams",
            "type": "object",
            "required": ["topic", "who"],
            "properties": {
                "topic": {"title": "Topic", "type": "string"},
                "who": {"title": "Who", "type": "array", "items": {"type": "string"}},
                "when": {"title": "When", "anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            },
        },
    }


def test_a_function_without_parameters_or_docstring_declares_only_its_name() -> None:
    """Empty fields are left out of the declaration."""

    def ping() -> None: ...

    assert FunctionTool(ping)._get_declaration() == {"name": "ping"}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"title": "A", "type": "string"}),
        (int, {"title": "A", "type": "integer"}),
        (float, {"title": "A", "type": "number"}),
        (bool, {"title": "A", "type": "boolean"}),
        (list, {"title": "A", "type": "array", "items": {}}),
        (list[str], {"title": "A", "type": "array", "items": {"type": "string"}}),
        (dict, {"title": "A", "type": "object", "additionalProperties": True}),
        (dict[str, int], {"title": "A", "type": "object", "additionalProperties": {"type": "integer"}}),
        (set[str], {"title": "A", "type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (str | None, {"title": "A", "anyOf": [{"type": "string"}, {"type": "null"}]}),
        (int | str, {"title": "A", "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["x", "y"], {"title": "A", "enum": ["x", "y"], "type": "string"}),
        (Color, {"$ref": "#/$defs/Color"}),
        (Address, {"$ref": "#/$defs/Address"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (Any, {"title": "A"}),
        (
            tuple[int, str],
            {
                "title": "A",
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (
            Annotated[int, Field(description="an int", ge=1, alias="other")],
            {"title": "A", "type": "integer", "description": "an int", "minimum": 1},
        ),
    ],
)
def test_annotations_become_adks_schema(annotation: Any, expected: object) -> None:
    """Each annotation has the declaration of google-adk 2.13."""
    assert property_of(annotation) == expected


def test_nested_types_are_described_under_defs() -> None:
    """Values of enums are listed, and field descriptions and defaults of models are kept."""

    def f(color: Color, home: Address) -> None: ...

    schema = schema_of(f)
    assert schema is not None
    assert schema["$defs"] == {
        "Color": {"title": "Color", "enum": ["red", "green"], "type": "string"},
        "Address": {
            "title": "Address",
            "description": "Where somebody lives.",
            "type": "object",
            "required": ["street"],
            "properties": {
                "street": {"title": "Street", "type": "string", "description": "With the house number."},
                "floor": {"title": "Floor", "type": "integer", "default": 0},
            },
        },
    }


def test_defaults_are_declared_as_json() -> None:
    """A default makes a parameter optional; `None` does not add null to the type."""

    def f(  # type: ignore[no-untyped-def]
        a: str = None,  # type: ignore[assignment]  # noqa: RUF013  # what authors write
        b: Color = Color.RED,
        c: list[str] = ["q"],  # noqa: B006
        d=2,
    ): ...

    schema = schema_of(f)
    assert schema is not None
    assert "required" not in schema
    assert schema["properties"] == {
        "a": {"title": "A", "type": "string", "default": None},
        "b": {"$ref": "#/$defs/Color", "default": "red"},
        "c": {"title": "C", "type": "array", "items": {"type": "string"}, "default": ["q"]},
        "d": {"title": "D", "default": 2},
    }


def test_a_default_without_a_json_form_is_not_declared() -> None:
    """The parameter is optional, but its default is omitted."""

    def f(limit: float = math.inf, marker: Any = object()) -> None: ...  # noqa: B008

    schema = schema_of(f)
    assert schema is not None
    assert schema["properties"] == {
        "limit": {"title": "Limit", "type": "number"},
        "marker": {"title": "Marker"},
    }


def test_parameters_may_have_names_reserved_by_pydantic() -> None:
    """Reserved names are declared, although ADK raises for some of them."""

    def f(schema: str, model_config: int, _x: int, copy: bool = False) -> None: ...

    declared = schema_of(f)
    assert declared is not None
    assert list(declared["properties"]) == ["schema", "model_config", "_x", "copy"]
    assert declared["required"] == ["schema", "model_config", "_x"]


def test_a_field_as_default_describes_the_parameter() -> None:
    """A Field such as `a: int = Field(ge=1)`, as in FastAPI, describes a parameter, which stays mandatory."""

    def f(a: int = Field(ge=1, description="at least one"), b: int = Field(default=3)) -> None: ...

    schema = schema_of(f)
    assert schema is not None
    assert schema["required"] == ["a"]
    assert schema["properties"] == {
        "a": {"title": "A", "type": "integer", "minimum": 1, "description": "at least one"},
        "b": {"title": "B", "type": "integer", "default": 3},
    }


# Names and descriptions


class Search:
    """Search the catalogue."""

    def __call__(self, text: str, tool_context: ToolContext) -> str:
        """Return the text. This docstring is not the description of the tool."""
        return text

    def by_author(self, author: str) -> str:
        """Search by author."""
        return author


class Undocumented:
    def __call__(self, text: str) -> str:
        """Documented where it is called."""
        return text


def plain_function(a: int, b: int = 0) -> int:
    """Add two numbers.

    Args:
        a: The first.
    """
    return a + b


@pytest.mark.parametrize(
    ("function", "name", "description"),
    [
        (plain_function, "plain_function", "Add two numbers.\n\nArgs:\n    a: The first."),
        (
            functools.partial(plain_function, 1),
            "plain_function",
            "Add two numbers.\n\nArgs:\n    a: The first.",
        ),
        (Search(), "Search", "Search the catalogue."),
        (Undocumented(), "Undocumented", "Documented where it is called."),
        (Search().by_author, "by_author", "Search by author."),
        (functools.partial(Search(), "x"), "Search", "Search the catalogue."),
        (lambda: 1, "<lambda>", ""),
        (len, "len", "Return the number of items in a container."),
    ],
)
def test_name_and_description_come_from_the_callable(function: Callable[..., Any], name: str, description: str) -> None:
    """The description is the whole cleaned docstring."""
    tool = FunctionTool(function)
    assert (tool.name, tool.description) == (name, description)


def test_an_instance_may_have_its_own_name() -> None:
    """The attribute `__name__` names a callable object."""
    search = Search()
    search.__name__ = "find"  # type: ignore[attr-defined]
    assert FunctionTool(search).name == "find"


def test_partials_declare_their_unbound_parameters() -> None:
    """Bound parameters are left out."""
    by_position = schema_of(functools.partial(plain_function, 1))
    by_keyword = schema_of(functools.partial(plain_function, b=7))
    assert by_position is not None
    assert by_keyword is not None
    assert list(by_position["properties"]) == ["b"]
    assert list(by_keyword["properties"]) == ["a"]


def test_args_sections_describe_parameters() -> None:
    """Google-style `Args:` sections, which ADK ignores, are read, and each description becomes one line."""

    def pay(amount: float, color: Color, note: str = "") -> None:
        """Pay somebody.

        Args:
            amount: How much,
                in euros.
            color (Color): Of the envelope.
        """

    schema = schema_of(pay)
    assert schema is not None
    assert schema["properties"] == {
        "amount": {"title": "Amount", "type": "number", "description": "How much, in euros."},
        "color": {"$ref": "#/$defs/Color", "description": "Of the envelope."},
        "note": {"title": "Note", "type": "string", "default": ""},
    }


def test_a_field_description_precedes_the_docstring() -> None:
    """The description of a Field wins, because it is nearer to the parameter than the docstring."""

    def pay(amount: Annotated[float, Field(description="In cents.")]) -> None:
        """Pay.

        Args:
            amount: In euros.
        """

    schema = schema_of(pay)
    assert schema is not None
    assert schema["properties"]["amount"]["description"] == "In cents."


@pytest.mark.parametrize("doc", ["Args:\n", "Args:\nx", "Args:\n    : nothing", "Returns:\n:", "\x00Args:\n  a"])
def test_a_docstring_in_another_style_describes_no_parameters(doc: str) -> None:
    """A docstring in another style is never an error, but it describes no parameters."""

    def f(a: int) -> None: ...

    f.__doc__ = doc
    schema = schema_of(f)
    assert schema is not None
    assert schema["properties"] == {"a": {"title": "A", "type": "integer"}}


def japanese(city: str, days: int) -> str:
    """天気を返します。

    引数：
        city：都市の名前。
        days (int)：日数。

    戻り値：
        天気。
    """  # noqa: RUF002  # full-width colons
    return ""


def korean(city: str, days: int) -> str:
    """날씨를 반환합니다.

    인수:
        city: 도시 이름.
        days: 날짜 수.

    반환:
        날씨.
    """
    return ""


def traditional_chinese(city: str, days: int) -> str:
    """傳回天氣。

    參數：
        city: 城市名稱。
        days: 天數。

    傳回：
        天氣。
    """  # noqa: RUF002  # full-width colons
    return ""


def simplified_chinese(city: str, days: int) -> str:
    """返回天气。

    参数:
        city: 城市名称。
        days: 天数。

    返回:
        天气。
    """
    return ""


@pytest.mark.parametrize(
    ("function", "city", "days"),
    [
        (japanese, "都市の名前。", "日数。"),
        (korean, "도시 이름.", "날짜 수."),
        (traditional_chinese, "城市名稱。", "天數。"),
        (simplified_chinese, "城市名称。", "天数。"),
    ],
)
def test_headings_can_be_chinese_japanese_or_korean(function: Callable[..., str], city: str, days: str) -> None:
    """Headings of ADK's translated documentation are read, with ASCII and full-width colons."""
    properties = (schema_of(function) or {})["properties"]
    assert (properties["city"]["description"], properties["days"]["description"]) == (city, days)
