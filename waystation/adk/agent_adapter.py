"""Adapt google-adk's agents, apps, callbacks and plugins.

An adapted agent is a Waystation agent. Its instructions, callbacks, tools and models are google-adk's own objects and
run inside activities; calls, transfers, waiting and composite agents are steps of the workflow.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from google.adk import agents as adk
from google.adk.apps import App as AdkApp
from google.adk.code_executors import BuiltInCodeExecutor as AdkBuiltInCodeExecutor
from google.adk.models import LLMRegistry
from google.adk.planners import BuiltInPlanner
from google.adk.plugins.base_plugin import BasePlugin as AdkPlugin
from google.adk.plugins.save_files_as_artifacts_plugin import SaveFilesAsArtifactsPlugin
from google.adk.tools import AgentTool as AdkAgentToolClass
from google.adk.tools import FunctionTool as AdkFunctionTool
from google.adk.tools import request_input as adk_request_input
from google.adk.tools.base_tool import BaseTool as AdkBaseTool
from google.adk.tools.base_toolset import BaseToolset as AdkBaseToolset
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import BaseModel, ValidationError

from waystation.adk.body_adapter import ReplayableAgent
from waystation.adk.context_adapter import AdkContexts, from_adk_event, to_adk_event
from waystation.adk.flow_adapter import RUN_CODE, FlowToolset, flow_tools, process_responses, runs_code
from waystation.adk.replayable_mark import is_replayable
from waystation.adk.tool_adapter import (
    AdkAgentTool,
    AdkTool,
    AdkToolset,
    adapt_tool,
    adapt_toolset,
    editing,
    editing_response,
    from_response,
    list_settings,
    unwrap_tool,
)
from waystation.agents import (
    CALLBACKS,
    BaseAgent,
    LlmAgent,
    LoopAgent,
    ParallelAgent,
    ReadonlyContext,
    SequentialAgent,
    as_list,
)
from waystation.agents.base_agent import CODE_OF_ITS_OWN
from waystation.apps import App, BaseEventsSummarizer, EventsCompactionConfig
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core.errors import InvalidAgent
from waystation.core.naming import describe_errors, with_article
from waystation.core.payload import JsonObject
from waystation.events import Event
from waystation.models import LlmResponse
from waystation.models.llm_request import EditableRequest
from waystation.plugins import BasePlugin
from waystation.tools import BaseTool, RequestInputTool, ToolContext, invoke

_COMPOSITES: dict[Any, type[BaseAgent]] = {
    adk.SequentialAgent: SequentialAgent,
    adk.ParallelAgent: ParallelAgent,
    adk.LoopAgent: LoopAgent,
}
_KINDS: Any = (adk.LlmAgent, *_COMPOSITES)
_SAME_FIELDS = (
    "static_instruction", "generate_content_config", "disallow_transfer_to_parent",
    "disallow_transfer_to_peers", "include_contents", "input_schema", "output_schema", "output_key",
)  # fmt: skip
_UNSUPPORTED = {
    "mode": "Only the mode `chat` is supported; wrap an agent that handles a single request in AgentTool.",
    "parallel_worker": "Use a ParallelAgent.",
    "retry_config": "The engine retries model calls.",
    "timeout": "Limit the invocation with a budget instead.",
    "state_schema": "State is not validated; remove the schema.",
}
_NOT_CALLED = ("on_event_callback", "on_agent_error_callback", "on_run_error_callback")
"""Callbacks of google-adk's plugins that Waystation does not have."""
NO_EFFECT = {
    "context_cache_config": "providers cache prompt prefixes automatically",
    "resumability_config": "every invocation can be resumed",
}
"""Settings of google-adk's apps without a counterpart, each with the reason."""
_LIVE = "Live audio is not supported; remove the agent or give it another model or tool."
_LIVE_MODEL = re.compile(r".*(-live-|native-audio).*")


def adapt(agent: Any) -> BaseAgent | App:
    """Adapt an agent or an app. See `waystation.adk.from_adk`."""
    return Adapter(agent.plugins).app(agent) if isinstance(agent, AdkApp) else Adapter().agent(agent)


