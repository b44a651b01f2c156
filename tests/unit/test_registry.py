"""Agents are found in ADK's layout, and every mistake is reported with its place."""

import asyncio
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.paths import ROOT
from waystation.agents import Agent
from waystation.apps.registry import Registry, discover
from waystation.core.errors import AgentNameTaken, InvalidAgent, UnknownAgent
from waystation.testing import ScriptedModel
from waystation.tools import AgentTool, ToolContext

AGENT = """
    from waystation.agents import Agent
    root_agent = Agent(name="{name}")
"""


@pytest.fixture(autouse=True)
def _fresh_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the imports of a test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below the test's folder; return it."""

    def written(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        return file

    return written


Write = Callable[[str, str], Path]


def test_each_package_of_a_folder_is_found(tmp_path: Path, write: Write) -> None:
    """Each package of the folder with `root_agent` in its `agent.py` is found, as in ADK's quickstart."""
    for name in ("weather", "travel"):
        write(f"{name}/__init__.py", "from . import agent\n")
        write(f"{name}/agent.py", AGENT.format(name=f"{name}_agent"))
    registry, problems = discover([tmp_path])
    assert problems == []
    assert sorted(registry.roots) == ["travel_agent", "weather_agent"]
    assert registry.roots["travel_agent"].place == str(tmp_path / "travel" / "agent.py")


def test_agents_of_adk_create_are_named_after_their_packages(tmp_path: Path, write: Write) -> None:
    """The agent has the name of its package, because `adk create` names every agent `root_agent`.

    Older invocations recorded that name and find a single agent.
    """
    for name in ("weather", "travel"):
        write(f"{name}/agent.py", AGENT.format(name="root_agent"))
    write("hotel/agent.py", AGENT.format(name='root_agent", sub_agents=[Agent(name="hotel")], description="'))
    registry, problems = discover([tmp_path])
    assert (sorted(registry.roots), problems) == (["root_agent", "travel", "weather"], [])
    assert registry.find("weather", "weather") == registry.find("weather", "root_agent")
    assert registry.find("root_agent", "hotel")[1].name == "hotel"
    with pytest.raises(UnknownAgent):
        registry.find("travel", "weather")
    assert discover([tmp_path / "travel"])[0].find("root_agent", "root_agent")[0].name == "travel"


def test_a_package_needs_no_init(tmp_path: Path, write: Write) -> None:
    """A package can consist of `agent.py` alone."""
    write("plain/agent.py", AGENT.format(name="plain_agent"))
    registry, problems = discover([tmp_path])
    assert (list(registry.roots), problems) == (["plain_agent"], [])


def test_root_agent_may_be_in_the_package_itself(tmp_path: Path, write: Write) -> None:
    """An agent in `__init__.py` is found, with or without an `agent.py`, as in ADK."""
    write("alone/__init__.py", AGENT.format(name="alone_agent"))
    write("beside/__init__.py", "from .agent import build\nroot_agent = build()\n")
    write("beside/agent.py", "from waystation.agents import Agent\ndef build(): return Agent(name='built')\n")
    registry, problems = discover([tmp_path])
    assert problems == []
    assert {name: root.place for name, root in registry.roots.items()} == {
        "alone_agent": str(tmp_path / "alone" / "__init__.py"),
        "built": str(tmp_path / "beside" / "__init__.py"),
    }


def test_other_packages_are_skipped(tmp_path: Path, write: Write) -> None:
    """Other packages and files of the folder are not even imported."""
    write("real/agent.py", AGENT.format(name="real_agent"))
    write("shared/__init__.py", "raise RuntimeError('imported')\n")
    write("notes/README.md", "root_agent\n")
    write("loose.py", "raise RuntimeError('imported')\n")
    registry, problems = discover([tmp_path])
    assert (list(registry.roots), problems) == (["real_agent"], [])


def test_a_folder_may_be_a_package_itself(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package can be named directly, also as the current directory; packages inside it are ignored."""
    write("single/__init__.py", "from . import agent\n")
    write("single/agent.py", AGENT.format(name="single_agent"))
    write("single/inner/agent.py", "raise RuntimeError('imported')\n")
    assert list(discover([tmp_path / "single"])[0].roots) == ["single_agent"]
    monkeypatch.chdir(tmp_path / "single")
    registry, problems = discover([Path()])
    assert (list(registry.roots), problems) == (["single_agent"], [])


def test_a_mistake_in_the_current_directory_names_the_package(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of `--agents .` names the folder."""
    monkeypatch.chdir(write("nameless/agent.py", "").parent)
    _, [problem] = discover([Path()])
    assert str(problem.error) == (
        "Agent 'nameless': `agent.py` defines no `root_agent`; assign the agent to that name."
    )


def test_packages_may_import_their_own_modules_and_their_siblings(tmp_path: Path, write: Write) -> None:
    """Imports are relative in a package and absolute for siblings: the folder is on the path, as in ADK."""
    write("shared_prompts.py", "HELLO = 'Say hello.'\n")
    write("greeter/__init__.py", "from . import agent\n")
    write("greeter/tools/__init__.py", "")
    write("greeter/tools/greet.py", 'def greet() -> str:\n    """Greet."""\n    return "hello"\n')
    write(
        "greeter/agent.py",
        """
        from shared_prompts import HELLO
        from waystation.agents import Agent
        from .tools.greet import greet
        root_agent = Agent(name="greeter", instruction=HELLO, tools=[greet])
        """,
    )
    registry, problems = discover([tmp_path])
    assert problems == []
    greeter = registry.roots["greeter"].agent
    assert isinstance(greeter, Agent)
    assert greeter.instruction == "Say hello."


@pytest.mark.parametrize("name", ["tools", "activities", "workflows", "worker"])
@pytest.mark.parametrize("agents", ["agents", "agents/payer"])
@pytest.mark.parametrize("is_first", [True, False], ids=["python worker.py", "editable install"])
def test_packages_may_import_modules_next_to_their_folder(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, name: str, agents: str, is_first: bool
) -> None:
    """The project's own `tools` precedes a checkout of Waystation, whose folders are also on the import path."""
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path] if is_first else [*sys.path, str(ROOT)])
    write(f"{name}/__init__.py", "")
    write(f"{name}/pay.py", 'def pay() -> None:\n    """Pay."""\n')
    write(
        "agents/payer/agent.py",
        f"""
        from waystation.agents import Agent
        from {name}.pay import pay
        root_agent = Agent(name="payer", tools=[pay])
        """,
    )
    registry, problems = discover([tmp_path / agents])
    assert (list(registry.roots), problems) == (["payer"], [])


