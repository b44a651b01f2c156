"""Agents have ADK's fields, and every mistake is named with its remedy."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel, ValidationError

from waystation.agents import Agent, BaseAgent, LlmAgent, LoopAgent, ParallelAgent, RunConfig, SequentialAgent
from waystation.agents.custom_agent import CustomAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.agents.tree import create_agent_spec, keeps_turn, transfer_target, transfer_targets
from waystation.apps import App
from waystation.apps.registry import Registry, authoring_problems
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core.budget import Budget
from waystation.core.contract import AgentSpec
from waystation.models import Gemini
from waystation.plugins import BasePlugin, ReflectAndRetryToolPlugin, TrackingScope
from waystation.plugins.base_plugin import overrides_callback
from waystation.tools.agent_tool import AgentTool


def names(agents: list[BaseAgent]) -> list[str]:
    """Return the names of agents."""
    return [agent.name for agent in agents]


def test_sub_agents_know_their_parent_and_are_found_by_name() -> None:
    """Sub-agents are found at any depth."""
    leaf = Agent(name="leaf")
    root = Agent(name="root", sub_agents=[Agent(name="branch", sub_agents=[leaf])])
    assert leaf.parent_agent is not None
    assert (leaf.parent_agent.name, leaf.root_agent) == ("branch", root)
    assert root.find_agent("leaf") is leaf
    assert root.find_sub_agent("root") is None


def test_an_agent_has_one_parent() -> None:
    """The error has ADK's text."""
    child = Agent(name="child")
    Agent(name="first", sub_agents=[child])
    with pytest.raises(ValidationError, match="Agent `child` already has a parent agent, current parent: `first`"):
        Agent(name="second", sub_agents=[child])


def test_a_clone_has_no_parent_and_cloned_sub_agents() -> None:
    """A clone can be in another tree."""
    original = Agent(name="a", sub_agents=[Agent(name="b")], tools=[print])
    Agent(name="root", sub_agents=[original])
    clone = original.clone({"name": "c"})
    assert (clone.name, clone.parent_agent, clone.sub_agents[0].parent_agent) == ("c", None, clone)
    assert clone.sub_agents[0] is not original.sub_agents[0]
    assert clone.tools is not original.tools
    with pytest.raises(ValueError, match="nonexistent fields in LlmAgent"):
        original.clone({"nope": 1})


def test_an_agent_with_its_own_run_method_is_refused_at_its_definition() -> None:
    """An agent with its own run method is refused, because the code would run in the workflow."""
    with pytest.raises(TypeError, match="defines `_run_async_impl`, which cannot run: an agent runs in the workflow"):

        class Custom(BaseAgent):
            async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Any]:
                yield None


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (types.GenerateContentConfig(tools=[types.Tool()]), "All tools must be set via LlmAgent.tools"),
        (types.GenerateContentConfig(system_instruction="x"), "System instruction must be set via"),
        ({"responseSchema": {"type": "STRING"}}, "Response schema must be set via LlmAgent.output_schema"),
    ],
)
def test_a_generation_config_refuses_fields_of_the_agent(config: Any, remedy: str) -> None:
    """Fields of the agent are refused, as in ADK; all others are accepted."""
    with pytest.raises(ValidationError, match=remedy):
        Agent(name="a", generate_content_config=config)
    Agent(name="a", generate_content_config=types.GenerateContentConfig(temperature=0.1))


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"planner": object()}, "It is an object; use an instance of a subclass of BasePlanner."),
        ({"mode": "single_turn"}, "Wrap an agent that handles a single request in AgentTool"),
        ({"code_executor": object()}, "object is not supported; use BuiltInCodeExecutor"),
        ({"instruction": 3}, "It is an int; use text, or a function that returns text."),
        ({"tools": [Agent(name="c")]}, "Agent 'c' cannot be used directly as a tool."),
        ({"temperature": 1}, "Extra inputs are not permitted"),
    ],
)
def test_an_unsupported_field_is_refused_with_the_remedy(fields: dict[str, Any], remedy: str) -> None:
    """An unsupported field is refused instead of ignored."""
    with pytest.raises(ValidationError, match=remedy):
        Agent(name="a", **fields)


