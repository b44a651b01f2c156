"""Find and check agents in packages that follow ADK's layout and define a `root_agent` or an `app`.

    examples/
      reimbursement/
        __init__.py     from . import agent
        agent.py        root_agent = Agent(name="reimbursement_agent", …)

`root_agent` may also be in the package's `__init__.py`, and `app = App(name=…, root_agent=…, plugins=[…])` may replace
it. Folders that define neither are skipped. An agent named `root_agent`, as `adk create` names it, is served under the
name of its package.

All mistakes are reported together, each with its file.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from waystation.agents import (
    CALLBACKS,
    NAME,
    ApprovalRule,
    BaseAgent,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    SequentialAgent,
    agents_below,
    as_list,
    entries_of,
    kind_of,
    resolve_tools,
    tool_problems,
)
from waystation.agents.custom_agent import CustomAgent
from waystation.apps import App, EventsCompactionConfig
from waystation.core.errors import AgentNameTaken, AuthoringError, InvalidAgent, InvalidTool, NoAgents, UnknownAgent
from waystation.core.naming import describe_errors, with_article
from waystation.extensions import find_adapter
from waystation.import_path import add_project
from waystation.models import BaseLlm
from waystation.plugins import BasePlugin
from waystation.tools import (
    AgentTool,
    BaseTool,
    BaseToolset,
    FunctionTool,
    LongRunningFunctionTool,
    Signature,
    declare,
    find_author_line,
    is_subject_to_rules,
)
from waystation.tools.json_schema import json_schema
from waystation.tools.resources import LIFESPAN_LIMIT, Lifespan

_ADK = "; replace `google.adk` with `waystation` in the imports, or install `waystation[adk]` to run it as it is."
_NOT_HERE = "; docs/reference/adk-names.md lists which names of ADK Waystation has."
_EXPOSED = re.compile(rb"\b(root_agent|app)\b")
_CREATED = "root_agent"
"""The name that `adk create` gives to every agent."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in an agent package, and its location."""

    place: str
    error: AuthoringError

    def __str__(self) -> str:
        return str(self.error) if isinstance(self.error, NoAgents) else f"{self.place}: {self.error}"


@dataclass(frozen=True, slots=True)
class Root:
    """A root agent, the file that defines it, the agents in its tree by name, and the settings of its app."""

    agent: BaseAgent
    place: str
    tree: Mapping[str, BaseAgent]
    demo_model: BaseLlm | None = None
    """The package's scripted model (`demo_model`), if any. It lets users try the agent without an API key."""
    plugins: Sequence[BasePlugin] = ()
    """The plugins of the package's `app`."""
    compaction: EventsCompactionConfig | None = None
    """When to summarize older events, as configured in the package's `app`."""
    approval_rules: Sequence[ApprovalRule] = ()
    """The approval rules of the package's `app`."""
    state_scopes: bool = True
    """Whether to load `user:` and `app:` state when an invocation starts. False if the app disables this, or if nothing
    in the tree can read the state.
    """
    lifespan: Lifespan | None = None
    """Opens the resources of the package's `app`."""
    lifespan_limit: timedelta = LIFESPAN_LIMIT
    without_effect: Sequence[str] = ()
    """Settings of the google-adk App that have no effect."""
    package: str = ""
    """The name of the package that defines the agent, if any."""

    @property
    def name(self) -> str:
        """The name under which the agent is served: its own, or that of its package, if it has `adk create`'s name."""
        is_created = self.agent.name == _CREATED and self.package and self.package not in self.tree
        return self.package if is_created else self.agent.name

    def name_of(self, agent: BaseAgent) -> str:
        """Return the name by which commands and messages call an agent of this tree."""
        return self.name if agent is self.agent else agent.name

    def find(self, name: str) -> BaseAgent | None:
        """Return the root agent if `name` is the name under which it is served, or else the agent with that name."""
        return self.agent if name == self.name else self.tree.get(name)

    def plugins_of(self, agent: BaseAgent) -> Sequence[BasePlugin]:
        """Return the plugins that apply to an agent, or none if it is called only with `include_plugins=False`."""
        if not self.plugins or any(other is agent for _, other in agents_below(self.agent, with_plugins=True)):
            return self.plugins
        return ()

    def rules_of(self, agent: LlmAgent) -> tuple[ApprovalRule, ...]:
        """Return the approval rules for an agent's calls, in order of precedence."""
        return (*agent.approval_rules, *self.approval_rules)


