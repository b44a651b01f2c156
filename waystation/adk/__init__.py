"""Run google-adk agents unmodified."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from waystation.adk.replayable_mark import replayable as replayable
from waystation.core.errors import AuthoringError
from waystation.core.payload import JsonObject
from waystation.version import find_adk_problem

if TYPE_CHECKING:
    from waystation.agents import BaseAgent, LlmAgent
    from waystation.apps import App
    from waystation.plugins import BasePlugin


class AdkUnavailable(AuthoringError):
    """google-adk is not installed, or has an unsupported version.

    Install the extra: `pip install 'waystation[adk]'`.
    """


def is_adk(value: object) -> bool:
    """Return whether a value is an agent, app or other object of a class of google-adk. google-adk is not imported."""
    return any(cls.__module__.startswith("google.adk.") for cls in type(value).__mro__)


def list_settings_without_effect(app: object) -> list[str]:
    """Return the names of those settings of a google-adk App that have no effect."""
    return [name for name in _load_adapter().NO_EFFECT if getattr(app, name, None) is not None]


def describe_differences(
    agents: Iterable[BaseAgent], plugins: Iterable[BasePlugin], app_settings: Iterable[str]
) -> Iterator[JsonObject]:
    """Yield each difference between adapted agents and google-adk, as the fields of a log event."""
    if "waystation.adk.agent_adapter" in sys.modules:  # otherwise nothing has been adapted
        yield from _load_adapter().list_differences(agents, plugins, app_settings)


def from_adk(agent: object) -> BaseAgent | App:
    """Return a Waystation agent that runs a google-adk agent. For a google-adk App, return an App.

    Raises:
        AdkUnavailable: google-adk is not installed, or has an unsupported version.
        InvalidAgent: An agent of the tree cannot run.
    """
    adapted: BaseAgent | App = _load_adapter().adapt(agent)
    return adapted


adapt_agent = from_adk


def adapt_tools(agent: BaseAgent, tools: Sequence[Any]) -> list[Any]:
    """Return the tools and toolsets of one of Waystation's agents, with those of google-adk adapted.

    Raises:
        AdkUnavailable: google-adk has an unsupported version.
        InvalidAgent: A tool cannot run.
    """
    adapter = _load_adapter().Adapter()
    return [adapter.tool(agent, tool) if is_adk(tool) else tool for tool in tools]


def adapt_plugins(plugins: Sequence[Any]) -> list[Any]:
    """Return plugins, with those of google-adk as plugins of Waystation.

    Raises:
        AdkUnavailable: google-adk has an unsupported version.
    """
    adapter = _load_adapter().Adapter([plugin for plugin in plugins if is_adk(plugin)])
    return [adapter.plugin(plugin) if is_adk(plugin) else plugin for plugin in plugins]


def adapt_code_executor(agent: LlmAgent) -> None:
    """Let one of Waystation's agents run code with its code executor, which is one of google-adk.

    Raises:
        AdkUnavailable: google-adk has an unsupported version.
        InvalidAgent: The code executor cannot run.
    """
    _load_adapter().Adapter().code_executor(agent)


def _load_adapter() -> Any:
    """Return the module that adapts objects. It imports google-adk."""
    if problem := find_adk_problem():
        raise AdkUnavailable(problem)
    from waystation.adk import agent_adapter

    return agent_adapter
