"""The tools of an agent, and mistakes in their declarations."""

import copy
import gc
import weakref
from typing import Any

import pytest

from waystation.agents import LlmAgent
from waystation.agents.toolbox import tools_of
from waystation.apps.registry import authoring_problems
from waystation.core.errors import AgentNameTaken, InvalidTool, ToolNameTaken
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def pay(amount: float) -> None: ...


def ask(question: str) -> None: ...


def problems_of(agent: LlmAgent) -> list[str]:
    return [str(problem) for problem in authoring_problems(agent)]


# Tests of tools_of


def test_functions_become_tools_and_tools_are_kept() -> None:
    """The tools have the order of the agent's list."""
    asking = LongRunningFunctionTool(ask)
    tools = tools_of(LlmAgent(name="a", tools=[pay, asking]))
    assert list(tools) == ["pay", "ask"]
    assert type(tools["pay"]) is FunctionTool
    assert tools["ask"] is asking


def test_the_same_tools_are_returned_until_they_change() -> None:
    """The same tools are returned, because declarations are costly; replaced, added and removed tools are noticed."""
    agent = LlmAgent(name="a", tools=[pay])
    first = tools_of(agent)["pay"]
    assert tools_of(agent)["pay"] is first
    agent.tools.append(ask)
    assert list(tools_of(agent)) == ["pay", "ask"]
    agent.tools = [ask]
    assert list(tools_of(agent)) == ["ask"]
    agent.tools[0] = pay
    assert list(tools_of(agent)) == ["pay"]


def test_the_returned_dictionary_may_be_modified() -> None:
    """The returned dictionary is a new one for each call."""
    agent = LlmAgent(name="a", tools=[pay])
    tools_of(agent).clear()
    assert list(tools_of(agent)) == ["pay"]


def test_the_cache_keeps_no_agent_alive() -> None:
    """The cache keeps no agent alive, even if a tool refers to its agent."""

    class Desk:
        def __init__(self) -> None:
            self.agent = LlmAgent(name="a", tools=[self.look])
            tools_of(self.agent)

        def look(self) -> None: ...

    agent = weakref.ref(Desk().agent)
    gc.collect()
    assert agent() is None


def test_resolving_tools_does_not_change_an_agent() -> None:
    """Copies, comparisons and dumps of the agent stay the same."""
    agent = LlmAgent(name="a", tools=[pay])
    before = (repr(agent), agent.model_dump())
    tools_of(agent)
    assert (repr(agent), agent.model_dump()) == before
    assert agent == LlmAgent(name="a", tools=[pay])
    assert list(tools_of(copy.deepcopy(agent))) == ["pay"]
    assert list(tools_of(agent.model_copy(update={"tools": [ask]}))) == ["ask"]


def test_two_tools_with_one_name_are_refused() -> None:
    """Two tools with one name are refused; ADK would declare both and run the last."""
    with pytest.raises(ToolNameTaken) as raised:
        tools_of(LlmAgent(name="a", tools=[pay, FunctionTool(pay)]))
    assert str(raised.value) == "Agent 'a' has two tools named 'pay'; rename one of them."


@pytest.mark.parametrize(
    "name",
    [
        "adk_request_confirmation",
        "adk_request_credential",
        "adk_request_input",
        "transfer_to_agent",
        "set_model_response",
        "finish_task",
    ],
)
def test_reserved_names_are_refused(name: str) -> None:
    """Reserved names are refused, because calls of the framework use them."""
    with pytest.raises(InvalidTool) as raised:
        tools_of(LlmAgent(name="a", tools=[BaseTool(name=name, description="")]))
    assert str(raised.value) == f"Tool {name!r}: the name is reserved for the framework; rename the function."


def test_exit_loop_may_be_written_by_hand() -> None:
    """A handwritten `exit_loop`, as in ADK's guide to loops, is accepted."""

    def exit_loop(tool_context: Any) -> None:
        tool_context.actions.escalate = True

    assert list(tools_of(LlmAgent(name="a", tools=[exit_loop]))) == ["exit_loop"]


@pytest.mark.parametrize("name", ["<lambda>", "größe", "1st", "", "a b", "x" * 129, "a\n"])
def test_names_that_models_refuse_are_refused(name: str) -> None:
    """Invalid names are refused, because a provider would reject every request of the agent."""
    with pytest.raises(InvalidTool, match="models do not accept this name"):
        tools_of(LlmAgent(name="a", tools=[BaseTool(name=name, description="")]))