class Registry:
    """The agents that a worker serves, by the name of their root agent."""

    def __init__(self, roots: Iterable[Root] = ()) -> None:
        self._roots: dict[str, Root] = {}
        for root in roots:
            self.add(root)

    @classmethod
    def of(cls, *agents: BaseAgent | App) -> "Registry":
        """Create a registry from agents or apps."""
        return cls(map(_root, agents))

    def add(self, root: Root) -> None:
        """Add a root agent.

        Raises:
            AgentNameTaken: Another root agent has the same name.
        """
        other = self._roots.get(root.name)
        if other is not None:
            raise AgentNameTaken(root.name, (other.place, root.place))
        self._roots[root.name] = root

    def remove(self, name: str) -> None:
        """Remove the root agent with this name, if any."""
        self._roots.pop(name, None)

    @property
    def roots(self) -> Mapping[str, Root]:
        """The root agents by name."""
        return self._roots

    def list_lifespans(self) -> dict[str, tuple[Lifespan, timedelta]]:
        """Return the lifespans of the apps, each with its limit, by the name of the root agent."""
        return {name: (root.lifespan, root.lifespan_limit) for name, root in self._roots.items() if root.lifespan}

    def find_root(self, name: str) -> Root | None:
        """Return the root that is served under a name, or the only one whose agent has it, as in older invocations."""
        named = [root for root in self._roots.values() if root.agent.name == name]
        return self._roots.get(name) or (named[0] if len(named) == 1 else None)

    def find(self, root: str, agent: str) -> tuple[Root, BaseAgent]:
        """Return a root and an agent in its tree, looked up by name.

        Raises:
            UnknownAgent: The root or the agent does not exist.
        """
        entry = self.find_root(root)
        if entry is None:
            raise UnknownAgent(root, self._roots)
        if (found := entry.find(agent)) is None:
            raise UnknownAgent(agent, entry.tree)
        return entry, found


def tree_of(agent: BaseAgent) -> dict[str, BaseAgent]:
    """Return a mapping from names to agents: this agent, its descendants, and the agents that any of them can call."""
    return {member.name: member for _, member in agents_below(agent)}


def _root(exposed: object, place: str = "", demo_model: BaseLlm | None = None, package: str = "") -> Root:
    adapter = find_adapter(exposed)
    without_effect = adapter.list_settings_without_effect(exposed) if adapter else ()
    exposed = adapter.adapt_agent(exposed) if adapter else exposed
    agent = exposed.root_agent if isinstance(exposed, App) else exposed
    if not isinstance(agent, BaseAgent):
        raise TypeError(f"{agent!r} is neither an agent nor an app; pass one, such as a module's `root_agent`.")
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
        and (bool(app.plugins or app.approval_rules) or any(map(_agent_may_read_state, tree.values()))),
        lifespan=app.lifespan,
        lifespan_limit=app.lifespan_limit,
        without_effect=without_effect,
        package=package,
    )


def _agent_may_read_state(agent: BaseAgent) -> bool:
    """Return whether an agent's callbacks, rules, instructions or tools may read state."""
    if any(getattr(agent, name, None) for name in (*CALLBACKS, "approval_rules")):
        return True
    if not isinstance(agent, LlmAgent):
        return isinstance(agent, CustomAgent)
    if any(not isinstance(text, str) or "{" in text for text in (agent.instruction, agent.global_instruction)):
        return True
    try:
        return any(map(_may_read_state, entries_of(agent)))
    except AuthoringError:  # reported later, when the agents are checked
        return True


def _may_read_state(entry: BaseTool | BaseToolset) -> bool:
    if type(entry) not in (FunctionTool, LongRunningFunctionTool):
        return type(entry) is not AgentTool  # the called agent is in the tree and is checked itself
    assert isinstance(entry, FunctionTool)
    return entry.signature.may_read_state() or callable(entry.require_confirmation)