def test_a_field_without_effect_is_accepted() -> None:
    """A field without effect is accepted, because code for ADK may write out its defaults."""
    agent = Agent(name="a", mode="chat", planner=None, timeout=None, code_executor=BuiltInCodeExecutor())  # type: ignore[call-arg]
    assert agent.code_executor is not None


def test_a_model_is_inherited() -> None:
    """A model is inherited through agents of any kind, so every agent has a model."""
    child, lost = Agent(name="child"), Agent(name="lost")
    Agent(name="root", model="gemini-x", sub_agents=[SequentialAgent(name="s", sub_agents=[child])])
    assert (child.declared_model, lost.declared_model) == ("gemini-x", LlmAgent.DEFAULT_MODEL)
    assert (child.canonical_model.model, type(child.canonical_model)) == ("gemini-x", Gemini)
    assert child.canonical_model is child.canonical_model


def test_an_unknown_model_name_has_no_object() -> None:
    """The error names the remedy."""
    with pytest.raises(ValueError, match=r"'gtp-4' is not a model of .* Correct the name, pass a model object"):
        _ = Agent(name="a", model="gtp-4").canonical_model


async def test_instructions_and_tools_can_be_resolved_as_in_adk() -> None:
    """Placeholders in instructions are kept, functions are called, and functions in `tools` become tools."""

    async def instruct(context: ReadonlyContext) -> str:
        return f"Serve {context.user_id}."

    def look() -> str:
        return "seen"

    agent = Agent(name="a", instruction="Serve {user}.", global_instruction=instruct, tools=[look])
    context = ReadonlyContext(user_id="ann")
    assert await agent.canonical_instruction(context) == ("Serve {user}.", False)
    assert await agent.canonical_global_instruction(context) == ("Serve ann.", True)
    assert [tool.name for tool in await agent.canonical_tools(context)] == ["look"]


def test_an_agent_may_transfer_to_children_parent_and_peers() -> None:
    """The targets are in this order: children, parent, peers. Source: adk-semantics 9.1."""
    leaf = Agent(name="leaf")
    one = Agent(name="one", sub_agents=[leaf])
    shy = Agent(name="shy", disallow_transfer_to_parent=True)
    lone = Agent(name="lone", disallow_transfer_to_peers=True)
    step = Agent(name="step")
    root = Agent(name="root", sub_agents=[one, shy, lone, SequentialAgent(name="line", sub_agents=[step])])
    assert names(transfer_targets(one)) == ["leaf", "root", "shy", "lone", "line"]
    assert names(transfer_targets(shy)) == ["one", "lone", "line"]
    assert names(transfer_targets(lone)) == ["root"]
    assert names(transfer_targets(step)) == []
    assert names(transfer_targets(root)) == ["one", "shy", "lone", "line"]
    assert transfer_target(one, "one") is one
    with pytest.raises(ValueError, match="Agent root is not allowed to transfer to agent leaf"):
        transfer_target(root, "leaf")
    with pytest.raises(ValueError, match="Transfer target agent 'x' not found"):
        transfer_target(root, "x")


def test_the_next_message_goes_to_an_agent_that_may_transfer_upward() -> None:
    """The agent and all its ancestors must allow transfers upward. Source: adk-semantics 9.1."""
    free, below = Agent(name="free"), Agent(name="below")
    shy = Agent(name="shy", disallow_transfer_to_parent=True, sub_agents=[below])
    step = Agent(name="step")
    root = Agent(name="root", sub_agents=[free, shy, LoopAgent(name="loop", sub_agents=[step])])
    assert [keeps_turn(agent) for agent in (root, free, shy, below, step)] == [True, True, False, False, False]


def test_a_workflow_receives_the_spec_of_a_tree() -> None:
    """The spec contains composite agents whole, and of an LLM agent only the parts for entering and leaving it."""

    class Watching(BasePlugin):
        async def after_run_callback(self, *, invocation_context: Any) -> None: ...

    step = Agent(name="step", after_agent_callback=print, sub_agents=[Agent(name="below")])
    loop = LoopAgent(name="loop", max_iterations=2, sub_agents=[step], before_agent_callback=print)
    both = ParallelAgent(name="both", sub_agents=[loop])
    shape = AgentSpec(
        name="both",
        kind="parallel",
        keeps_turn=False,
        children=(
            AgentSpec(
                name="loop",
                kind="loop",
                max_iterations=2,
                before=True,
                keeps_turn=False,
                children=(AgentSpec(name="step", after=True, keeps_turn=False),),
            ),
        ),
    )
    assert create_agent_spec(both, []) == shape
    assert create_agent_spec(both, [Watching("w")]) == shape
    assert create_agent_spec(both, [Watching("w")], first=True) == shape.model_copy(update={"after": True})