class Forgetful(BaseTool):
    """A tool without the attributes that every tool has."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("pay", """Tool "'pay'": `tools` contains a str; use functions, BaseTools and BaseToolsets."""),
        (
            Forgetful(),
            "Tool 'Forgetful': its `__init__` must begin with `super().__init__(name=..., description=...)`.",
        ),
        (BaseTool(name=3, description=""), "Tool 'BaseTool': `name` is 3; use a string."),  # type: ignore[arg-type]
        (3, "Tool '3': `tools` contains an int; use functions, BaseTools and BaseToolsets."),
        (BaseTool, "Tool 'BaseTool': `tools` contains the class; use an instance of it."),
        (dict, "Tool 'dict': `tools` contains the class; use a function that creates an instance."),
    ],
)
def test_a_value_that_is_not_a_tool_is_refused(item: object, message: str) -> None:
    """The error names the value and the accepted types."""
    with pytest.raises(InvalidTool) as raised:
        tools_of(LlmAgent(name="a", tools=[item]))
    assert str(raised.value) == message


# Tests of authoring_problems


def test_an_agent_without_mistakes_has_no_problems() -> None:
    """Agents without mistakes, even those that are called as tools, have no problems."""
    agent = LlmAgent(
        name="a",
        tools=[pay, AgentTool(LlmAgent(name="b", tools=[pay])), AgentTool(LlmAgent(name="c", tools=[ask]))],
    )
    assert authoring_problems(agent) == []


def test_all_mistakes_of_a_tree_are_found_at_once() -> None:
    """All mistakes are reported at once, so that the check before a deployment shows the whole list."""

    def bad(client: object, where: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    class Broken(BaseTool):
        retries = -1

        def _get_declaration(self) -> Any:
            raise OSError("no network")

    below = LlmAgent(name="below", tools=[lambda: 1])
    called = LlmAgent(name="called", tools=["text", bad])
    root = LlmAgent(
        name="root",
        tools=[pay, pay, AgentTool(called), Broken(name="broken", description=""), AgentTool(below)],
    )
    assert problems_of(root) == [
        "Agent 'root' has two tools named 'pay'; rename one of them.",
        "Tool 'broken': `retries` is -1; use a whole number of at least 0.",
        "Tool 'broken': `_get_declaration` failed (OSError: no network).",
        """Tool "'text'": `tools` contains a str; use functions, BaseTools and BaseToolsets.""",
        "Tool 'bad': the annotation 'Nowhere' of parameter 'where' cannot be resolved (name 'Nowhere' is not defined); "
        "import or define it at module level, outside `if TYPE_CHECKING:`.",
        "Tool '<lambda>': models do not accept this name; start it with a letter or an underscore, and use at most 128 "
        "letters, digits, `_`, `.`, `:` and `-`. Replace a lambda with a `def`.",
    ]


def test_two_agents_with_one_name_are_reported_with_their_places() -> None:
    """Two agents with one name are refused, because calls and answers are routed by name."""
    other = LlmAgent(name="other", tools=[AgentTool(LlmAgent(name="twin"))])
    root = LlmAgent(name="root", tools=[AgentTool(LlmAgent(name="twin")), pay, AgentTool(other)])
    (problem,) = authoring_problems(root)
    assert isinstance(problem, AgentNameTaken)
    assert str(problem) == "Two agents are named 'twin' (root.tools[0], root.tools[2].tools[0]); rename one of them."


def test_one_agent_may_be_called_from_several_places() -> None:
    """One agent may be called from several places, and even call itself."""
    shared = LlmAgent(name="shared")
    shared.tools.append(AgentTool(shared))
    other = LlmAgent(name="b", tools=[AgentTool(shared)])
    root = LlmAgent(name="root", tools=[AgentTool(shared), AgentTool(other)])
    assert authoring_problems(root) == []


def test_a_method_without_an_instance_is_a_mistake() -> None:
    """A method without an instance is a mistake, because a model would have to fill in `self`."""

    class Desk:
        def open(self, day: str) -> str:
            return day

    assert problems_of(LlmAgent(name="a", tools=[Desk().open])) == []
    assert problems_of(LlmAgent(name="a", tools=[Desk.open])) == [
        "Tool 'open': it is an unbound method; create an instance of the class and use its method."
    ]


def test_a_predicate_with_an_unknown_parameter_is_a_mistake() -> None:
    """A predicate with an unknown parameter is a mistake, because every call would raise and need an approval."""

    def large(sum_of_money: float, tool_context: object, limit: int = 5) -> bool:
        return sum_of_money > limit

    def anything(**arguments: object) -> bool:
        return True

    assert problems_of(LlmAgent(name="a", tools=[FunctionTool(pay, require_confirmation=anything)])) == []
    assert problems_of(LlmAgent(name="a", tools=[FunctionTool(pay, require_confirmation=large)])) == [
        "Tool 'pay': `require_confirmation` takes 'sum_of_money', which is not a parameter of the tool."
    ]