def discover(folders: Iterable[Path]) -> tuple[Registry, list[Problem]]:
    """Import all agent packages in `folders`. A folder can also be a package itself.

    Mistakes in one package are returned as problems and do not affect the other packages.
    """
    registry, problems = Registry(), list[Problem]()
    seen: set[Path] = set()
    for folder in folders:
        packages = [folder] if _is_package(folder) else sorted(filter(_is_package, folder.glob("*")))
        if not packages:
            problems.append(Problem(str(folder), NoAgents(str(folder), _explain_empty(folder))))
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


def _explain_empty(folder: Path) -> str:
    if folder.is_dir():
        return "the folder contains no agent package; add one with an `agent.py` that defines `root_agent`."
    problem = "it is a file" if folder.exists() else "the folder does not exist"
    return f"{problem}; use a folder with agent packages."


def _is_package(folder: Path) -> bool:
    init = folder / "__init__.py"
    # Search the file before importing it, because other packages may do anything when they are imported.
    return (folder / "agent.py").is_file() or (init.is_file() and _EXPOSED.search(init.read_bytes()) is not None)


def _load(package: Path) -> Root:
    modules = _import(package.resolve())
    demo = next((module.demo_model for module in modules if hasattr(module, "demo_model")), None)
    for name, kinds in (("app", (App,)), ("root_agent", (BaseAgent, App))):
        for module in modules:
            # A variable named `app` may be something else, such as a web application.
            if isinstance(exposed := getattr(module, name, None), kinds) or find_adapter(exposed):
                place = str(package / Path(module.__file__ or "agent.py").name)
                return _root(exposed, place, demo if isinstance(demo, BaseLlm) else None, package.resolve().name)
    other = next((module.root_agent for module in modules if hasattr(module, "root_agent")), None)
    kind = f"the class {other.__name__}" if isinstance(other, type) else with_article(other)
    problem = "`agent.py` defines no `root_agent`" if other is None else f"`root_agent` is {kind}"
    raise InvalidAgent(package.resolve().name, f"{problem}; assign the agent to that name.")


def _import(package: Path) -> list[ModuleType]:
    """Import a package and its `agent.py`. As in ADK, the parent folder is added to the import path.

    The folder above it is added, too: it contains the packages beside `agents/`, such as `tools/`.
    """
    if str(package.parent) not in sys.path:
        sys.path.insert(0, str(package.parent))
    add_project(package.parent.parent)
    names = [f"{package.name}.agent"] if (package / "agent.py").is_file() else []
    try:
        modules = [importlib.import_module(name) for name in (*names, package.name)]
    except (
        Exception,
        SystemExit,
    ) as error:  # this runs user code; a broken package must not hide the others
        _check_place(package, sys.modules.get(package.name))
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        hint = _ADK if missing.startswith("google.adk") else _NOT_HERE if missing.startswith("waystation.") else ""
        place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else find_author_line(error)
        raise InvalidAgent(package.name, f"importing it failed at {place}: {_describe_error(error)}{hint}") from error
    for module in modules:
        _check_place(package, module)
    return modules


def _check_place(package: Path, module: ModuleType | None) -> None:
    """Raise InvalidAgent if the package's name belongs to another module in this process."""
    if module is None:
        return
    file = getattr(module, "__file__", None)
    # A package without `__init__.py` has `__path__` but no `__file__`. A built-in module has neither.
    places = [Path(file).parent] if file else [Path(place) for place in getattr(module, "__path__", ())]
    if package not in [place.resolve() for place in places]:
        place = places[0] if places else "Python itself"
        raise InvalidAgent(
            package.name, f"another package named {package.name!r} was imported from {place}; rename one."
        )