def test_several_folders_are_one_registry(tmp_path: Path, write: Write) -> None:
    """Folders are searched in the order given."""
    write("north/alpha/agent.py", AGENT.format(name="alpha_agent"))
    write("south/beta/agent.py", AGENT.format(name="beta_agent"))
    registry, problems = discover([tmp_path / "south", tmp_path / "north"])
    assert (list(registry.roots), problems) == (["beta_agent", "alpha_agent"], [])


def test_a_package_that_is_named_twice_is_served_once(tmp_path: Path, write: Write) -> None:
    """A package is served once if it is named together with its folder."""
    write("once/agent.py", AGENT.format(name="once_agent"))
    registry, problems = discover([tmp_path, tmp_path / "once", tmp_path])
    assert (list(registry.roots), problems) == (["once_agent"], [])


def test_the_demo_model_of_a_package_belongs_to_its_root(tmp_path: Path, write: Write) -> None:
    """The variable `demo_model` is used by `--model demo`; an object that is not a model is ignored."""
    model = "from waystation.testing import ScriptedModel\ndemo_model = ScriptedModel()\n"
    write("shown/agent.py", dedent(AGENT.format(name="shown_agent")) + model)
    write("unshown/agent.py", dedent(AGENT.format(name="unshown_agent")) + "demo_model = 'gemini'\n")
    registry, problems = discover([tmp_path])
    assert problems == []
    assert isinstance(registry.roots["shown_agent"].demo_model, ScriptedModel)
    assert registry.roots["unshown_agent"].demo_model is None


