"""A function with any signature is declared as in google-adk."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from verification.differential.conftest import Oracle
from verification.differential.record import difference
from verification.differential.scenario import Json
from verification.differential.signatures import functions_of
from waystation.core.errors import InvalidTool
from waystation.tools.base_tool import declare
from waystation.tools.function_tool import FunctionTool

HEADER = '''
import dataclasses, datetime, enum
from typing import Annotated, Any, Literal, Optional, Union
from pydantic import BaseModel, Field
from typing_extensions import TypedDict
from waystation.tools import ToolContext

class Color(enum.Enum):
    """A color."""
    RED = "red"
    GREEN = "green"

class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2

class Address(BaseModel):
    """Where somebody lives."""
    street: str
    zip: int = Field(default=1, description="The code.", ge=1)
    tags: list[str] = []

class Person(BaseModel):
    name: str
    home: Address | None = None

@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5

class Opaque:
    pass

class Options(TypedDict, total=False):
    depth: int
    color: Color
'''


@dataclass(frozen=True)
class Kind:
    """A way to annotate a parameter, and its possible defaults."""

    annotation: str
    defaults: tuple[str, ...]


PLAIN = (
    Kind("str", ('"a"', '""')),
    Kind("int", ("1", "0")),
    Kind("float", ("0.5", "1")),
    Kind("bool", ("True", "False")),
    Kind("Any", ("None", "[1]")),
    Kind("Literal['x', 'y']", ("'x'",)),
    Kind("Literal['x', 1]", ("'x'", "1")),
    Kind("Color", ("Color.RED",)),
    Kind("Size", ("Size.LARGE",)),
    Kind("Address", ("Address(street='s')",)),
    Kind("Person", ("Person(name='n')",)),
    Kind("Point", ("Point(1)",)),
    Kind("Options", ("{}",)),
    Kind("datetime.datetime", ()),
    Kind("datetime.date", ("datetime.date(2026, 1, 2)",)),
    Kind("list", ("[]", "[1]")),
    Kind("dict", ("{}",)),
)


def _wider(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def of(template: str, *defaults: str) -> st.SearchStrategy[Kind]:
        return kinds.map(lambda kind: Kind(template.format(kind.annotation), (*defaults, *kind.defaults)))

    def holding(template: str, *defaults: str) -> st.SearchStrategy[Kind]:
        return kinds.map(lambda kind: Kind(template.format(kind.annotation), defaults))

    def two(template: str) -> st.SearchStrategy[Kind]:
        return st.tuples(kinds, kinds).map(lambda pair: Kind(template.format(*(kind.annotation for kind in pair)), ()))

    return st.one_of(
        of("Optional[{}]", "None"),
        of("{} | None", "None"),
        holding("list[{}]", "[]", "None"),
        holding("dict[str, {}]", "{}", "None"),
        holding("tuple[{}, ...]", "()"),
        two("tuple[{}, {}]"),
        two("Union[{}, {}]"),
    )


OTHERS = (
    Kind("set[str]", ()),
    Kind("set[int]", ("None",)),
    Kind("frozenset[Color]", ()),
    Kind("Opaque", ("None",)),
    Kind("'Person'", ()),
    Kind("", ("2", "None", "'a'")),
)
KINDS = st.one_of(st.recursive(st.sampled_from(PLAIN), _wider, max_leaves=3), st.sampled_from(OTHERS))
FIELDS = (
    "description='Said.'",
    "description='Said.', title='Titled'",
    "examples=['a']",
    "title='Titled'",
)
DOCS = ("", "Do something.", "Do something.\n\n    At length.", "Dö sömething\n    in two lines.")
CONTEXTS = ("tool_context: ToolContext", "where: ToolContext", "where: 'ToolContext | None' = None", "tool_context")


@dataclass(frozen=True)
class Function:
    """The source of a function, and the descriptions of parameters in its docstring."""

    source: str
    described: dict[str, str]


@st.composite
def functions(draw: st.DrawFn) -> Function:
    """Draw a function named `f` with up to five parameters of all kinds, in the order that Python requires."""
    names = draw(st.lists(st.sampled_from(["city", "b_c", "number", "x1", "Üser"]), unique=True, max_size=5))
    parameters, described, may_lack_default = [], {}, True
    only_by_position = draw(st.integers(0, len(names))) if draw(st.booleans()) else 0
    only_by_name = draw(st.integers(only_by_position, len(names))) if draw(st.booleans()) else len(names)
    for index, name in enumerate(names):
        if index == only_by_name:
            parameters.append("*" if draw(st.booleans()) else "*args: int")
            may_lack_default = True
        kind = draw(KINDS)
        annotation, field = kind.annotation, None
        if annotation and draw(st.integers(0, 3)) == 0:
            field = draw(st.sampled_from(FIELDS))
            annotation = f"Annotated[{annotation}, Field({field})]"
        text = f"{name}: {annotation}" if annotation else name
        if kind.defaults and (not may_lack_default or draw(st.booleans())):
            text += f" = {draw(st.sampled_from(kind.defaults))}"
            may_lack_default = index >= only_by_name
        elif not may_lack_default:
            continue
        parameters.append(text)
        if draw(st.booleans()):
            described[name] = f"What {name} is."
        if index == only_by_position - 1:
            parameters.append("/")
    if draw(st.booleans()):
        context = draw(st.sampled_from(CONTEXTS))
        if "*" not in parameters and "*args: int" not in parameters:
            parameters.append("*")
        parameters.append(context)
    if draw(st.integers(0, 4)) == 0:
        parameters.append("**rest: str")
    return Function(_source(draw, parameters, described), described)


def _source(draw: st.DrawFn, parameters: list[str], described: dict[str, str]) -> str:
    doc = draw(
        st.sampled_from(["", "Do something.", "Do something.\n\n    At length.", "Dö sömething\n    in two lines."])
    )
    if described and doc:
        doc += "\n\n    Args:\n" + "".join(f"        {name}: {text}\n" for name, text in described.items())
        doc += draw(st.sampled_from(["", "\n    Returns:\n        Something.\n"])) + "    "
    if not doc:
        described.clear()
    define = draw(st.sampled_from(["def", "async def"]))
    body = f'    """{doc}"""\n' if doc else ""
    returned = draw(st.one_of(st.just(""), st.sampled_from(["None", "dict", "Any"]), KINDS.map(lambda k: k.annotation)))
    arrow = f" -> {returned}" if returned else ""
    return f"{define} f({', '.join(parameters)}){arrow}:\n{body}    return 1\n"


def described(declared: Json, descriptions: dict[str, str]) -> Json:
    """Return ADK's declaration with the descriptions from the docstring, which Waystation adds."""
    for name, schema in declared.get("parametersJsonSchema", {}).get("properties", {}).items():
        if name in descriptions:
            schema.setdefault("description", descriptions[name])
    return declared


def ours(function: Any) -> Json:
    """Return Waystation's declaration, or a note that it could not be built."""
    try:
        return declare(FunctionTool(function)) or {}
    except InvalidTool:
        return {"raised": "InvalidTool"}


@settings(derandomize=True, max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(functions(), st.booleans(), st.booleans())
def test_a_function_is_declared_as_by_adk(oracle: Oracle, function: Function, later: bool, vertex: bool) -> None:
    """Declarations differ only in the descriptions of parameters, which Waystation also reads from docstrings.

    `later`: whether annotations are text, as with `from __future__ import annotations`. `vertex`: whether
    models are reached through Vertex AI.
    """
    source = f"from __future__ import annotations\n{HEADER}{function.source}" if later else HEADER + function.source
    note(function.source)
    theirs = described(oracle.ask({"source": source, "vertex": vertex})["f"], function.described)
    if "raised" in theirs:
        theirs = {"raised": "InvalidTool"}
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("GOOGLE_GENAI_USE_ENTERPRISE", raising=False)
        environment.setenv("GOOGLE_GENAI_USE_VERTEXAI", str(vertex))
        found = ours(functions_of(source)["f"])
    lines = difference(theirs, found)
    assert not lines, "\n".join(lines)