def _describe_error(error: BaseException) -> str:
    """Describe an exception. Pydantic's validation errors, whose text is long and contains links, are summarized."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    kinds = (LlmAgent, SequentialAgent, ParallelAgent, LoopAgent, App, EventsCompactionConfig)
    known = next((kind.model_fields for kind in kinds if kind.__name__ == error.title), ())
    return f"{error.title}: {describe_errors(error, known)}"


# Checks for mistakes in the definitions of agents, tools and approval rules, made before anything runs.


def authoring_problems(root: BaseAgent, rules: Sequence[ApprovalRule] = ()) -> list[AuthoringError]:
    """Return all mistakes in an agent tree, including agents called by AgentTools, and in its app's approval rules."""
    problems: list[AuthoringError] = []
    places: dict[str, list[str]] = {}
    all_entries: list[BaseTool | BaseToolset] = []
    for place, agent in agents_below(root):
        places.setdefault(agent.name, []).append(place)
        problems += [InvalidAgent(agent.name, text) for text in _agent_problems(agent)]
        if isinstance(agent, LlmAgent):
            entries, unresolved = resolve_tools(agent)
            problems += unresolved
            problems += [InvalidAgent(agent.name, text) for text in _rule_problems(agent.approval_rules, entries)]
            all_entries += entries
            for entry in entries:
                problems += _toolset_problems(entry) if isinstance(entry, BaseToolset) else _tool_problems(entry)
    problems += [InvalidAgent(root.name, f"in its app, {text}") for text in _rule_problems(rules, all_entries)]
    problems += [AgentNameTaken(name, taken) for name, taken in places.items() if len(taken) > 1]
    return problems


def _tool_problems(tool: BaseTool) -> list[AuthoringError]:
    problems: list[AuthoringError] = [*tool_problems(tool)]
    if callable(tool.require_confirmation) and (unknown := _unknown_parameters(tool.require_confirmation, tool)):
        names = ", ".join(map(repr, unknown))
        problems.append(
            InvalidTool(tool.name, f"`require_confirmation` takes {names}, which is not a parameter of the tool.")
        )
    return problems


def _toolset_problems(toolset: BaseToolset) -> list[AuthoringError]:
    name = type(toolset).__name__
    problems: list[AuthoringError] = [InvalidTool(name, problem) for problem in toolset.setting_problems()]
    prefix = toolset.tool_name_prefix
    if isinstance(prefix, str) and prefix and not NAME.fullmatch(prefix):
        problems.append(InvalidTool(name, f"`tool_name_prefix` {prefix!r} is not a valid prefix for tool names."))
    return problems


def _agent_problems(agent: BaseAgent) -> Iterator[str]:
    if kind_of(agent) is None:
        yield f"{with_article(agent)} cannot run; use LlmAgent, SequentialAgent, ParallelAgent or LoopAgent."
    children: Sequence[object] = agent.sub_agents  # user code may change the list without validation
    for child in children:
        if not isinstance(child, BaseAgent):
            yield f"`sub_agents` contains {with_article(child)}; use agents."
        elif child.parent_agent is not None and child.parent_agent is not agent:
            yield (
                f"its sub-agent {child.name!r} already has the parent {child.parent_agent.name!r}; use "
                f"`{child.name}.clone()` with another name."
            )
    trees = (agents_below(child, called=False) for child in children if isinstance(child, BaseAgent))
    if any(agent is below for tree in trees for _, below in tree):
        yield "its `sub_agents` contain the agent itself, so it would never end; use a clone."
    for name, arguments in CALLBACKS.items():
        for callback in as_list(getattr(agent, name, None)):
            if problem := _callback_problem(callback, arguments):
                yield f"`{name}` {problem}"
    if isinstance(agent, LlmAgent):
        yield from _model_problems(agent)
    if isinstance(agent, LoopAgent) and agent.max_iterations is None and not agent.sub_agents:
        yield "a LoopAgent without `sub_agents` and `max_iterations` does nothing; add agents."