class Adapter:
    """Adapts the agents of one tree, each once."""

    def __init__(self, plugins: Sequence[Any] = ()) -> None:
        self._contexts = AdkContexts(plugins)
        self._adapted: dict[int, BaseAgent] = {}

    def app(self, app: Any) -> App:
        """Adapt an app.

        Raises:
            InvalidAgent: An agent cannot run.
        """
        config = app.events_compaction_config
        fields: dict[str, Any] = {
            "name": app.name,
            "root_agent": self.agent(app.root_agent),
            "plugins": [self.plugin(plugin) for plugin in app.plugins],
        }
        with _reporting(f"app {app.name}", App):
            return App(**fields, events_compaction_config=config and self._adapt_compaction(config))

    def plugin(self, plugin: Any) -> BasePlugin:
        """Adapt a plugin.

        Raises:
            InvalidAgent: The plugin replaces messages, which are recorded before plugins see them.
        """
        if isinstance(plugin, SaveFilesAsArtifactsPlugin):
            problem = "files in messages are not replaced. Save each file as an artifact, and name it in the message."
            raise InvalidAgent(plugin.name, problem)
        return _adapt_plugin(self._contexts, plugin)

    def code_executor(self, agent: LlmAgent) -> None:
        """Let an agent of Waystation run code with a code executor of google-adk.

        Raises:
            InvalidAgent: The code executor cannot run.
        """
        executor: Any = agent.code_executor
        if isinstance(executor, AdkBuiltInCodeExecutor):
            agent.code_executor = BuiltInCodeExecutor()
            return
        _check_code_executor(agent.name, executor)
        # google-adk's flow reads the code executor from the agent.
        theirs = adk.LlmAgent(name=agent.name, code_executor=executor)
        self._contexts.agents[agent.name] = theirs
        agent.tools = [*flow_tools(self._contexts, theirs), *agent.tools]
        callbacks = as_list(agent.after_model_callback)
        agent.after_model_callback = process_responses(self._contexts, theirs, callbacks)
        agent.code_executor = None

    def _adapt_compaction(self, config: Any) -> EventsCompactionConfig:
        fields = {name: getattr(config, name) for name in EventsCompactionConfig.model_fields}
        summarizer = config.summarizer and _Summarizer(config.summarizer)
        return EventsCompactionConfig(**{**fields, "summarizer": summarizer})

    def agent(self, agent: Any) -> BaseAgent:
        """Adapt an agent and the agents below it.

        Raises:
            InvalidAgent: One of them cannot run.
        """
        if id(agent) not in self._adapted:
            _check_agent(agent)
            self._contexts.agents[agent.name] = agent
            shared: dict[str, Any] = {
                "name": agent.name,
                "description": agent.description,
                "sub_agents": [self.agent(child) for child in agent.sub_agents],
                **self._callbacks(agent, "before_agent_callback", "after_agent_callback"),
            }
            with _reporting(agent.name, LlmAgent):
                self._adapted[id(agent)] = self._create_agent(agent, shared)
        return self._adapted[id(agent)]

    def _create_agent(self, agent: Any, shared: dict[str, Any]) -> BaseAgent:
        if isinstance(agent, adk.LlmAgent):
            return LlmAgent(**shared, **self._llm_fields(agent))
        if _has_body(agent):
            return ReplayableAgent.of(self._contexts, agent, shared)
        if isinstance(agent, adk.LoopAgent):
            shared["max_iterations"] = agent.max_iterations
        ours = next(ours for theirs, ours in _COMPOSITES.items() if isinstance(agent, theirs))
        return ours(**shared)

    def _llm_fields(self, agent: Any) -> dict[str, Any]:
        fields = {name: getattr(agent, name) for name in _SAME_FIELDS}
        tools = [self.tool(agent, tool) for tool in agent.tools]
        for name in ("instruction", "global_instruction"):
            fields[name] = self._instruction(getattr(agent, name))
        model_callbacks = [name for name in CALLBACKS if not name.endswith("_agent_callback")]
        fields |= self._callbacks(agent, *model_callbacks)
        if isinstance(agent.planner, BuiltInPlanner):
            config = agent.generate_content_config or types.GenerateContentConfig()
            thinking = {"thinking_config": agent.planner.thinking_config}
            fields["generate_content_config"] = config.model_copy(update=thinking)
        elif agent.planner or runs_code(agent):
            tools[:0] = flow_tools(self._contexts, agent)
            callbacks = fields["after_model_callback"]
            fields["after_model_callback"] = process_responses(self._contexts, agent, callbacks)
        if isinstance(agent.code_executor, AdkBuiltInCodeExecutor):
            fields["code_executor"] = BuiltInCodeExecutor()
        return {**fields, "tools": tools, "model": _find_model(agent)}

    def _instruction(self, instruction: Any) -> Any:
        if isinstance(instruction, str):
            return instruction

        async def provide(context: ReadonlyContext) -> Any:
            text = instruction(self._contexts.readonly(context))
            return await text if inspect.isawaitable(text) else text

        return provide

    def tool(self, agent: Any, tool: Any) -> Any:
        """Adapt a tool or toolset, or a function. `agent` is the agent whose name errors contain.

        Raises:
            InvalidAgent: The tool cannot run.
        """
        if isinstance(tool, AdkBaseToolset):
            return adapt_toolset(self._contexts, tool)
        if type(tool) is AdkAgentToolClass:
            return AdkAgentTool(tool, self.agent(tool.agent))
        if isinstance(tool, BaseNode):
            raise InvalidAgent(agent.name, f"its tool {tool.name!r} is {with_article(tool)}; wrap it in a function.")
        if not isinstance(tool, AdkBaseTool):
            tool = AdkFunctionTool(tool)
        if tool is adk_request_input:
            return _adapt_request_input(tool)
        if "input_stream" in inspect.signature(getattr(tool, "func", list)).parameters:
            raise InvalidAgent(agent.name, f"its tool {tool.name!r} takes `input_stream`. {_LIVE}")
        return adapt_tool(self._contexts, tool)

    def _callbacks(self, agent: Any, *names: str) -> dict[str, list[Callable[..., Any]]]:
        return {
            name: [_adapt_callback(self._contexts, callback) for callback in as_list(getattr(agent, name))]
            for name in names
        }