@pytest.mark.parametrize(
    ("line", "problem_text"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("root_agent = Agent()", "NameError: name 'Agent' is not defined"),
        ("raise SystemExit('enough')", "SystemExit: enough"),
        ("def broken(:", "SyntaxError: invalid syntax"),
    ],
)
def test_a_failing_import_names_the_line(tmp_path: Path, write: Write, line: str, problem_text: str) -> None:
    """The error has the file and the line, and other packages are still found."""
    file = write("broken/agent.py", f"'''A docstring.'''\n\n{line}\n")
    write("whole/agent.py", AGENT.format(name="whole_agent"))
    registry, [problem] = discover([tmp_path])
    assert list(registry.roots) == ["whole_agent"]
    assert problem.place == str(tmp_path / "broken")
    assert f"importing it failed at {file}:3: {problem_text}" in str(problem)


def test_a_module_that_waystation_does_not_have_is_explained(tmp_path: Path, write: Write) -> None:
    """The error names the reason why ADK's module does not exist here, or the page with all names."""
    write("evaluated/agent.py", "from waystation.evaluation import AgentEvaluator")
    write("planner/agent.py", "from waystation.plans import BuiltInPlanner")
    refused, unknown = discover([tmp_path])[1]
    assert (
        "`waystation.evaluation` does not exist. Waystation lacks ADK's evaluation and optimization. Evaluate with"
        in str(refused.error)
    )
    assert str(unknown.error) == (
        f"Agent 'planner': importing it failed at {tmp_path / 'planner' / 'agent.py'}:1: ModuleNotFoundError: No "
        "module named 'waystation.plans'; docs/reference/adk-names.md lists which names of ADK Waystation has."
    )


def test_a_wrong_policy_is_reported_in_one_line(tmp_path: Path, write: Write) -> None:
    """The error names every wrong field with its value, without pydantic's layout."""
    write(
        "payer/agent.py",
        """
        from waystation import Agent, ApprovalPolicy, ApprovalRule

        policy = ApprovalPolicy(quorum=0, on_expiry="approve")
        """,
    )
    (problem,) = discover([tmp_path])[1]
    assert str(problem.error) == (
        f"Agent 'payer': importing it failed at {tmp_path / 'payer' / 'agent.py'}:4: ApprovalPolicy: "
        "`quorum` is 0; use at least 1; "
        "`on_expiry` is 'approve': a call is never approved without an answer; use 'reject' or 'fail', and "
        "`escalation` to ask others first"
    )


def test_the_rules_of_an_app_are_checked(tmp_path: Path, write: Write) -> None:
    """The rules are compared with the tools of all agents of the app."""
    write(
        "payer/agent.py",
        """
        from waystation import Agent, App, ApprovalPolicy, ApprovalRule

        def pay(amount: int) -> None: ...

        agent = Agent(name="payer", tools=[pay])
        app = App(name="desk", root_agent=agent, approval_rules=[ApprovalRule(ApprovalPolicy(), tools="pya")])
        """,
    )
    (problem,) = discover([tmp_path])[1]
    assert "in its app, approval rule 1 names tools 'pya'" in str(problem)


def test_a_failure_in_an_imported_module_names_that_module(tmp_path: Path, write: Write) -> None:
    """The line is where the exception was raised, not where the module was imported."""
    file = write("deep/prices.py", "VAT = 1 / 0\n")
    write("deep/agent.py", "from . import prices\n")
    _, [problem] = discover([tmp_path])
    assert f"importing it failed at {file}:1: ZeroDivisionError: division by zero" in str(problem)


def test_a_mistake_found_by_a_constructor_names_the_authors_line(tmp_path: Path, write: Write) -> None:
    """The exception comes from Waystation or pydantic, but the line is the author's."""
    file = write("wrong/agent.py", "from waystation.agents import Agent\nroot_agent = Agent(name='no name')\n")
    _, [problem] = discover([tmp_path])
    assert f"importing it failed at {file}:2: LlmAgent: `name` is 'no name': " in str(problem)
    assert "'no name' is not a valid identifier" in str(problem)


