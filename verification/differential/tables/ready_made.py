"""Built-in tools, and agents called with schemas. Sections 2.3, 4 and 9.2 of the semantics page."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from verification.differential.scenario import Cast, Json, Reply, Scenario, alone, calls, responds, shows
from waystation.agents import LlmAgent, LoopAgent, SequentialAgent
from waystation.tools import (
    AgentTool,
    exit_loop,
    get_user_choice,
    google_search,
    request_input,
    url_context,
)


class Question(BaseModel):
    """A question."""

    text: str
    count: int = 3


class Reading(BaseModel):
    """An answer."""

    degrees: int
    note: str | None = None


def look() -> str:
    """Look around."""
    return "nothing to see"


def _child(cast: Cast, **settings: Any) -> Any:
    return LlmAgent(name="child", description="A child.", model=cast.model("child"), **settings)


def _calling(make: Callable[[Cast], Any], **options: Any) -> Callable[[Cast], Any]:
    return lambda cast: LlmAgent(name=cast.name, model=cast.model("main"), tools=[AgentTool(make(cast), **options)])


def _steps(cast: Cast) -> Any:
    first = LlmAgent(name="first", model=cast.model("first"), output_key="draft")
    second = LlmAgent(name="second", model=cast.model("second"), instruction="Mend {draft}.")
    return SequentialAgent(name="child", description="Two steps.", sub_agents=[first, second])


def _loop(cast: Cast) -> Any:
    first = LlmAgent(name="first", description="Tries.", model=cast.model("first"))
    second = LlmAgent(name="second", description="Judges.", model=cast.model("second"), tools=[exit_loop])
    return LoopAgent(name=cast.name, sub_agents=[first, second])


def _scenario(name: str, agent: Callable[[Cast], Any], script: dict[str, list[Reply]], **fields: Any) -> Scenario:
    return Scenario(name=name, agent=agent, script=script, **fields)


def _asked(name: str, args: Json, child: Reply, **settings: Any) -> Scenario:
    fields = {"deviations": SCHEMA if "output_schema" in settings else {}}
    script: dict[str, list[Reply]] = {"main": [calls(("child", args)), "done"], "child": [child]}
    return _scenario(f"agent_tool_{name}", _calling(lambda cast: _child(cast, **settings)), script, **fields)


SCHEMA = shows("output-as-json-schema")
CHOICE = calls(("get_user_choice", {"options": ["a", "b"]}))
INPUT = calls(("adk_request_input", {"message": "How many?"}))

TABLE: list[Scenario] = [
    _asked("with_an_input_schema", {"text": "x"}, "child says", input_schema=Question),
    _asked("with_an_output_schema", {"request": "x"}, '{"degrees": 3}', output_schema=Reading),
    _asked(
        "with_both_schemas",
        {"text": "x", "count": 1},
        '{"degrees": 3, "note": "n"}',
        input_schema=Question,
        output_schema=Reading,
    ),
    _scenario(
        "agent_tool_with_an_output_schema_and_without_a_summary",
        _calling(lambda cast: _child(cast, output_schema=Reading), skip_summarization=True),
        {"main": [calls(("child", {"request": "x"}))], "child": ['{"degrees": 3}']},
        deviations=SCHEMA,
    ),
    _scenario(
        "agent_tool_of_a_sequence",
        _calling(_steps),
        {"main": [calls(("child", {"request": "x"})), "done"], "first": ["draft one"], "second": ["better"]},
        deviations=shows("quotations-are-introduced-otherwise"),
    ),
    _scenario(
        "loop_with_exit_loop",
        _loop,
        {"first": ["1", "2"], "second": ["again", calls(("exit_loop", {}))]},
        deviations=shows("quotations-are-introduced-otherwise", ready_made_words=["exit_loop"]),
    ),
    alone("ready_made_search", "found", tools=lambda: [google_search], model="gemini-3.5-flash"),
    alone("ready_made_search_of_another_model", tools=lambda: [google_search]),
    alone("ready_made_url_context", "found", tools=lambda: [url_context], model="gemini-3.5-flash"),
    alone(
        "ready_made_choice",
        CHOICE,
        "done",
        tools=lambda: [get_user_choice],
        answers=[responds({"choice": "a"})],
        deviations=shows(ready_made_words=["get_user_choice"], silent_actions={"skipSummarization": True}),
    ),
    alone(
        "ready_made_input",
        INPUT,
        "done",
        tools=lambda: [request_input],
        answers=[responds({"n": 3})],
        deviations=shows(ready_made_words=["adk_request_input"]),
    ),
]
