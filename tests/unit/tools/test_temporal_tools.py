"""Tools for which the workflow runs code of the user: declarations, arguments and settings."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from waystation import ActivityTool, NexusTool, WorkflowTool
from waystation.core.contract import Target
from waystation.core.errors import InvalidTool
from waystation.tools import ToolContext
from waystation.tools.base_tool import declare
from waystation.tools.temporal_tools import MAX_ARGUMENT_BYTES, TemporalTool


class Refund(BaseModel):
    """Refund an order."""

    order_id: str = Field(alias="orderId")
    cents: int = 100


def move(source: str, cents: int = 5, note: str | None = None) -> None:
    """Move money."""


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "args", "prepared", "parameters"),
    [
        pytest.param(Refund, {"orderId": "A1", "x": 1}, {"orderId": "A1"}, None, id="a model drops unknown fields"),
        pytest.param(Refund, {"orderId": "A1", "cents": "7"}, {"orderId": "A1", "cents": 7}, None, id="it converts"),
        pytest.param(
            move,
            {"source": "a", "x": 1},
            {"source": "a", "cents": 5, "note": None},
            ("source", "cents", "note"),
            id="a function",
        ),
        pytest.param(OBJECT, {"a": 1}, {"a": 1}, None, id="a JSON schema"),
        pytest.param({**OBJECT, "additionalProperties": True}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, None, id="open"),
        pytest.param(None, {}, {}, (), id="no arguments"),
    ],
)
def test_arguments_are_prepared_as_the_schema_says(
    schema: Any, args: dict[str, Any], prepared: dict[str, Any], parameters: tuple[str, ...] | None
) -> None:
    """The prepared arguments are exactly what the code receives, by name or in order."""
    tool = ActivityTool("do", schema=schema)
    assert tool.prepare(args) == prepared
    assert tool.target(check=False) == Target(name="do", parameters=parameters)


@pytest.mark.parametrize(
    ("schema", "args", "reason"),
    [
        (Refund, {}, "orderId: Field required"),
        (Refund, {"orderId": "A1", "cents": []}, "cents: Input should be a valid integer"),
        (move, {"cents": 5}, "source"),
        (OBJECT, {"a": "1"}, "'1' is not of type 'integer'"),
        (OBJECT, {"a": 1, "b": 2}, "'b' was unexpected"),
        (None, {"a": 1}, "'a' was unexpected"),
        (OBJECT | {"properties": {}, "required": [], "additionalProperties": True}, {"a": "x" * 200_000}, "200,008"),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(schema: Any, args: dict[str, Any], reason: str) -> None:
    """The reason names the argument; an approver who edits the arguments sees it, too."""
    tool = ActivityTool("do", schema=schema)
    with pytest.raises(ValueError, match=reason):
        tool.prepare(args)
    with pytest.raises(ValueError, match=reason):
        tool.edited(args, {})
    assert MAX_ARGUMENT_BYTES == 200_000


def test_models_see_the_name_and_the_parameters_and_not_the_code() -> None:
    """The description is the docstring of the model or function, unless another is given."""
    declared = declare(ActivityTool("Refunds.v2", name="refund", schema=Refund))
    assert declared is not None
    assert (declared["name"], declared["description"]) == ("refund", "Refund an order.")
    assert set(declared["parametersJsonSchema"]["properties"]) == {"orderId", "cents"}
    assert declare(WorkflowTool("move", schema=move, description="Moves.")) == {
        "name": "move",
        "description": "Moves.",
        "parametersJsonSchema": declare(WorkflowTool("move", schema=move))["parametersJsonSchema"],  # type: ignore[index]
    }
    assert declare(ActivityTool("ping")) == {"name": "ping"}


def with_context(order: str, tool_context: ToolContext) -> None:
    """Take arguments that only tools receive."""


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ActivityTool("do", effect="once", retries=1), "after a lost worker; remove one of them"),
        (lambda: ActivityTool("do", schema={"type": "array"}), "does not describe an object"),
        (lambda: ActivityTool("do", schema={"type": "objekt"}), "not a valid JSON schema"),
        (lambda: ActivityTool("do", schema=7), "use a pydantic model, a JSON schema or a function"),  # type: ignore[arg-type]
        (lambda: ActivityTool("do", schema=with_context), "which only tools receive"),
        (lambda: WorkflowTool("AgentInvocation"), "use an AgentTool to call an agent"),
        (lambda: NexusTool("do", endpoint="e", service="s", effect="once"), "the server repeats requests"),
        (lambda: NexusTool("do", endpoint="e", service="s", retries=1), "remove them"),
        (lambda: ActivityTool("do", timeout=timedelta()), "use a duration above zero"),
    ],
)
def test_unusable_settings_are_refused(make: Any, problem: str) -> None:
    """The error names the setting and the remedy."""
    with pytest.raises(InvalidTool, match=problem):
        make()


def test_an_operation_takes_one_object_even_if_a_function_describes_it() -> None:
    """An operation takes one object, because Nexus operations have one argument.

    It is never `once`, even after a confirmation.
    """
    tool = NexusTool("move", endpoint="e", service="s", schema=move)
    assert tool.target(check=True) == Target(kind="nexus", name="move", check=True, endpoint="e", service="s")
    assert tool.effect_when(confirmed=True) == "repeatable"
    assert NexusTool("ping", endpoint="e", service="s").parameters == ()


async def test_the_code_runs_only_in_the_workflow() -> None:
    """The code runs only in the workflow, and another tool cannot run it."""
    tool: TemporalTool = ActivityTool("do")
    with pytest.raises(InvalidTool, match="ActivityTool cannot run inside another tool"):
        await tool.run_async(args={}, tool_context=None)  # type: ignore[arg-type]


class Loose(BaseModel):
    """A model that allows additional fields."""

    model_config = ConfigDict(extra="allow")


def test_a_model_that_allows_fields_passes_them() -> None:
    """Additional fields are passed if the model's author allows them, like `additionalProperties`."""
    assert ActivityTool("do", schema=Loose).prepare({"a": 1}) == {"a": 1}