@pytest.mark.parametrize("init", [True, False], ids=["with init", "without init"])
def test_two_packages_cannot_share_a_name(tmp_path: Path, write: Write, init: bool) -> None:
    """Two packages with one name are refused, because Python would import only one of them."""
    for folder in ("north", "south"):
        write(f"{folder}/twin/agent.py", AGENT.format(name=f"{folder}_agent"))
        if init:
            write(f"{folder}/twin/__init__.py", "")
    registry, [problem] = discover([tmp_path / "north", tmp_path / "south"])
    assert list(registry.roots) == ["north_agent"]
    assert problem.place == str(tmp_path / "south" / "twin")
    assert str(problem.error) == (
        f"Agent 'twin': another package named 'twin' was imported from {tmp_path / 'north' / 'twin'}; rename one."
    )


@pytest.mark.parametrize("name", ["json", "tools", "time"])
def test_a_package_cannot_have_the_name_of_an_imported_one(tmp_path: Path, write: Write, name: str) -> None:
    """The imported module is kept, and the message names it."""
    write(f"{name}/agent.py", AGENT.format(name="any_agent"))
    registry, [problem] = discover([tmp_path])
    assert list(registry.roots) == []
    assert isinstance(problem.error, InvalidAgent)
    assert f"another package named '{name}' was imported from " in str(problem)
    assert str(problem).endswith("; rename one.")


def test_a_tree_holds_every_agent_that_may_act(tmp_path: Path, write: Write) -> None:
    """Agents behind AgentTools are found at any depth, each once, even in a cycle."""
    write(
        "company/agent.py",
        """
        from waystation.agents import Agent
        from waystation.tools import AgentTool
        clerk = Agent(name="clerk")
        auditor = Agent(name="auditor", tools=[AgentTool(clerk)])
        manager = Agent(name="manager", tools=[AgentTool(auditor), AgentTool(clerk)])
        clerk.tools.append(AgentTool(manager))
        root_agent = Agent(name="boss", tools=[AgentTool(manager)])
        """,
    )
    registry, problems = discover([tmp_path])
    assert problems == []
    assert sorted(registry.roots["boss"].tree) == ["auditor", "boss", "clerk", "manager"]
    assert registry.find("boss", "clerk")[1].name == "clerk"


def test_an_agent_is_found_in_the_tree_of_its_root() -> None:
    """The root selects the tree, because other trees may use one name for another agent."""
    one, other = Agent(name="helper", instruction="one"), Agent(name="helper", instruction="other")
    registry = Registry.of(Agent(name="first", tools=[AgentTool(one)]), Agent(name="second", tools=[AgentTool(other)]))
    assert registry.find("first", "helper")[1] is one
    assert registry.find("second", "helper")[1] is other
    assert registry.find("first", "first")[0] is registry.roots["first"]


def test_an_unknown_agent_is_refused_with_the_existing_ones() -> None:
    """The error lists the roots if the root is unknown, and otherwise the agents of the tree."""
    registry = Registry.of(Agent(name="beta", tools=[AgentTool(Agent(name="alpha"))]), Agent(name="gamma"))
    with pytest.raises(UnknownAgent, match=r"No agent is named 'delta'\. This worker serves: beta, gamma\."):
        registry.find("delta", "delta")
    with pytest.raises(UnknownAgent, match=r"No agent is named 'gamma'\. This worker serves: alpha, beta\."):
        registry.find("beta", "gamma")
    with pytest.raises(UnknownAgent, match=r"This worker serves: none\."):
        Registry().find("delta", "delta")


def test_two_roots_cannot_share_a_name() -> None:
    """The error names both places."""
    with pytest.raises(AgentNameTaken) as taken:
        Registry.of(Agent(name="twin"), Agent(name="twin"))
    assert str(taken.value) == "Two agents are named 'twin' (agent 'twin', agent 'twin'); rename one of them."