@pytest.mark.parametrize(
    ("agent", "repeats"),
    [
        (CustomAgent(name="a"), True),
        (SequentialAgent(name="a", sub_agents=[CustomAgent(name="b")]), True),
        (SequentialAgent(name="a", before_agent_callback=print), True),
        (SequentialAgent(name="a"), False),
        (Agent(name="a", before_agent_callback=print), False),
    ],
)
def test_a_loop_records_whether_it_may_repeat_without_a_model(agent: BaseAgent, repeats: bool) -> None:
    """A loop with an LLM agent has no such record, because model calls count its rounds."""
    assert create_agent_spec(LoopAgent(name="loop", sub_agents=[agent]), []).repeats is repeats


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        (BaseAgent(name="a"), "a BaseAgent cannot run; use LlmAgent, SequentialAgent, ParallelAgent or"),
        (
            Agent(name="a", before_agent_callback=lambda: None),
            "`before_agent_callback` takes (); use the parameters (callb",
        ),
        (Agent(name="a", instruction=lambda: ""), "`instruction` takes (); use the parameters (context)."),
        (Agent(name="a", output_schema=object()), "its `output_schema` has no JSON schema ("),
        (Agent(name="a", output_schema=object), "its `output_schema` allows any value; use a pydantic model"),
        (
            Agent(name="a", generate_content_config={"temperature": "warm"}),
            "its `generate_content_config` is invalid: `temperature` is 'warm'; use a number.",
        ),
        (
            Agent(name="a", generate_content_config={"temprature": 1}),
            "its `generate_content_config` is invalid: there is no field `temprature`; did you mean `temperature`?",
        ),
        (Agent(name="a", generate_content_config=3), "its `generate_content_config` is invalid: it is 3; use a dict"),
        (
            Agent(name="a", static_instruction=["x", 3]),
            "its `static_instruction` contains an int; use text, a genai Content or Part, or a list of them.",
        ),
    ],
    ids=["kind", "arity", "provider", "schema", "empty schema", "config", "field", "no config", "static"],
)
def test_mistakes_in_an_agent_are_found_before_it_runs(agent: BaseAgent, problem: str) -> None:
    """Each mistake is reported with the agent's name and the remedy."""
    root = SequentialAgent(name="root", sub_agents=[agent])
    [found] = authoring_problems(root)
    assert str(found).startswith(f"Agent 'a': {problem}")


def test_an_agent_below_itself_is_reported() -> None:
    """An agent below itself is reported at any depth, because such a tree has no end."""
    outer, inner = SequentialAgent(name="outer"), SequentialAgent(name="inner")
    outer.sub_agents.append(inner)
    inner.sub_agents.append(outer)
    problems = [str(problem) for problem in authoring_problems(outer)]
    assert [text for text in problems if "contain the agent itself" in text] == [
        f"Agent {name!r}: its `sub_agents` contain the agent itself, so it would never end; use a clone."
        for name in ("outer", "inner")
    ]


def test_callbacks_may_have_any_parameter_names() -> None:
    """Arguments that cannot be passed by keyword are passed by position, like in ADK."""

    def by_position(a: Any, b: Any, c: Any) -> None: ...

    def by_keyword(*, tool: Any, tool_context: Any, args: Any) -> None: ...

    def anything(*args: Any, **kwargs: Any) -> None: ...

    assert authoring_problems(Agent(name="a", before_tool_callback=[by_position, by_keyword, anything])) == []


