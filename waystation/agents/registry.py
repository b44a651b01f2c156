"""Find agents: packages that expose `root_agent`, or `app`, as ADK lays them out.

    examples/
      reimbursement/
        __init__.py     from . import agent
        agent.py        root_agent = Agent(name="reimbursement_agent", …)

`root_agent` may as well be in the package's `__init__.py`; and `app = App(name=…, root_agent=…, plugins=[…])` may stand
for it. A folder that has neither is passed over.

All mistakes are collected and reported together, each with its file.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.agents import (
    CALLBACKS,
    ApprovalRule,
    BaseAgent,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    SequentialAgent,
    kind_of,
    listed,
)
from waystation.apps import App, EventsCompactionConfig
from waystation.core import (
    AgentNameTaken,
    AuthoringError,
    InvalidAgent,
    InvalidTool,
    NoAgents,
    UnknownAgent,
    a,
    mistakes,
)
from waystation.models import BaseLlm
from waystation.plugins import BasePlugin
from waystation.tools import (
    NAME,
    AgentTool,
    BaseTool,
    BaseToolset,
    FunctionTool,
    LongRunningFunctionTool,
    NativeTool,
    Signature,
    agents_below,
    declare,
    entries_of,
    place_of,
    resolve_tools,
)
from waystation.tools.json_schema import json_schema

_ADK = "; replace `google.adk` by `waystation` in the imports."
_NOT_HERE = "; docs/adk.md says what Waystation does not have, and what to use instead."
_EXPOSED = re.compile(rb"\b(root_agent|app)\b")


@dataclass(frozen=True, slots=True)
class Problem:
    """One authoring mistake, and where it is."""

    place: str
    error: AuthoringError

    def __str__(self) -> str:
        return str(self.error) if isinstance(self.error, NoAgents) else f"{self.place}: {self.error}"


@dataclass(frozen=True, slots=True)
class Root:
    """A root agent, where it comes from, and the agents in its tree by name."""

    agent: BaseAgent
    place: str
    tree: Mapping[str, BaseAgent]
    demo_model: BaseLlm | None = None
    """The scripted model that the package brings for trying it without an API key."""
    plugins: Sequence[BasePlugin] = ()
    """Those of the package's `app`."""
    compaction: EventsCompactionConfig | None = None
    """When the events of conversations with the package's `app` are summarised."""
    approval_rules: Sequence[ApprovalRule] = ()
    """Those of the package's `app`."""
    state_scopes: bool = True
    """Whether `user:` and `app:` state is read when an invocation begins: not when nothing in the tree can see it."""

    def plugins_of(self, agent: BaseAgent) -> Sequence[BasePlugin]:
        """Return the plugins that accompany an agent of the tree: not one called with `include_plugins=False`."""
        if not self.plugins or any(found is agent for _, found in agents_below(self.agent, with_plugins=True)):
            return self.plugins
        return ()

    def rules_of(self, agent: LlmAgent) -> tuple[ApprovalRule, ...]:
        """Return the rules for the calls of an agent, in the order in which they are looked at."""
        return (*agent.approval_rules, *self.approval_rules)


class Registry:
    """The agents that a worker serves, by the name of their root agent."""

    def __init__(self, roots: Iterable[Root] = ()) -> None:
        self._roots: dict[str, Root] = {}
        for root in roots:
            self.add(root)

    @classmethod
    def of(cls, *agents: BaseAgent | App) -> "Registry":
        """Return a registry of agents, or apps, that exist already."""
        return cls(map(_root, agents))

    def add(self, root: Root) -> None:
        """Add a root agent.

        Raises:
            AgentNameTaken: Another root agent has the name.
        """
        other = self._roots.get(root.agent.name)
        if other is not None:
            raise AgentNameTaken(root.agent.name, (other.place, root.place))
        self._roots[root.agent.name] = root

    @property
    def roots(self) -> Mapping[str, Root]:
        """The root agents by name."""
        return self._roots

    def find(self, root: str, agent: str) -> tuple[Root, BaseAgent]:
        """Return an agent by name, and the root in whose tree it is.

        Raises:
            UnknownAgent: There is none.
        """
        found = self._roots.get(root)
        if found is None:
            raise UnknownAgent(root, self._roots)
        if agent not in found.tree:
            raise UnknownAgent(agent, found.tree)
        return found, found.tree[agent]


def tree_of(agent: BaseAgent) -> dict[str, BaseAgent]:
    """Return an agent, all agents below it and all that they may call, by name."""
    return {found.name: found for _, found in agents_below(agent)}


