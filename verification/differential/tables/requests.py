"""The requests of a model: instructions, contents, configuration. Sections 9.3 and 13.3 of the semantics page."""

from typing import Any

from google.genai import types
from pydantic import BaseModel

from verification.differential.scenario import Json, Problem, Scenario, alone, calls, shows
from waystation.agents.readonly_context import ReadonlyContext


def look() -> str:
    """Look around."""
    return "nothing to see"


def _by_function(context: ReadonlyContext) -> str:
    return f"You are {context.agent_name} and know {context.state['name']}, not {{name}}."


async def _by_async_function(context: ReadonlyContext) -> str:
    return f"Serve {context.state['name']}."


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int = 20
    note: str | None = None


SCHEMA = shows("output-as-json-schema")

TEMPLATES: dict[str, tuple[Any, Json]] = {
    "plain": ("Be brief.", {}),
    "with_a_name": ("Serve {name}.", {"name": "Ann"}),
    "with_several": (
        "Serve {name} of {user:city}, {app:product}.",
        {"name": "A", "user:city": "B", "app:product": "C"},
    ),
    "with_numbers_and_lists": ("{n} {list} {none}.", {"n": 1.5, "list": [1, "a"], "none": None}),
    "with_an_optional_one": ("Serve {name?}{other?}.", {"name": "Ann"}),
    "with_other_braces": ('Write {{name}} and {"a": 1} and {not a name} and { name }.', {"name": "Ann"}),
    "by_function": (_by_function, {"name": "Ann"}),
    "by_async_function": (_by_async_function, {"name": "Ann"}),
}


def _instructed(name: str, instruction: Any, state: Json) -> Scenario:
    return alone(f"instruction_{name}", "done", agent={"instruction": instruction}, state=state)


def _configured(name: str, **settings: Any) -> Scenario:
    return alone(f"request_{name}", calls(("look", {})), "done", tools=lambda: [look], agent=settings)


TABLE: list[Scenario] = [
    alone("request_with_a_description", "done", agent={"description": "An agent."}),
    alone("request_with_both", "done", agent={"description": "An agent.", "instruction": "Be brief."}),
    alone(
        "message_with_parts",
        "done",
        message={"role": "user", "parts": [{"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
    ),
    alone("model_reports_an_error", Problem("SAFETY", "It was blocked.")),
    alone("model_reports_an_error_after_a_call", calls(("look", {})), Problem("SAFETY", "No."), tools=lambda: [look]),
    _configured(
        "with_a_configuration",
        generate_content_config=types.GenerateContentConfig(
            temperature=0.2, max_output_tokens=10, stop_sequences=["x"]
        ),
    ),
]

TEMPLATED: list[Scenario] = [_instructed(name, *row) for name, row in TEMPLATES.items()]

CONTENTS: list[Scenario] = [
    _configured("without_contents", include_contents="none"),
    _configured("with_global_instruction", global_instruction="Always."),
]

OUTPUT: list[Scenario] = [
    alone("output_key", "the answer", agent={"output_key": "answer"}),
    alone(
        "output_key_after_a_call",
        calls(("look", {}), text="I look."),
        "seen",
        tools=lambda: [look],
        agent={"output_key": "user:answer"},
    ),
    alone("output_schema", '{"city": "Bonn"}', agent={"output_schema": Weather}, deviations=SCHEMA),
    alone(
        "output_schema_and_key",
        '{"city": "Bonn", "degrees": 3}',
        agent={"output_schema": Weather, "output_key": "weather"},
        deviations=SCHEMA,
    ),
    alone(
        "output_schema_with_tools",
        calls(("look", {})),
        '{"city": "Bonn"}',
        tools=lambda: [look],
        agent={"output_schema": Weather},
    ),
]
