"""Declarations are cached, but always describe the current tool."""

import functools

import pytest

from waystation.activities.contexts import Contexts, tools_for
from waystation.activities.model_call.request import build_request
from waystation.agents import Agent
from waystation.core.contract import AgentSpec
from waystation.core.conversation import Conversation
from waystation.core.log import AgentRun, Log
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel
from waystation.tools.approval import parameters_digest
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def weigh(grams: int) -> int:
    """Weigh something."""
    return grams


def test_changing_a_declaration_changes_no_other() -> None:
    """Other declarations stay the same, because models and callbacks may edit those of a request."""
    tool = FunctionTool(weigh)
    first, second = declare(tool), declare(tool)
    assert first is not None
    first["parametersJsonSchema"]["properties"].clear()
    assert declare(tool) == second != first


@pytest.mark.parametrize("kind", [FunctionTool, LongRunningFunctionTool])
def test_a_new_name_or_description_is_declared(kind: type[FunctionTool]) -> None:
    """A new name or description is declared, because tools are often renamed after they were created."""
    tool = kind(weigh)
    declare(tool)
    tool.name, tool.description = "scales", "Weigh it."
    declared = declare(tool)
    assert declared is not None
    assert (declared["name"], declared["description"].splitlines()[0]) == ("scales", "Weigh it.")


def test_declarations_follow_the_choice_of_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is read at each call, as by google-genai."""
    tool = FunctionTool(weigh)
    assert "responseJsonSchema" not in (declare(tool) or {})
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "1")
    assert "responseJsonSchema" in (declare(tool) or {})


class Moody(FunctionTool):
    """A tool with a different declaration at each call."""

    told = 0

    def _get_declaration(self) -> JsonObject | None:
        self.told += 1
        properties = {f"p{self.told}": {"type": "string"}}
        return {"name": self.name, "parametersJsonSchema": {"type": "object", "properties": properties}}


def test_a_custom_declaration_is_never_cached() -> None:
    """A custom declaration is never cached, so an approval is bound to the current parameters."""
    tool = Moody(weigh)
    assert declare(tool) != declare(tool)
    assert parameters_digest(tool) != parameters_digest(tool)


class Wrapped(FunctionTool):
    """A decorator around our method with the same name and attributes."""

    told = 0

    @functools.wraps(FunctionTool._get_declaration)
    def _get_declaration(self) -> JsonObject | None:  # type: ignore[override]  # what `wraps` makes of it
        self.told += 1
        return {**(super()._get_declaration() or {}), "description": f"Weigh something, for the {self.told}. time."}


def test_a_decorated_declaration_is_never_cached() -> None:
    """A decorated declaration is never cached, even if the decorator copies all attributes of our method."""
    tool = Wrapped(weigh)
    assert declare(tool) != declare(tool)


async def tools_of(agent: Agent) -> dict[str, BaseTool]:
    log, work = Log("i-1"), AgentRun(0, AgentSpec(name=agent.name), None, None, entered_at=0)
    return await tools_for(agent, Contexts.of(Conversation(log), work))


async def test_transfer_targets_are_declared_as_they_are_now() -> None:
    """Transfer targets are current, although ADK's own tools cache them until the tree of agents changes."""
    agent = Agent(name="top", model=ScriptedModel(), sub_agents=[Agent(name="left", model=ScriptedModel())])
    one, same = await tools_of(agent), await tools_of(agent)
    assert one["transfer_to_agent"] is same["transfer_to_agent"]
    agent.sub_agents.append(Agent(name="right", model=ScriptedModel()))
    declared = declare((await tools_of(agent))["transfer_to_agent"])
    assert declared is not None
    assert declared["parametersJsonSchema"]["properties"]["agent_name"]["enum"] == ["left", "right"]


async def test_an_output_schema_is_declared_as_it_is_now() -> None:
    """The schema is current, because a schema that is a dictionary can be changed in place."""
    schema: JsonObject = {"type": "object", "properties": {"answer": {"type": "string"}}}
    agent = Agent(name="top", model=ScriptedModel(), output_schema=schema)
    log, work = Log("i-1"), AgentRun(0, AgentSpec(name="top"), None, None, entered_at=0)
    first = await build_request(agent, Contexts.of(Conversation(log), work), {}, 1)
    agent.output_schema["properties"]["reason"] = {"type": "string"}
    second = await build_request(agent, Contexts.of(Conversation(log), work), {}, 1)
    properties = [list(request.config["responseJsonSchema"]["properties"]) for request in (first, second)]
    assert properties == [["answer"], ["answer", "reason"]]
