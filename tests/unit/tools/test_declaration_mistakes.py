"""Parameters that cannot be declared are refused with their name and the remedy."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from google.genai import types

from tests.unit.tools.test_declaration import Row, Unknowable, plain_function, schema_of
from waystation.core.errors import InvalidTool
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def test_a_parameter_of_an_unknown_class_is_named_with_the_remedy() -> None:
    """The error names every invalid parameter, and no valid one."""

    def f(good: int, bad: Unknowable, worse: Callable[[], int]) -> None: ...

    with pytest.raises(InvalidTool) as raised:
        FunctionTool(f)._get_declaration()
    assert str(raised.value) == (
        "Tool 'f': parameter 'bad' of type Unknowable cannot be described to a model (Unable to generate "
        "pydantic-core schema for <class 'test_declaration.Unknowable'>); use plain types, dataclasses or "
        "pydantic models. parameter 'worse' of type collections.abc.Callable[[], int] cannot be described to a "
        "model (Cannot generate a JsonSchema for core_schema.CallableSchema); use plain types, dataclasses or "
        "pydantic models."
    ).replace("test_declaration", Unknowable.__module__)


def test_an_unresolvable_annotation_is_named_with_the_remedy() -> None:
    """An unresolvable annotation is refused; ADK would drop the whole schema without a message."""

    def f(good: "int", bad: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidTool) as raised:
        FunctionTool(f)._get_declaration()
    assert str(raised.value) == (
        "Tool 'f': the annotation 'Nowhere' of parameter 'bad' cannot be resolved (name 'Nowhere' is not defined); "
        "import or define it at module level, outside `if TYPE_CHECKING:`."
    )


def test_an_unresolvable_return_annotation_is_accepted() -> None:
    """Declarations contain no return types."""

    def f(a: "int") -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        ...

    assert schema_of(f) is not None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads typing.TypedDict from Python 3.12 on")
def test_a_typeddict_of_typing_is_refused_with_the_remedy() -> None:
    """A TypedDict of `typing` is refused, because pydantic supports it only since Python 3.12."""

    def f(row: Row) -> None: ...

    with pytest.raises(InvalidTool, match=r"parameter 'row' .*; import TypedDict from typing_extensions"):
        FunctionTool(f)._get_declaration()


def test_a_builtin_without_a_signature_is_refused() -> None:
    """A builtin without a signature is refused, because its parameters are unknown."""
    with pytest.raises(InvalidTool, match="its signature cannot be read"):
        FunctionTool(max)._get_declaration()


def test_a_value_that_is_not_callable_is_refused() -> None:
    """The error has ADK's message."""
    with pytest.raises(TypeError, match="Expected a callable object, got int"):
        FunctionTool(3)  # type: ignore[arg-type]


def test_description_is_not_accepted() -> None:
    """A description is not accepted as an argument: the function's docstring is used, as in ADK."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'description'"):
        FunctionTool(plain_function, description="x")  # type: ignore[call-arg]


def test_name_replaces_the_name_of_the_function() -> None:
    """The argument `name` replaces the function's name, as in ADK's documentation, although ADK 2.13 refuses it."""
    tool = FunctionTool(plain_function, name="x")
    assert (declare(tool) or {})["name"] == tool.name == "x"
    assert LongRunningFunctionTool(plain_function, name="y").name == "y"


# Tests of declare()


class Custom(BaseTool):
    def __init__(self, declared: Any) -> None:
        super().__init__(name="custom", description="A tool.")
        self.declared = declared

    def _get_declaration(self) -> Any:
        if isinstance(self.declared, Exception):
            raise self.declared
        return self.declared


def test_a_genai_declaration_is_converted() -> None:
    """A tool written for ADK returns a FunctionDeclaration, whose Schema becomes JSON schema."""
    declared = types.FunctionDeclaration(
        name="custom",
        description="A tool.",
        parameters=types.Schema(
            type=types.Type.OBJECT, properties={"a": types.Schema(type=types.Type.STRING)}, required=["a"]
        ),
    )
    assert declare(Custom(declared)) == {
        "name": "custom",
        "description": "A tool.",
        "parametersJsonSchema": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
        },
    }


def test_a_tool_may_be_undeclared() -> None:
    """A tool may return `None` as its declaration."""
    assert declare(Custom(None)) is None


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (ValueError("no"), "Tool 'custom': `_get_declaration` failed (ValueError: no)."),
        (
            {"name": "other"},
            "Tool 'custom': its declaration has the name 'other'; use the tool's name in the declaration.",
        ),
        (
            ["custom"],
            'Tool \'custom\': `_get_declaration` must return {"name", "description", "parametersJsonSchema"} or None.',
        ),
        (
            {"name": "custom", "parametersJsonSchema": {"default": object()}},
            "Tool 'custom': its declaration is not JSON: 'parametersJsonSchema.default' is a value of type "
            "builtins.object, which cannot be recorded; return plain data.",
        ),
    ],
)
def test_an_unusable_declaration_is_refused(declared: Any, message: str) -> None:
    """Any error in `_get_declaration` becomes an InvalidTool that names the tool."""
    with pytest.raises(InvalidTool) as raised:
        declare(Custom(declared))
    assert str(raised.value) == message


def test_a_declaration_may_be_modified() -> None:
    """Each declaration is a copy, so a prefix does not change the tool."""
    tool = FunctionTool(plain_function)
    first = tool._get_declaration()
    assert first is not None
    first["parametersJsonSchema"]["properties"].clear()
    second = tool._get_declaration()
    assert second is not None
    assert list(second["parametersJsonSchema"]["properties"]) == ["a", "b"]