def _root(exposed: BaseAgent | App, place: str = "", demo_model: BaseLlm | None = None) -> Root:
    agent = exposed.root_agent if isinstance(exposed, App) else exposed
    if not isinstance(agent, BaseAgent):
        raise TypeError(f"{agent!r} is no agent and no app; give one, such as a module's `root_agent`.")
    app = exposed if isinstance(exposed, App) else App(name="app", root_agent=agent)
    tree = tree_of(agent)
    return Root(
        agent=agent,
        place=place or f"agent {agent.name!r}",
        tree=tree,
        demo_model=demo_model,
        plugins=tuple(app.plugins),
        compaction=app.events_compaction_config,
        approval_rules=tuple(app.approval_rules),
        state_scopes=app.state_scopes
        and (bool(app.plugins or app.approval_rules) or any(map(_sees_state, tree.values()))),
    )


def _sees_state(agent: BaseAgent) -> bool:
    """Whether code or a template of an agent can read state; without any, there is no reason to load it."""
    if any(getattr(agent, name, None) for name in (*CALLBACKS, "approval_rules")):
        return True
    if not isinstance(agent, LlmAgent):
        return False
    if any(not isinstance(text, str) or "{" in text for text in (agent.instruction, agent.global_instruction)):
        return True
    try:
        return any(map(_takes_context, entries_of(agent)))
    except AuthoringError:  # it is reported when the agents are checked
        return True


def _takes_context(entry: BaseTool | BaseToolset) -> bool:
    if type(entry) not in (FunctionTool, LongRunningFunctionTool):
        return type(entry) is not AgentTool  # the agent that it calls is in the tree
    assert isinstance(entry, FunctionTool)
    return entry.signature.context is not None or callable(entry.require_confirmation)


def discover(folders: Iterable[Path]) -> tuple[Registry, list[Problem]]:
    """Import every agent package in `folders`, or the folder itself when it is one.

    A package that cannot be used becomes a problem; the others are still found.
    """
    registry, problems = Registry(), list[Problem]()
    seen: set[Path] = set()
    for folder in folders:
        packages = [folder] if _is_package(folder) else sorted(filter(_is_package, folder.glob("*")))
        if not packages:
            problems.append(Problem(str(folder), NoAgents(str(folder), _why_empty(folder))))
        for package in packages:
            if package.resolve() in seen:
                continue
            seen.add(package.resolve())
            try:
                root = _load(package)
                problems += [
                    Problem(root.place, error) for error in authoring_problems(root.agent, root.approval_rules)
                ]
                registry.add(root)
            except AuthoringError as error:
                problems.append(Problem(str(package), error))
    return registry, problems


def _why_empty(folder: Path) -> str:
    if folder.is_dir():
        return "no agent package is in this folder; one has an `agent.py` with `root_agent`."
    problem = "this is a file" if folder.exists() else "there is no such folder"
    return f"{problem}; name a folder that has agent packages in it."


def _is_package(folder: Path) -> bool:
    init = folder / "__init__.py"
    # Read first: other packages may lie here too, and importing one may do anything.
    return (folder / "agent.py").is_file() or (init.is_file() and _EXPOSED.search(init.read_bytes()) is not None)


def _load(package: Path) -> Root:
    modules = _import(package.resolve())
    demo = next((module.demo_model for module in modules if hasattr(module, "demo_model")), None)
    for name, kinds in (("app", (App,)), ("root_agent", (BaseAgent, App))):
        for module in modules:
            # An `app` may be anything, such as a web application; only an App stands for the agent.
            if isinstance(exposed := getattr(module, name, None), kinds):
                place = str(package / Path(module.__file__ or "agent.py").name)
                return _root(exposed, place, demo if isinstance(demo, BaseLlm) else None)
    other = next((module.root_agent for module in modules if hasattr(module, "root_agent")), None)
    what = f"the class {other.__name__}" if isinstance(other, type) else a(other)
    problem = "`agent.py` defines no `root_agent`" if other is None else f"`root_agent` is {what}"
    raise InvalidAgent(package.resolve().name, f"{problem}; assign the agent to that name.")


def _import(package: Path) -> list[ModuleType]:
    """Import a package and its `agent.py` under the package's name, as ADK does: its folder's parent is on the path."""
    if str(package.parent) not in sys.path:
        sys.path.insert(0, str(package.parent))
    names = [f"{package.name}.agent"] if (package / "agent.py").is_file() else []
    try:
        modules = [importlib.import_module(name) for name in (*names, package.name)]
    except (Exception, SystemExit) as error:  # author code may raise anything; one bad package must not hide the rest
        _check_place(package, sys.modules.get(package.name))
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        hint = _ADK if missing.startswith("google.adk") else _NOT_HERE if missing.startswith("waystation.") else ""
        place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else place_of(error)
        raise InvalidAgent(package.name, f"importing it failed at {place}: {_what(error)}{hint}") from error
    for module in modules:
        _check_place(package, module)
    return modules