@contextlib.contextmanager
def _reporting(name: str, kind: type[BaseModel]) -> Iterator[None]:
    """Raise InvalidAgent with a name if an agent or app of google-adk is not valid in Waystation."""
    try:
        yield
    except ValidationError as error:
        raise InvalidAgent(name, describe_errors(error, kind.model_fields).rstrip(".") + ".") from error


def _adapt_request_input(tool: Any) -> BaseTool:
    adapted = RequestInputTool()  # workflows and clients know calls of this tool
    vars(adapted).update(list_settings(tool), _get_declaration=tool._get_declaration, adk=tool)
    return adapted


def _has_body(agent: Any) -> bool:
    """Return whether an agent is marked as replayable and has a `_run_async_impl` that can be."""
    defined = next((cls for cls in type(agent).__mro__ if "_run_async_impl" in vars(cls)), None)
    is_own = defined is not None and not defined.__module__.startswith("google.adk.")
    return is_own and is_replayable(agent) and not isinstance(agent, adk.LlmAgent)


def _check_agent(agent: Any) -> None:
    has_body = _has_body(agent)
    for cls in type(agent).__mro__:
        own = next((name for name in CODE_OF_ITS_OWN if name in vars(cls)), None)
        if has_body and own == "_run_async_impl":
            continue
        if own and not cls.__module__.startswith("google.adk."):
            raise InvalidAgent(
                agent.name,
                f"its class {cls.__name__!r} defines `{own}`, which cannot be replayed; {_remedy(agent, own)}",
            )
    if not (has_body or isinstance(agent, _KINDS)):
        name, kind = getattr(agent, "name", "agent"), with_article(agent)
        raise InvalidAgent(name, f"{kind} cannot run; use LlmAgent, SequentialAgent, ParallelAgent or LoopAgent.")
    for name, remedy in _UNSUPPORTED.items():
        if getattr(agent, name, None) not in (None, "chat"):
            raise InvalidAgent(agent.name, f"`{name}` is not supported. {remedy}")
    _check_code_executor(agent.name, getattr(agent, "code_executor", None))
    model = getattr(agent, "model", "")
    if isinstance(model, str) and _LIVE_MODEL.fullmatch(model):
        raise InvalidAgent(agent.name, f"its model {model!r} is for live audio. {_LIVE}")


def _check_code_executor(agent: str, executor: Any) -> None:
    if getattr(executor, "optimize_data_file", False):
        raise InvalidAgent(agent, "its code executor has `optimize_data_file`; read the files in a tool instead.")


def _remedy(agent: Any, method: str) -> str:
    combine = "combine LlmAgent and composite agents, and put the code into tools and callbacks."
    if method != "_run_async_impl" or isinstance(agent, adk.LlmAgent):
        return combine
    return f"mark the class with `@replayable` of `waystation.adk` if it can run again from its start, or {combine}"