def test_two_agents_with_one_name_or_two_parents_are_reported() -> None:
    """The mistake is reported even if `sub_agents` was set after the agent was created."""
    child = Agent(name="twin")
    first = Agent(name="first", sub_agents=[child])
    second = Agent(name="second", sub_agents=[Agent(name="other", sub_agents=[Agent(name="twin")])])
    second.sub_agents.append(child)
    problems = [str(problem) for problem in authoring_problems(Agent(name="root", sub_agents=[first, second]))]
    assert problems == [
        "Agent 'second': its sub-agent 'twin' already has the parent 'first'; use `twin.clone()` with another name.",
        "Two agents are named 'twin' (root.sub_agents[0].sub_agents[0], root.sub_agents[1].sub_agents[0].sub_agents[0]"
        "); rename one of them.",
    ]


def test_the_input_schema_of_a_called_sequence_is_that_of_its_first_agent() -> None:
    """The input schema is inherited from the first agent. Source: adk-semantics 4.1."""

    class Place(BaseModel):
        city: str

    line = SequentialAgent(name="line", sub_agents=[Agent(name="a", input_schema=Place), Agent(name="b")])
    assert AgentTool(line).agent.request_schema is Place
    assert AgentTool(SequentialAgent(name="empty")).agent.request_schema is None
    assert AgentTool(line).message_for({"city": "Bern", "more": 1}) == '{"city":"Bern"}'


def test_plugins_of_an_app_apply_to_every_agent_of_its_tree() -> None:
    """Agents that are called with `include_plugins=False` have none, unless they are also in the tree."""
    alone, both = Agent(name="alone"), Agent(name="both")
    tools = [AgentTool(alone, include_plugins=False), AgentTool(both, include_plugins=False)]
    root = Agent(name="root", tools=tools, sub_agents=[both])
    plugin = BasePlugin("p")
    found_agent, agent = Registry.of(App(name="app", root_agent=root, plugins=[plugin])).find("root", "alone")
    assert [found_agent.plugins_of(agent), found_agent.plugins_of(both), found_agent.plugins_of(root)] == [
        (),
        (plugin,),
        (plugin,),
    ]


def test_plugins_of_one_app_have_different_names() -> None:
    """The error has ADK's text."""
    with pytest.raises(ValidationError, match="Plugin with name 'p' already registered"):
        App(name="app", root_agent=Agent(name="a"), plugins=[BasePlugin("p"), BasePlugin("p")])


def test_a_plugin_that_changes_events_is_refused() -> None:
    """A plugin that changes events is refused, because events must follow from the log."""
    with pytest.raises(TypeError, match=r"`Meddling\.on_event_callback` is not supported: events are computed"):

        class Meddling(BasePlugin):
            async def on_event_callback(self, **kwargs: Any) -> None: ...


def test_only_overridden_hooks_count() -> None:
    """Agents without plugins pay nothing for them."""
    plugin = ReflectAndRetryToolPlugin()
    assert [overrides_callback(plugin, f"{hook}_callback") for hook in ("on_tool_error", "before_model")] == [
        True,
        False,
    ]
    with pytest.raises(ValueError, match="workers do not share memory"):
        ReflectAndRetryToolPlugin(tracking_scope=TrackingScope.GLOBAL)


def test_a_run_config_without_effect_is_accepted_and_named() -> None:
    """Settings without effect are named, and settings that would change the behavior are refused."""
    config = RunConfig.model_validate({"max_llm_calls": 3, "tool_thread_pool_config": object()})
    assert (config.budget(), config.ignored) == (Budget(max_llm_calls=3), ("tool_thread_pool_config",))
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        RunConfig.model_validate({"support_cfc": True})
    with pytest.raises(ValidationError, match="0 would not allow any model calls"):
        RunConfig(max_llm_calls=0)


def test_a_plugin_whose_hook_takes_other_parameters_is_refused() -> None:
    """Hooks are called by keyword, so the plugin would fail every call."""

    class Misdeclared(BasePlugin):
        async def before_tool_callback(self, tool: Any, args: Any) -> None:  # type: ignore[override]
            """See a tool."""

    with pytest.raises(ValidationError) as refused:
        App(name="app", root_agent=Agent(name="a"), plugins=[Misdeclared("p")])
    assert "`Misdeclared.before_tool_callback` takes (tool: Any, args: Any) -> None; use the parameters" in str(
        refused.value
    )
    assert "use the parameters (tool, tool_args, tool_context)." in str(refused.value)
