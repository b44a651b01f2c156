"""Find agents: packages that expose `root_agent`, as ADK lays them out.

    examples/
      reimbursement/
        __init__.py     from . import agent
        agent.py        root_agent = Agent(name="reimbursement_agent", …)

`root_agent` may as well be in the package's `__init__.py`. A folder that has neither is passed over.

All mistakes are collected and reported together, each with its file.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tools import agents_below, authoring_problems
from waystation.agents.agent import LlmAgent
from waystation.core.errors import AgentNameTaken, AuthoringError, InvalidAgent, UnknownAgent
from waystation.models import BaseLlm


@dataclass(frozen=True, slots=True)
class Problem:
    """One authoring mistake, and where it is."""

    place: str
    error: AuthoringError

    def __str__(self) -> str:
        return f"{self.place}: {self.error}"


@dataclass(frozen=True, slots=True)
class Root:
    """A root agent, where it comes from, and the agents in its tree by name."""

    agent: LlmAgent
    place: str
    tree: Mapping[str, LlmAgent]
    demo_model: BaseLlm | None = None
    """The offline stand-in that the package brings for trying it without an API key."""


class Registry:
    """The agents that a worker serves, by the name of their root agent."""

    def __init__(self, roots: Iterable[Root] = ()) -> None:
        self._roots: dict[str, Root] = {}
        for root in roots:
            self.add(root)

    @classmethod
    def of(cls, *agents: LlmAgent) -> "Registry":
        """Return a registry of agents that exist already."""
        return cls(Root(agent, f"agent {agent.name!r}", tree_of(agent)) for agent in agents)

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

    def find(self, root: str, agent: str) -> tuple[Root, LlmAgent]:
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


def tree_of(agent: LlmAgent) -> dict[str, LlmAgent]:
    """Return an agent and all agents that it may call, by name."""
    return {found.name: found for _, found in agents_below(agent) if isinstance(found, LlmAgent)}


def discover(folders: Iterable[Path]) -> tuple[Registry, list[Problem]]:
    """Import every agent package in `folders`, or the folder itself when it is one.

    A package that cannot be used becomes a problem; the others are still found.
    """
    registry, problems = Registry(), list[Problem]()
    seen: set[Path] = set()
    for folder in folders:
        packages = list(_packages(folder))
        if not packages:
            problem = (
                "no agent package is in this folder; one has an `agent.py` with `root_agent`."
                if folder.is_dir()
                else "there is no such folder; name one that has agent packages in it."
            )
            problems.append(Problem(str(folder), InvalidAgent(folder.resolve().name, problem)))
        for package in packages:
            if package.resolve() in seen:
                continue
            seen.add(package.resolve())
            try:
                root = _load(package)
                problems.extend(Problem(root.place, error) for error in authoring_problems(root.agent))
                registry.add(root)
            except AuthoringError as error:
                problems.append(Problem(str(package), error))
    return registry, problems


def _packages(folder: Path) -> Iterator[Path]:
    if _is_package(folder):
        yield folder
    elif folder.is_dir():
        yield from sorted(child for child in folder.iterdir() if _is_package(child))


def _is_package(folder: Path) -> bool:
    init = folder / "__init__.py"
    # Read first: other packages may lie here too, and importing one may do anything.
    return (folder / "agent.py").is_file() or (init.is_file() and b"root_agent" in init.read_bytes())


def _load(package: Path) -> Root:
    package_name = package.resolve().name
    modules = _import(package.resolve())
    found = next((module for module in modules if hasattr(module, "root_agent")), None)
    if found is None:
        raise InvalidAgent(package_name, "`agent.py` defines no `root_agent`; assign the agent to that name.")
    agent = found.root_agent
    if not isinstance(agent, LlmAgent):
        raise InvalidAgent(
            package_name, f"`root_agent` is a {type(agent).__name__}; only LlmAgent can be a root so far."
        )
    demo = next((module.demo_model for module in modules if hasattr(module, "demo_model")), None)
    place = str(package / Path(found.__file__ or "agent.py").name)
    return Root(agent, place, tree_of(agent), demo if isinstance(demo, BaseLlm) else None)


def _import(package: Path) -> list[ModuleType]:
    """Import a package and its `agent.py` under the package's name, as ADK does: its folder's parent is on the path."""
    parent = str(package.parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    names = [package.name]
    if (package / "agent.py").is_file():
        names.insert(0, f"{package.name}.agent")
    try:
        modules = [importlib.import_module(name) for name in names]
    except (
        Exception,
        SystemExit,
    ) as error:  # author code may raise anything; one bad package must not hide the rest
        _check_place(package, sys.modules.get(package.name))
        raise InvalidAgent(
            package.name, f"importing it failed at {_where(error, package)}: {type(error).__name__}: {error}"
        ) from error
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
        found = places[0] if places else "Python itself"
        raise InvalidAgent(
            package.name, f"another package named {package.name!r} was imported from {found}; rename one."
        )


def _where(error: BaseException, package: Path) -> str:
    """Return the line of author's code at which an import failed."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    # What an author's line calls is last: a check of ours, or Python's import machinery.
    own = [frame for frame in frames if package.parent in Path(frame.filename).parents]
    where = (own or frames)[-1]
    return f"{where.filename}:{where.lineno}"