def _find_model(agent: Any) -> Any:
    """Return the model that Waystation calls: a Gemini name, or an object of google-adk, which serves other names."""
    above = agent.parent_agent
    while above is not None and not isinstance(above, adk.LlmAgent):
        above = above.parent_agent
    model = agent.model or ("" if above else type(agent)._default_model)
    if not isinstance(model, str) or not model or re.match(r"(gemini|projects/|models/)", model):
        return model
    try:
        return LLMRegistry.new_llm(model)
    except ValueError:  # the check of the agents reports an unknown name
        return model


def _adapt_callback(contexts: AdkContexts, callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    async def run(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            positional = [_convert(contexts, stack, value) for value in args]
            named = {name: _convert(contexts, stack, value) for name, value in kwargs.items()}
            return from_response(await invoke(callback, inspect.signature(callback).bind(*positional, **named)))

    return run


def _convert(contexts: AdkContexts, stack: contextlib.ExitStack, value: Any) -> Any:
    """Return what google-adk passes for an argument of a callback. `stack` keeps changes when the callback returns."""
    match value:
        case ToolContext():
            return stack.enter_context(contexts.using(value))
        case EditableRequest():
            return stack.enter_context(editing(value))
        case LlmResponse():
            return stack.enter_context(editing_response(value))
        case BaseTool():
            return unwrap_tool(value)
        case BaseAgent():
            return contexts.agent(value.name)
    return value


class _Summarizer(BaseEventsSummarizer):
    """A summarizer of google-adk."""

    def __init__(self, summarizer: Any) -> None:
        self._summarizer = summarizer

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        summary = await self._summarizer.maybe_summarize_events(events=[to_adk_event(event) for event in events])
        return summary and from_adk_event(summary)


def _adapt_plugin(contexts: AdkContexts, plugin: Any) -> BasePlugin:
    """Wrap a google-adk plugin, exposing only the callbacks it overrides."""

    def adapt(name: str) -> Callable[..., Any]:
        async def run(self: BasePlugin, **params: Any) -> Any:
            with contextlib.ExitStack() as stack:
                named = {key: _convert(contexts, stack, value) for key, value in params.items()}
                if "invocation_context" in named:
                    named["invocation_context"] = named["invocation_context"]._invocation_context
                return from_response(await getattr(plugin, name)(**named))

        return run

    async def close(self: BasePlugin) -> None:
        await plugin.close()

    hooks = [name for name in vars(BasePlugin) if name.endswith("_callback")]
    members = {name: adapt(name) for name in hooks if _overrides(plugin, name)}
    cls = type(type(plugin).__name__, (BasePlugin,), {**members, "close": close, "adk": plugin})
    adapted: BasePlugin = cls(plugin.name)
    return adapted


def _overrides(plugin: Any, name: str) -> bool:
    return name in vars(plugin) or getattr(type(plugin), name) is not getattr(AdkPlugin, name)


def list_differences(
    agents: Iterable[BaseAgent], plugins: Iterable[BasePlugin], app_settings: Iterable[str]
) -> Iterator[JsonObject]:
    """Yield a sentence for each difference to google-adk, with the name of the agent or plugin.

    `app_settings` are the settings of an app of google-adk.
    """
    for name in app_settings:
        yield {"app_setting": name, "difference": f"`{name}` has no effect, because {NO_EFFECT[name]}."}
    for agent in agents:
        yield from ({"agent": agent.name, "difference": text} for text in _agent_differences(agent))
    for plugin in plugins:
        theirs = getattr(plugin, "adk", None)
        for name in _NOT_CALLED if theirs is not None else ():
            if _overrides(theirs, name):
                text = f"`{name}` is not called, because the workflow records events and failures."
                yield {"plugin": plugin.name, "difference": text}


def _agent_differences(agent: BaseAgent) -> Iterator[str]:
    if isinstance(agent, ReplayableAgent):
        yield (
            "Its `_run_async_impl` runs again from its start after each sub-agent. The events of its sub-agents are "
            "recorded even if it does not yield them."
        )
    tools = agent.tools if isinstance(agent, LlmAgent) else ()
    if any(isinstance(tool, AdkTool | AdkToolset) for tool in tools):
        yield (
            "An exception in a tool is reported to the model; google-adk ends the run. If a worker crashes, its "
            "running tools run again, except those whose attribute `effect` is 'once'."
        )
    for tool in tools:
        if isinstance(tool, AdkTool) and isinstance(tool.adk, AdkAgentToolClass):
            yield f"The agent of {tool.name!r} runs inside one tool call and starts again after a crash; use AgentTool."
        if isinstance(tool, FlowToolset) and tool.runs_code:
            yield f"Code that the model writes runs as a call of {RUN_CODE!r}, which callbacks around tools see."
