"""Functions receive converted arguments of the model."""

import dataclasses
import datetime
import decimal
import enum
import functools
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from waystation.core.errors import InvalidTool
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import CallbackContext, Context, ToolContext


class Color(enum.Enum):
    RED = "red"


class Address(BaseModel):
    street: str
    floor: int = 0


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    day: datetime.date


@dataclasses.dataclass
class Point:
    x: int


async def call(function: Callable[..., Any], args: dict[str, Any], context: ToolContext | None = None) -> Any:
    return await FunctionTool(function).run_async(args=args, tool_context=context or ToolContext())


def returning(annotation: Any) -> Callable[..., Any]:
    """Return a function that returns its argument `a` of this type."""

    def f(a):  # type: ignore[no-untyped-def]
        return a

    f.__annotations__["a"] = annotation
    return f


@pytest.mark.parametrize(
    ("annotation", "value", "received"),
    [
        (int, "5", 5),
        (int, 5.0, 5),
        (float, "2.5", 2.5),
        (bool, "true", True),
        (Color, "red", Color.RED),
        (Point, {"x": "1"}, Point(x=1)),
        (Address, {"street": "s", "unknown": 1}, Address(street="s")),
        (Address | None, None, None),
        (list[Address], [{"street": "s", "floor": "2"}], [Address(street="s", floor=2)]),
        (Address | Point, {"x": 4}, Point(x=4)),
        (set[str], ["a", "a"], {"a"}),
        (tuple[int, str], [1, "b"], (1, "b")),
        (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
        (datetime.timedelta, "PT90S", datetime.timedelta(seconds=90)),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (Strict, {"day": "2026-01-02"}, Strict(day=datetime.date(2026, 1, 2))),
        (Literal["x", 1], 1, 1),
        (dict, {"k": [1]}, {"k": [1]}),
        (Any, {"k": None}, {"k": None}),
    ],
)
async def test_arguments_are_converted_to_the_annotated_type(annotation: Any, value: object, received: object) -> None:
    """The function receives the types of its annotations, although JSON has few types."""
    assert await call(returning(annotation), {"a": value}) == received


async def test_invalid_arguments_are_reported_to_the_model() -> None:
    """The error names every invalid parameter with the expected type, and the function is not called."""

    def book(nights: int, home: Address, color: Color, ok: str) -> None:
        raise AssertionError

    answer = await call(book, {"nights": "two", "home": {"floor": "x"}, "color": "blue", "ok": "yes"})
    assert answer == {
        "error": "Invoking `book()` failed due to argument validation errors:\n"
        "Parameter 'nights': expected type 'int', validation error: "
        "Input should be a valid integer, unable to parse string as an integer\n"
        "Parameter 'home': expected type 'Address', validation error: street: Field required; "
        "floor: Input should be a valid integer, unable to parse string as an integer\n"
        "Parameter 'color': expected type 'Color', validation error: Input should be 'red'\n"
        "You could retry calling this tool with corrected argument types."
    }


async def test_a_long_list_of_mistakes_is_cut() -> None:
    """A thousand wrong items become a report of bounded length."""
    answer = await call(returning(list[int]), {"a": ["x"] * 1000})
    assert answer["error"].count("Input should be a valid integer") == 10
    assert "; and 990 more\n" in answer["error"]


async def test_missing_mandatory_arguments_are_reported_to_the_model() -> None:
    """The error has ADK's exact text, with names in the order of the signature."""

    def mm(a, b, c=1):  # type: ignore[no-untyped-def]
        raise AssertionError

    assert await call(mm, {"c": 2}) == {
        "error": "Invoking `mm()` failed as the following mandatory input parameters are not present:\na\nb\n"
        "You could retry calling this tool, but it is IMPORTANT for you to provide all the mandatory parameters."
    }


async def test_missing_arguments_are_reported_before_wrong_ones() -> None:
    """The model corrects one kind of mistake at a time."""

    def f(a: int, b: int) -> None: ...

    answer = await call(f, {"a": "x"})
    assert "mandatory input parameters are not present:\nb\n" in answer["error"]


async def test_unknown_arguments_are_dropped() -> None:
    """Unknown arguments are dropped, even if the function accepts any keyword."""

    def f(a: int, *args: int, **kwargs: int) -> object:
        return a, args, kwargs

    assert await call(f, {"a": 1, "zz": 3, "args": [1], "kwargs": {"q": 1}}) == (1, (), {})


async def test_null_arguments_are_an_empty_object() -> None:
    """Null instead of arguments is an empty object, because some models send it."""

    def ping() -> str:
        return "pong"

    assert await FunctionTool(ping).run_async(args=None, tool_context=ToolContext()) == "pong"  # type: ignore[arg-type]


async def test_null_for_a_parameter_with_default_none_is_the_default() -> None:
    """A parameter such as `d: str = None` accepts null, although its type does not."""

    def f(d: str = None) -> object:  # type: ignore[assignment]  # noqa: RUF013  # what authors write
        return d

    assert await call(f, {"d": None}) is None


async def test_a_function_cannot_change_recorded_arguments() -> None:
    """The function receives a deep copy."""

    def spoil(a: Any) -> None:
        a["list"].append(2)

    args = {"a": {"list": [1]}}
    await call(spoil, args)
    assert args == {"a": {"list": [1]}}


async def test_a_default_of_a_field_is_passed() -> None:
    """The function receives the default, not the Field object."""

    def f(a: int = Field(ge=1), b: list[int] = Field(default_factory=list)) -> object:  # noqa: B008
        return a, b

    assert await call(f, {"a": 1}) == (1, [])


async def test_positional_only_parameters_can_be_filled() -> None:
    """Positional-only parameters can be filled, although models pass arguments by name."""

    def f(a: int, b: int = 2, /, *, c: int = 3) -> object:
        return a, b, c

    assert await call(f, {"a": 1, "c": 9}) == (1, 2, 9)


class Weather:
    """A class whose callables bind the key of a service."""

    def look_up(self, unit: str, key: str, city: str) -> object:
        return unit, key, city

    bound = functools.partialmethod(look_up, "C", key="sk-1")
    __call__ = bound


def _look_up(unit: str, key: str, city: str) -> object:
    return unit, key, city


@functools.wraps(functools.partial(_look_up, "C", key="sk-1"))
def _wrapper(*args: Any, **kwargs: Any) -> object:
    return functools.partial(_look_up, "C", key="sk-1")(*args, **kwargs)


BINDING: dict[str, Callable[..., Any]] = {
    "function": functools.partial(_look_up, "C", key="sk-1"),
    "method": functools.partial(Weather().look_up, "C", key="sk-1"),
    "nested": functools.partial(functools.partial(_look_up, key="sk-1"), "C"),
    "updated": functools.update_wrapper(functools.partial(_look_up, "C", key="sk-1"), _look_up),
    "partial of an updated one": functools.partial(
        functools.update_wrapper(functools.partial(_look_up, "C"), _look_up), key="sk-1"
    ),
    "decorator": _wrapper,
    "partialmethod": Weather().bound,
    "callable object": Weather(),
}


@pytest.mark.parametrize("form", BINDING)
@pytest.mark.parametrize("kind", [FunctionTool, LongRunningFunctionTool, AuthenticatedFunctionTool])
async def test_bound_arguments_of_a_partial_are_neither_declared_nor_accepted(
    form: str, kind: type[FunctionTool]
) -> None:
    """Bound arguments are hidden, because they may be secrets. A predicate that binds a value keeps it, too."""
    tool = kind(BINDING[form], name="look_up")
    assert list((tool._get_declaration() or {})["parametersJsonSchema"]["properties"]) == ["city"]
    args = {"city": "Bern", "key": "other", "unit": "F"}
    assert await tool.run_async(args=args, tool_context=ToolContext()) == ("C", "sk-1", "Bern")
    tool.require_confirmation = functools.partial(lambda city, key: key == "mine", key="mine")
    assert await tool.check_require_confirmation(args, ToolContext())


async def test_parameters_with_reserved_names_are_filled() -> None:
    """Parameters with reserved names are filled, even with names that pydantic reserves."""

    def f(schema: str, model_config: int, _x: int) -> object:
        return schema, model_config, _x

    assert await call(f, {"schema": "s", "model_config": "1", "_x": 2}) == ("s", 1, 2)


# Injection of the context


async def test_a_parameter_annotated_as_context_receives_it() -> None:
    """The context is injected for all three names of the class, and Optional, under any parameter name."""

    def by_tool_context(c: ToolContext, a: int) -> object:
        return c

    def by_context(a: int, c: Context) -> object:
        return c

    def by_optional(a: int, c: CallbackContext | None = None) -> object:
        return c

    context = ToolContext()
    for function in (by_tool_context, by_context, by_optional):
        assert await call(function, {"a": 1}, context) is context


async def test_a_parameter_named_tool_context_receives_it_without_annotation() -> None:
    """The context is injected whatever the annotation, unless another parameter is annotated as the context."""

    def bare(tool_context):  # type: ignore[no-untyped-def]
        return tool_context

    def otherwise(tool_context: dict[str, int]) -> object:
        return tool_context

    context = ToolContext()
    assert await call(bare, {}, context) is context
    assert await call(otherwise, {}, context) is context


async def test_the_annotation_wins_over_the_name() -> None:
    """A parameter `tool_context` is an ordinary argument if another one is annotated as the context."""

    def f(ctx: ToolContext, tool_context: str) -> object:
        return ctx, tool_context

    context = ToolContext()
    assert await call(f, {"tool_context": "mine"}, context) == (context, "mine")


async def test_a_model_cannot_supply_the_context() -> None:
    """A value of the model is overwritten."""

    def f(tool_context: ToolContext) -> object:
        return tool_context

    context = ToolContext()
    assert await call(f, {"tool_context": "mine"}, context) is context


async def test_the_context_may_be_imported_for_type_checkers_only() -> None:
    """An annotation that cannot be resolved is recognized by its name."""

    module: dict[str, Any] = {}
    for annotation in ("ToolContext", "ToolContext | None", "waystation.ToolContext", "Optional[Context]"):
        exec(f"def f(a: int, ctx: {annotation!r}): return ctx", module)
        context = ToolContext()
        assert await call(module["f"], {"a": 1}, context) is context


async def test_a_second_context_is_a_mistake() -> None:
    """A second context is a mistake, because no model could fill it."""

    def f(a: ToolContext, b: ToolContext) -> None: ...

    with pytest.raises(InvalidTool, match=r"parameter 'b' .* only one parameter can be the ToolContext"):
        await call(f, {})
