"""Edited arguments of an approver are converted as the tool will receive them, or refused."""

import datetime
import enum
from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tests.unit.tools.rest_service import serving
from waystation.core.payload import JsonObject
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.langchain_tool import LangchainTool
from waystation.tools.tool_context import ToolContext


class Speed(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


class Receiver(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    name: str
    account: str = Field(alias="accountNumber")


def pay(
    amount: int,
    to: Receiver | None = None,
    on: datetime.date | None = None,
    speed: Speed = Speed.SLOW,
    tool_context: ToolContext | None = None,
) -> None:
    """Pay."""


def edited(args: JsonObject, displayed: JsonObject | None = None, tool: BaseTool | None = None) -> JsonObject:
    return (tool or FunctionTool(pay)).edited(args, displayed or {})


def test_arguments_are_converted_as_the_function_receives_them() -> None:
    """The result is JSON with the names that the tool declares, without added defaults."""
    edits = {"amount": "5", "on": "2026-11-21", "to": {"name": "Rose", "accountNumber": "7"}, "speed": "fast"}
    assert edited(edits) == {**edits, "amount": 5}
    assert edited({"amount": 5.0}) == {"amount": 5}


def test_a_second_conversion_changes_nothing() -> None:
    """The approver's arguments are converted once more when the tool runs."""
    once = edited({"amount": "5", "on": "2026-11-21T00:00:00", "to": {"name": "Rose", "account": "7"}})
    assert edited(once) == once


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({}, "parameter 'amount' is missing"),
        ({"amount": "much"}, "Parameter 'amount': expected type 'int'"),
        ({"amount": 5, "speed": "faster"}, "Parameter 'speed'"),
        ({"amount": 5, "to": {"name": "Rose"}}, "accountNumber: Field required"),
        ({"amount": 5, "amuont": 6}, "it has no parameter 'amuont'"),
        ({"amount": 5, "tool_context": {}}, "it has no parameter 'tool_context'"),
    ],
)
def test_an_invalid_argument_is_named(args: JsonObject, problem: str) -> None:
    """Each mistake is reported once, in words for a person."""
    with pytest.raises(ValueError, match=problem) as raised:
        edited(args)
    assert "You could retry" not in str(raised.value)


def test_all_mistakes_are_reported_at_once() -> None:
    """All mistakes are reported at once, because approvers submit a form as a whole."""
    with pytest.raises(ValueError, match=r"no parameter 'a'.*'amount' is missing.*Parameter 'speed'") as raised:
        edited({"a": 1, "speed": "faster"})
    assert str(raised.value).count("amount") == 1


def test_arguments_invented_by_the_model_are_dropped() -> None:
    """The function never receives them; an approver who leaves them in the form makes no mistake."""
    assert edited({"amount": 5, "made_up": 1}, displayed={"amount": 6, "made_up": 1}) == {"amount": 5}
    with pytest.raises(ValueError, match="no parameter 'made_up'"):
        edited({"amount": 5, "made_up": 2}, displayed={"amount": 6, "made_up": 1})


def test_a_value_that_does_not_survive_a_round_trip_is_kept_unchanged() -> None:
    """The value is kept unchanged: pydantic, for example, writes a secret as asterisks."""

    def log_in(password: SecretStr, times: int) -> None:
        """Log in."""

    edits = {"password": "tea", "times": "3"}
    assert edited(edits, tool=FunctionTool(log_in)) == edits


class Remote(BaseTool):
    """A tool that has only a schema."""

    def __init__(self, schema: Any) -> None:
        super().__init__(name="remote", description="")
        self.schema = schema

    def _get_declaration(self) -> JsonObject | None:
        return {"name": "remote", "parametersJsonSchema": self.schema} if self.schema else {"name": "remote"}


SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 10}, "to": {"$ref": "#/$defs/To"}},
    "required": ["amount"],
    "additionalProperties": False,
    "$defs": {"To": {"type": "object", "required": ["name"]}},
}


def test_other_tools_are_validated_by_their_schema() -> None:
    """Other tools are validated by their schema, including references within it."""
    good = {"amount": 5, "to": {"name": "Rose"}}
    assert edited(good, tool=Remote(SCHEMA)) == good
    assert edited({"whatever": 1}, tool=Remote(None)) == {"whatever": 1}
    with pytest.raises(ValueError, match="amount: 11 is greater than the maximum of 10; to: 'name' is a required"):
        edited({"amount": 11, "to": {}}, tool=Remote(SCHEMA))
    with pytest.raises(ValueError, match="'amuont' was unexpected"):
        edited({"amount": 5, "amuont": 5}, tool=Remote(SCHEMA))


def test_an_invalid_value_is_cut_in_the_error() -> None:
    """An invalid value is cut in the error, because the refusal is recorded and displayed."""
    with pytest.raises(ValueError, match="is not of type") as raised:
        edited({"amount": "x" * 10_000}, tool=Remote(SCHEMA))
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "objekt"}, "the parameter schema of `remote` is invalid: type: 'objekt'"),
        ({"properties": {"a": {"$ref": "#/$defs/Nothing"}}}, "the reference '/\\$defs/Nothing' cannot be resolved"),
        ({"$ref": "#"}, "it is infinitely recursive"),
    ],
)
def test_an_unusable_schema_is_reported(schema: JsonObject, problem: str) -> None:
    """An error of the schema library becomes a refusal."""
    with pytest.raises(ValueError, match=problem):
        edited({"a": 1}, tool=Remote(schema))


def test_references_are_never_fetched() -> None:
    """References are never fetched, because the server of a schema could make workers send requests to anyone."""
    with serving() as service:
        schema = {"properties": {"a": {"$ref": f"{service.url}/schema"}}}
        with pytest.raises(ValueError, match=f"the reference '{service.url}/schema' cannot be resolved"):
            edited({"a": 1}, tool=Remote(schema))
        assert service.requests == []


def test_tools_of_other_frameworks_are_validated_by_their_own_model() -> None:
    """Arguments of LangChain's tools, for example, are validated by LangChain's model."""

    class Table(BaseModel):
        guests: int = Field(le=8)

    tool = LangchainTool(
        StructuredTool.from_function(lambda guests: guests, name="book", description="b", args_schema=Table)
    )
    assert edited({"guests": 8}, tool=tool) == {"guests": 8}
    with pytest.raises(ValueError, match="guests"):
        edited({"guests": 9}, tool=tool)