def _check_place(package: Path, module: ModuleType | None) -> None:
    """Refuse a package whose name stands for something else in this process."""
    if module is None:
        return
    file = getattr(module, "__file__", None)
    # A package without `__init__.py` has no file, but all the places where parts of it may be; a built-in has neither.
    places = [Path(file).parent] if file else [Path(place) for place in getattr(module, "__path__", ())]
    if package not in [place.resolve() for place in places]:
        place = places[0] if places else "Python itself"
        raise InvalidAgent(
            package.name, f"another package named {package.name!r} was imported from {place}; rename one."
        )


def _what(error: BaseException) -> str:
    """Return what an author did wrong, by the exception; pydantic's own text has lines and links in it."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    kinds = (LlmAgent, SequentialAgent, ParallelAgent, LoopAgent, App, EventsCompactionConfig)
    known = next((kind.model_fields for kind in kinds if kind.__name__ == error.title), ())
    return f"{error.title}: {mistakes(error, known)}"


# Mistakes in how agents, their tools and approval rules were declared, found before anything runs.


def authoring_problems(root: BaseAgent, rules: Sequence[ApprovalRule] = ()) -> list[AuthoringError]:
    """Return every mistake in a tree of agents, those called by AgentTools included, and in the rules of its app."""
    problems: list[AuthoringError] = []
    places: dict[str, list[str]] = {}
    all_entries: list[BaseTool | BaseToolset] = []
    for place, agent in agents_below(root):
        places.setdefault(agent.name, []).append(place)
        problems += [InvalidAgent(agent.name, text) for text in _agent_problems(agent)]
        if isinstance(agent, LlmAgent):
            entries, tool_problems = resolve_tools(agent)
            problems += tool_problems
            problems += [InvalidAgent(agent.name, text) for text in _rule_problems(agent.approval_rules, entries)]
            all_entries += entries
            for entry in entries:
                problems += _toolset_problems(entry) if isinstance(entry, BaseToolset) else _tool_problems(entry)
    problems += [InvalidAgent(root.name, f"of its app: {text}") for text in _rule_problems(rules, all_entries)]
    problems += [AgentNameTaken(name, taken) for name, taken in places.items() if len(taken) > 1]
    return problems


def _tool_problems(tool: BaseTool) -> list[AuthoringError]:
    problems: list[AuthoringError] = [InvalidTool(tool.name, problem) for problem in tool.setting_problems()]
    if callable(tool.require_confirmation) and (unknown := _unknown_parameters(tool.require_confirmation, tool)):
        names = ", ".join(map(repr, unknown))
        problems.append(
            InvalidTool(tool.name, f"`require_confirmation` takes {names}, which is not a parameter of the tool.")
        )
    try:
        declare(tool)
    except AuthoringError as error:
        problems.append(error)
    return problems


def _toolset_problems(toolset: BaseToolset) -> list[AuthoringError]:
    name = type(toolset).__name__
    problems: list[AuthoringError] = [InvalidTool(name, problem) for problem in toolset.setting_problems()]
    prefix = toolset.tool_name_prefix
    if isinstance(prefix, str) and prefix and not NAME.fullmatch(prefix):
        problems.append(InvalidTool(name, f"no tool can be called what begins with `tool_name_prefix` {prefix!r}."))
    return problems


def _agent_problems(agent: BaseAgent) -> Iterator[str]:
    if kind_of(agent) is None:
        yield (f"{a(agent)} cannot be carried out; use LlmAgent, SequentialAgent, ParallelAgent or LoopAgent.")
    children: Sequence[object] = agent.sub_agents  # which authors may change unchecked
    for child in children:
        if not isinstance(child, BaseAgent):
            yield f"`sub_agents` has {a(child)} in it; put agents there."
        elif child.parent_agent is not None and child.parent_agent is not agent:
            yield (
                f"its sub-agent {child.name!r} belongs to {child.parent_agent.name!r}; an agent can have one parent: "
                f"use `{child.name}.clone()`, with another name."
            )
    trees = (agents_below(child, called=False) for child in children if isinstance(child, BaseAgent))
    if any(agent is below for tree in trees for _, below in tree):
        yield "it is below itself in its own `sub_agents`, so that it would have no end; put a clone there."
    for name, given in CALLBACKS.items():
        for callback in listed(getattr(agent, name, None)):
            if problem := _callback_problem(callback, given):
                yield f"`{name}` {problem}"
    if isinstance(agent, LlmAgent):
        yield from _model_problems(agent)
    if isinstance(agent, LoopAgent) and agent.max_iterations is None and not agent.sub_agents:
        yield "a LoopAgent without `sub_agents` and `max_iterations` does nothing; give it agents."


def _model_problems(agent: LlmAgent) -> Iterator[str]:
    """Yield what is wrong with what an agent wants its model to be told."""
    if agent.output_schema is not None:
        try:
            if not json_schema(agent.output_schema):
                yield "its `output_schema` allows anything, so it says nothing; use a pydantic model, or leave it out."
        except Exception as error:  # noqa: BLE001  # whatever a schema raises, it is of no use
            yield f"its `output_schema` has no JSON schema ({type(error).__name__}); use a pydantic model."
    if agent.generate_content_config is not None:
        # Here, because few agents have one, and genai takes a while to import.
        from google.genai.types import GenerateContentConfig

        try:
            GenerateContentConfig.model_validate(agent.generate_content_config)
        except ValidationError as error:
            yield f"its `generate_content_config` is wrong: {mistakes(error, GenerateContentConfig.model_fields)}."
    static = agent.static_instruction
    for item in static if isinstance(static, list) else [static]:
        if not isinstance(item, str | dict | BaseModel | None):
            yield f"its `static_instruction` has {a(item)} in it; use text, a genai Content or Part, or a list of them."
    for name in ("instruction", "global_instruction"):
        provider = getattr(agent, name)
        if callable(provider) and (problem := _callback_problem(provider, ("context",))):
            yield f"`{name}` {problem}"


def _callback_problem(callback: Any, given: tuple[str, ...]) -> str | None:
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # builtins have none that can be read
        return None
    # ADK's rule: by keyword, or else by position.
    for args, kwargs in (((), dict.fromkeys(given)), (given, {})):
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        return None
    return f"takes {signature}, but is given ({', '.join(given)})."


# Approval rules: one that matches nothing protects nothing, and nobody would notice.


def _rule_problems(rules: Sequence[ApprovalRule], entries: Sequence[BaseTool | BaseToolset]) -> list[str]:
    """Return what is wrong with rules, given the tools and toolsets to which they apply."""
    # What toolsets give is known only when they are asked.
    whole = not any(isinstance(entry, BaseToolset) for entry in entries)
    tools = [tool for tool in entries if isinstance(tool, BaseTool) and not isinstance(tool, AgentTool | NativeTool)]
    return [
        f"approval rule {number} {problem}"
        for number, rule in enumerate(rules, 1)
        for problem in (
            *(f"has a policy that {mistake}" for mistake in rule.policy.mistakes()),
            *(_matching_nothing(rule, tools) if whole else ()),
            *_asking_in_vain(rule, tools),
        )
    ]


def _matching_nothing(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    for pattern in rule.tools or ():
        if not any(ApprovalRule(rule.policy, tools=(pattern,)).names(tool.name) for tool in tools):
            known = ", ".join(sorted({tool.name for tool in tools})) or "none"
            yield f"is about tools named {pattern!r}, of which there is none; there are: {known}."
    about = [(tool, _parameters(tool)) for tool in tools if rule.names(tool.name)]
    if not about or any(parameters is None for _, parameters in about):
        return
    for name in rule.over or ():
        if not any(name in (parameters or ()) for _, parameters in about):
            yield f"is about calls with a large {name!r}, which is a parameter of none of the tools that it is about."


def _asking_in_vain(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    """Yield for which tools the rule's predicate would raise at every call."""
    if rule.when is None:
        return
    for tool in tools:
        for name in _unknown_parameters(rule.when, tool) if rule.names(tool.name) else ():
            yield (
                f"asks about {name!r}, which {tool.name!r} does not take, so every call of it would wait; name "
                "the tools that it is about in `tools`, or give the parameter of `when` a default."
            )


def _unknown_parameters(predicate: Callable[..., Any], tool: BaseTool) -> list[str]:
    """Return the parameters for which a predicate is never given anything, so that it would raise at every call."""
    known = _parameters(tool)
    return [] if known is None else [name for name in Signature(predicate, "").mandatory if name not in known]


def _parameters(tool: BaseTool) -> set[str] | None:
    """Return what predicates are given of a tool's calls; None when that is not known."""
    try:
        declared = declare(tool)
    except AuthoringError:  # which is reported elsewhere
        return None
    if declared is None:
        return None
    schema = declared.get("parametersJsonSchema") or {}
    context = tool.signature.context if isinstance(tool, FunctionTool) else None
    return {*schema.get("properties", {}), *([context] if context else [])}
