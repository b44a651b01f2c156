"""An approval is bound to the parameters of a tool, but not to their descriptions."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import Field

from waystation.core.payload import JsonObject
from waystation.tools.approval import parameters_digest
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool


class Declared(BaseTool):
    """A tool with a declaration."""

    def __init__(self, schema: Any) -> None:
        super().__init__(name="it", description="")
        self.schema = schema

    def _get_declaration(self) -> JsonObject | None:
        return {"name": "it", "parametersJsonSchema": self.schema}


def digest_of(schema: Any) -> str:
    return parameters_digest(Declared(schema))


def test_descriptions_do_not_change_the_digest() -> None:
    """Docstrings, descriptions and titles at every level do not change the digest."""

    def pay(amount: int, to: dict[str, list[int]] | None = None) -> None:
        """Pay."""

    plain_digest = parameters_digest(FunctionTool(pay))

    def described(
        amount: Annotated[int, Field(description="How much.", title="Sum")],
        to: dict[str, list[Annotated[int, Field(description="The receivers.")]]] | None = None,
    ) -> None:
        """Do pay.

        Args:
            to: The receivers.
        """

    described.__name__ = "pay"
    assert parameters_digest(FunctionTool(described)) == plain_digest


def other_type(amount: float) -> None: ...
def other_name(sum: int) -> None: ...
def further(amount: int, fee: int) -> None: ...
def defaulted(amount: int = 5) -> None: ...
def bounded(amount: Annotated[int, Field(le=5)]) -> None: ...


@pytest.mark.parametrize("changed", [other_type, other_name, further, defaulted, bounded])
def test_any_other_change_changes_the_digest(changed: Callable[..., None]) -> None:
    """Types, names, additional parameters, defaults and bounds change the digest."""

    def pay(amount: int) -> None: ...

    assert parameters_digest(FunctionTool(changed)) != parameters_digest(FunctionTool(pay))


def test_a_parameter_may_be_called_description() -> None:
    """A parameter with the name `description` changes the digest, even in `$defs`."""
    text, number = {"type": "string"}, {"type": "integer"}
    for keyword in ("properties", "$defs", "definitions", "patternProperties"):
        with_text = {"type": "object", keyword: {"description": text, "title": text}}
        assert digest_of(with_text) != digest_of({"type": "object", keyword: {"title": text}})
        assert digest_of(with_text) != digest_of({"type": "object", keyword: {"description": number, "title": text}})


def test_a_parameter_may_be_called_default() -> None:
    """A parameter with the name `default` has a description that does not change the digest."""
    schemas = [{"properties": {"default": {"type": "string", "description": text}}} for text in "ab"]
    assert digest_of(schemas[0]) == digest_of(schemas[1])


def test_values_are_not_schemas() -> None:
    """An object as a default value keeps all its keys in the digest."""
    for keyword in ("default", "const", "enum", "examples"):
        changed = [{"properties": {"x": {keyword: [{"description": text}]}}} for text in "ab"]
        assert digest_of(changed[0]) != digest_of(changed[1])


def test_only_the_order_of_lists_counts() -> None:
    """The order of properties does not change the digest, as in the digest of the arguments."""
    one, other = {"type": "string"}, {"type": "integer"}
    assert digest_of({"properties": {"a": one, "b": other}}) == digest_of({"properties": {"b": other, "a": one}})
    assert digest_of({"anyOf": [one, other]}) != digest_of({"anyOf": [other, one]})


def test_a_tool_without_a_declaration_has_a_digest() -> None:
    """A tool whose declaration is absent or fails has a digest, because nothing may fail after the tool ran."""
    hidden = BaseTool(name="it", description="")
    assert parameters_digest(hidden) == parameters_digest(Declared("no schema"))
    assert parameters_digest(hidden) != digest_of({"type": "object"})