def _model_problems(agent: LlmAgent) -> Iterator[str]:
    """Yield the problems in the fields that affect an agent's model requests."""
    if agent.output_schema is not None:
        try:
            if not json_schema(agent.output_schema):
                yield "its `output_schema` allows any value; use a pydantic model, or remove it."
        except Exception as error:  # noqa: BLE001  # a type's own schema hook can raise anything
            yield f"its `output_schema` has no JSON schema ({type(error).__name__}); use a pydantic model."
    if agent.generate_content_config is not None:
        # Imported here because few agents set this field, and importing genai takes a second.
        from google.genai.types import GenerateContentConfig

        try:
            GenerateContentConfig.model_validate(agent.generate_content_config)
        except ValidationError as error:
            faults = describe_errors(error, GenerateContentConfig.model_fields)
            yield f"its `generate_content_config` is invalid: {faults}."
    static = agent.static_instruction
    for item in static if isinstance(static, list) else [static]:
        if not isinstance(item, str | dict | BaseModel | None):
            kind = with_article(item)
            yield f"its `static_instruction` contains {kind}; use text, a genai Content or Part, or a list of them."
    for name in ("instruction", "global_instruction"):
        provider = getattr(agent, name)
        if callable(provider) and (problem := _callback_problem(provider, ("context",))):
            yield f"`{name}` {problem}"


def _callback_problem(callback: Any, arguments: tuple[str, ...]) -> str | None:
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # builtins have no readable signature
        return None
    # As in ADK, arguments are passed by keyword if the names match, and otherwise by position.
    for args, kwargs in (((), dict.fromkeys(arguments)), (arguments, {})):
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        return None
    return f"takes {signature}; use the parameters ({', '.join(arguments)})."


# A rule that never matches silently protects nothing, so these checks report it.


def _rule_problems(rules: Sequence[ApprovalRule], entries: Sequence[BaseTool | BaseToolset]) -> list[str]:
    """Return the problems in approval rules, given all tools and toolsets to which the rules apply."""
    # A toolset's tools are not known until it lists them.
    are_all_known = not any(isinstance(entry, BaseToolset) for entry in entries)
    tools = [tool for tool in entries if isinstance(tool, BaseTool) and is_subject_to_rules(tool)]
    return [
        f"approval rule {number} {problem}"
        for number, rule in enumerate(rules, 1)
        for problem in (
            *(f"has a policy that {mistake}" for mistake in rule.policy.mistakes()),
            *(_unmatched_conditions(rule, tools) if are_all_known else ()),
            *_failing_predicates(rule, tools),
        )
    ]


def _unmatched_conditions(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    for pattern in rule.tools or ():
        if not any(ApprovalRule(rule.policy, tools=(pattern,)).names(tool.name) for tool in tools):
            known = ", ".join(sorted({tool.name for tool in tools})) or "none"
            yield f"names tools {pattern!r}, which match no tool; the tools are: {known}."
    matches = [_parameters(tool) for tool in tools if rule.names(tool.name)]
    if not matches or None in matches:
        return
    for name in rule.over or ():
        if not any(name in (parameters or ()) for parameters in matches):
            yield f"has a limit for {name!r}, which is not a parameter of any of its tools."


def _failing_predicates(rule: ApprovalRule, tools: Sequence[BaseTool]) -> Iterator[str]:
    """Report required parameters of a rule's `when` that a tool lacks. `when` would raise on every call of the tool."""
    if rule.when is None:
        return
    for tool in tools:
        for name in _unknown_parameters(rule.when, tool) if rule.names(tool.name) else ():
            yield (
                f"has a `when` with the parameter {name!r}, which {tool.name!r} does not have, so every call of that "
                "tool would wait; restrict the rule with `tools`, or give the parameter a default."
            )


def _unknown_parameters(predicate: Callable[..., Any], tool: BaseTool) -> list[str]:
    """Return the predicate's required parameters that are not parameters of the tool."""
    known = _parameters(tool)
    return [] if known is None else [name for name in Signature(predicate, "").required_names if name not in known]


def _parameters(tool: BaseTool) -> set[str] | None:
    """Return the names of the arguments that predicates can receive, or None if they are unknown."""
    try:
        declared = declare(tool)
    except AuthoringError:  # reported by _tool_problems
        return None
    if declared is None:
        return None
    schema = declared.get("parametersJsonSchema") or {}
    context = tool.signature.context if isinstance(tool, FunctionTool) else None
    return {*schema.get("properties", {}), *([context] if context else [])}