def test_a_package_may_expose_an_app(tmp_path: Path, write: Write) -> None:
    """The plugins of the app are used, and another object named `app`, such as a web application, is ignored."""
    write(
        "shop/agent.py",
        """
        from waystation.agents import SequentialAgent
        from waystation.apps import App
        from waystation.plugins import BasePlugin
        app = App(name="shop", root_agent=SequentialAgent(name="clerk"), plugins=[BasePlugin("p")])
        """,
    )
    write("website/agent.py", AGENT.format(name="site_agent") + "\n    app = print\n")
    registry, problems = discover([tmp_path])
    assert problems == []
    assert sorted(registry.roots) == ["clerk", "site_agent"]
    assert [plugin.name for plugin in registry.roots["clerk"].plugins] == ["p"]
    assert registry.roots["site_agent"].plugins == ()


@pytest.mark.skipif(importlib.util.find_spec("google.adk") is not None, reason="google-adk is installed")
def test_imports_of_adk_are_reported_with_the_remedy(tmp_path: Path, write: Write) -> None:
    """The most common first mistake of ADK users is reported with the remedy."""
    write("old/agent.py", "from google.adk.agents import Agent\n\nroot_agent = Agent(name='old')\n")
    _, [problem] = discover([tmp_path])
    assert str(problem).endswith(
        "replace `google.adk` with `waystation` in the imports, or install `waystation[adk]` to run it as it is."
    )


def test_a_class_is_not_an_agent(tmp_path: Path, write: Write) -> None:
    """The error names the class itself and not its type."""
    write("kind/agent.py", "from waystation.agents import Agent\n\nroot_agent = Agent\n")
    _, [problem] = discover([tmp_path])
    assert str(problem).endswith("`root_agent` is the class LlmAgent; assign the agent to that name.")


def test_an_object_that_is_not_an_agent_is_reported() -> None:
    """An object without an agent is reported, for example a module that a test passes by mistake."""
    with pytest.raises(TypeError, match=r"module 'asyncio' .* is neither an agent nor an app; .* `root_agent`"):
        Registry.of(asyncio)  # type: ignore[arg-type]


def reads(tool_context: ToolContext) -> str:
    """Read something."""
    return str(tool_context.state.get("user:name"))


def keyed(tool_context: ToolContext) -> str:
    """Use only values that do not depend on state."""
    return f"{tool_context.user_id} {tool_context.idempotency_key}"


def passes_on(tool_context: ToolContext) -> str:
    """Let another function read something."""
    return reads(tool_context)


def encloses(tool_context: ToolContext) -> str:
    """Read something in a closure."""
    return "".join(str(tool_context.state) for _ in "a")


def rebinds(tool_context: ToolContext) -> str:
    """Read something under another name."""
    context, key = tool_context, tool_context.idempotency_key
    return str(context.state) + key


@functools.wraps(keyed)
def wraps(*args: Any, **kwargs: Any) -> str:
    """Read something around a function that does not read."""
    return reads(*args, **kwargs)


def adds(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"tools": [adds]}, False),
        ({"tools": [keyed]}, False),
        ({"tools": [adds, reads]}, True),
        ({"tools": [passes_on]}, True),
        ({"tools": [encloses]}, True),
        ({"tools": [rebinds]}, True),
        ({"tools": [wraps]}, True),
        ({"instruction": "Greet {user:name}."}, True),
        ({"before_agent_callback": lambda callback_context: None}, True),
        ({"tools": [AgentTool(Agent(name="reader", tools=[reads]))]}, True),
    ],
    ids=[
        "nothing can",
        "only the key is used",
        "a tool",
        "passed on",
        "a closure",
        "another name",
        "a wrapper",
        "a template",
        "a callback",
        "a tool of a called agent",
    ],
)
def test_invisible_state_is_not_loaded(fields: dict[str, Any], read: bool) -> None:
    """State is loaded only if an agent of the tree can read it, because loading costs two requests per invocation."""
    root, _ = Registry.of(Agent(name="ag", **fields)).find("ag", "ag")
    assert root.state_scopes is read
