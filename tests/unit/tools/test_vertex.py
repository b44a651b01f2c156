"""Declarations for Vertex AI, compared with those of google-adk 2.13."""

import datetime
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from waystation.agents import Agent, SequentialAgent
from waystation.core.payload import JsonObject
from waystation.events import Event
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import declare
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


class Address(BaseModel):
    street: str


@dataclass
class Size:
    width: int


@pytest.fixture(autouse=True)
def _vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_GENAI_USE_ENTERPRISE", raising=False)
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "TRUE")


def declared(function: Callable[..., Any]) -> JsonObject:
    declaration = declare(FunctionTool(function))
    assert declaration is not None
    return declaration


def returning(annotation: Any) -> Callable[..., Any]:
    def f() -> None: ...

    f.__annotations__["return"] = annotation
    return f


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (dict, {"type": "object", "additionalProperties": True}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (None, {"type": "null"}),
        (str | None, {"type": "string", "nullable": True}),
        (int | str | None, {"anyOf": [{"type": "integer"}, {"type": "string"}], "nullable": True}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (datetime.date, {"type": "string", "format": "date"}),
        (
            Address,
            {
                "type": "object",
                "title": "Address",
                "properties": {"street": {"title": "Street", "type": "string"}},
                "required": ["street"],
            },
        ),
        (
            Size,
            {
                "type": "object",
                "title": "Size",
                "properties": {"width": {"title": "Width", "type": "integer"}},
                "required": ["width"],
            },
        ),
        (Generator[str, None, None], {"type": "string"}),
        (AsyncGenerator[Event | dict[str, int], None], {"type": "object", "additionalProperties": {"type": "integer"}}),
        ("str", {"type": "string"}),
        (Any, None),
        (ToolContext, None),
        ("Unknown", None),
    ],
)
def test_the_result_is_declared_if_possible(annotation: Any, schema: object) -> None:
    """The return annotation is declared, unless it cannot be described."""
    assert declared(returning(annotation)).get("responseJsonSchema") == schema


def test_a_function_without_a_return_annotation_declares_no_result() -> None:
    """A function without an annotation declares no result, and a function that returns None declares it."""

    def f():  # type: ignore[no-untyped-def]  # which is the point
        ...

    assert "responseJsonSchema" not in declared(f)


def test_null_among_the_choices_becomes_nullable() -> None:
    """Null becomes nullable, because Vertex AI requires a type in every choice."""

    def f(a: str | None, b: Address | None = None, c: list[int | None] | None = None) -> None: ...

    assert declared(f)["parametersJsonSchema"]["properties"] == {
        "a": {"title": "A", "type": "string", "nullable": True},
        "b": {"$ref": "#/$defs/Address", "default": None, "nullable": True},
        "c": {
            "title": "C",
            "type": "array",
            "items": {"type": "integer", "nullable": True},
            "default": None,
            "nullable": True,
        },
    }


@pytest.mark.parametrize(
    ("enterprise", "vertex", "declares_result"),
    [("1", None, True), ("true", "0", True), ("0", "1", False), (None, "1", True), (None, "yes", False)],
)
def test_the_environment_chooses_vertex(
    monkeypatch: pytest.MonkeyPatch, enterprise: str | None, vertex: str | None, declares_result: bool
) -> None:
    """The environment is read as by google-genai: the newer variable wins, and only `1` and `true` count."""
    for name, value in (("ENTERPRISE", enterprise), ("VERTEXAI", vertex)):
        monkeypatch.delenv(f"GOOGLE_GENAI_USE_{name}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"GOOGLE_GENAI_USE_{name}", value)
    assert ("responseJsonSchema" in declared(returning(str))) is declares_result


@pytest.mark.parametrize(("output_schema", "kind"), [(None, "string"), (Address, "object")])
def test_a_called_agent_declares_an_object_result(
    monkeypatch: pytest.MonkeyPatch, output_schema: Any, kind: str
) -> None:
    """The last agent of a sequence sets the result; the schema is not sent to the Gemini API.

    Source: adk-semantics 4.1.
    """
    last = Agent(name="last", output_schema=output_schema)
    tool = AgentTool(SequentialAgent(name="team", sub_agents=[Agent(name="first"), last]))
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "1")
    assert (tool._get_declaration() or {})["responseJsonSchema"] == {"type": kind}
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "0")
    assert "responseJsonSchema" not in (tool._get_declaration() or {})
