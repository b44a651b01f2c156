"""Tools and toolsets of google-adk, run by google-adk's own code inside activities."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from google.adk.flows.llm_flows.prompt._dynamic_instructions import finalize_dynamic_instructions
from google.adk.models import LlmRequest as AdkRequest
from google.adk.models import LlmResponse as AdkResponse
from google.adk.tools import FunctionTool
from google.adk.tools.base_tool import BaseTool as AdkBaseTool
from google.adk.tools.base_toolset import BaseToolset as AdkBaseToolset

from waystation.adk.context_adapter import AdkContexts
from waystation.agents import BaseAgent, ReadonlyContext
from waystation.core.payload import JsonObject
from waystation.models import LlmResponse
from waystation.tools import AgentTool, BaseTool, BaseToolset, ToolContext, invoke
from waystation.tools.outcome import FailedAfterEffect

_RESPONSE_FIELDS = (
    "content", "finish_reason", "error_code", "error_message", "usage_metadata", "model_version",
    "grounding_metadata", "citation_metadata", "custom_metadata", "partial", "turn_complete", "interrupted",
)  # fmt: skip
_SETTINGS = frozenset(
    {
        "approval",
        "cancel_within",
        "deadline",
        "effect",
        "heartbeat_timeout",
        "on_error",
        "quick",
        "require_confirmation",
        "response_schema",
        "retries",
        "task_queue",
    }
)
"""Settings of Waystation's tools that authors may set as attributes of a google-adk tool."""


class AdkTool(BaseTool):
    """A google-adk tool."""

    func: Any

    def __init__(self, contexts: AdkContexts, tool: Any) -> None:
        super().__init__(
            name=tool.name,
            description=tool.description or "",
            is_long_running=tool.is_long_running,
            custom_metadata=tool.custom_metadata,
        )
        self._contexts, self.adk = contexts, tool
        vars(self).update(list_settings(tool))
        if hasattr(tool, "func"):
            self.func = tool.func
        # google-adk runs a generator as a node of a graph, which needs its own runner.
        is_generator = isinstance(tool, FunctionTool) and tool._spec.is_generator
        self._running = (
            FunctionTool(_drain(tool.func), require_confirmation=tool._require_confirmation) if is_generator else tool
        )

    def _get_declaration(self) -> Any:
        return self.adk._get_declaration()

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Run the tool with google-adk's context.

        Raises:
            FailedAfterEffect: The tool returned, but its changes cannot be recorded.
        """
        results = []
        try:
            with self._contexts.using(tool_context) as context:
                results.append(await self._running.run_async(args=args, tool_context=context))
        except Exception as error:
            if not results:
                raise
            raise FailedAfterEffect(error, *results) from error
        return results[0]

    async def check_require_confirmation(self, args: JsonObject, tool_context: ToolContext) -> bool:
        """Return what the tool's own method returns. Without a rule of its own, the tool's settings decide as well."""
        with self._contexts.using(tool_context) as context:
            is_required = bool(await self.adk.check_require_confirmation(args, context))
        decides = _has_rule(self.adk) and not self.require_confirmation
        return is_required or (not decides and await super().check_require_confirmation(args, tool_context))


def list_settings(tool: Any) -> JsonObject:
    """Return the settings of Waystation's tools that are attributes of a google-adk tool or of its class."""
    return {name: getattr(tool, name) for name in _SETTINGS if hasattr(tool, name)}


def _has_rule(tool: Any) -> bool:
    """Return whether a google-adk tool decides itself which of its calls need a confirmation."""
    check = getattr(tool.check_require_confirmation, "__func__", tool.check_require_confirmation)
    is_own = not check.__module__.startswith("google.adk.")
    return is_own or callable(getattr(tool, "_require_confirmation", None))


def _drain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns the value that a generator yields."""

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await invoke(function, inspect.signature(function).bind(*args, **kwargs))

    return run


class AdkRequestTool(AdkTool):
    """A google-adk tool that overrides `process_llm_request`."""

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Let the tool change the request."""
        with self._contexts.using(tool_context) as context, editing(llm_request) as request:
            await self.adk.process_llm_request(tool_context=context, llm_request=request)
            await finalize_dynamic_instructions(context._invocation_context, request)


class AdkAgentTool(AgentTool):
    """An AgentTool of google-adk. Its agent runs as a child of the invocation."""

    def __init__(self, tool: Any, agent: BaseAgent) -> None:
        super().__init__(agent, tool.skip_summarization, include_plugins=tool.include_plugins)
        vars(self).update(list_settings(tool))
        self.adk = tool

    def _get_declaration(self) -> Any:
        return self.adk._get_declaration()


class AdkToolset(BaseToolset):
    """A google-adk toolset."""

    def __init__(self, contexts: AdkContexts, toolset: Any) -> None:
        super().__init__(tool_name_prefix=toolset.tool_name_prefix)
        self._contexts, self.adk = contexts, toolset
        vars(self).update(list_settings(toolset))
        self.name = name if isinstance(name := getattr(toolset, "name", None), str) else None

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[Any]:
        """Return the toolset's tools, whose names include the prefix."""
        listed = await self.adk.get_tools_with_prefix(self._contexts.readonly(readonly_context))
        return [adapt_tool(self._contexts, tool) for tool in listed]

    get_tools_with_prefix = get_tools

    def origin_name(self) -> str:
        """Return the name that identifies the toolset as the origin of its tools."""
        return self.name or self.tool_name_prefix or type(self.adk).__name__

    async def close(self) -> None:
        """Close the toolset."""
        await self.adk.close()


class AdkRequestToolset(AdkToolset):
    """A google-adk toolset that overrides `process_llm_request`."""

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Let the toolset change the request."""
        with self._contexts.using(tool_context) as context, editing(llm_request) as request:
            await self.adk.process_llm_request(tool_context=context, llm_request=request)
            await finalize_dynamic_instructions(context._invocation_context, request)


def adapt_tool(contexts: AdkContexts, tool: Any) -> BaseTool:
    """Return a Waystation tool that runs a google-adk tool."""
    changes = type(tool).process_llm_request is not AdkBaseTool.process_llm_request
    return (AdkRequestTool if changes else AdkTool)(contexts, tool)


def adapt_toolset(contexts: AdkContexts, toolset: Any) -> BaseToolset:
    """Return a Waystation toolset with the tools of a google-adk toolset."""
    changes = type(toolset).process_llm_request is not AdkBaseToolset.process_llm_request
    return (AdkRequestToolset if changes else AdkToolset)(contexts, toolset)


def unwrap_tool(tool: BaseTool) -> Any:
    """Return the google-adk tool that callbacks receive. For a tool of the engine, it only has a name."""
    return getattr(tool, "adk", None) or AdkBaseTool(name=tool.name, description=tool.description)


@contextlib.contextmanager
def editing(llm_request: Any) -> Iterator[Any]:
    """Provide a google-adk LlmRequest over a Waystation one, and afterwards keep the fields that were replaced.

    Raises:
        ValueError: A tool was added that does not belong to the agent, so workers could not run its calls.
    """
    tools = {name: unwrap_tool(tool) for name, tool in llm_request.tools_dict.items()}
    # Without validation, which would convert and copy all contents.
    request = AdkRequest.model_construct(
        model=llm_request.model, contents=llm_request.contents, config=llm_request.config, tools_dict={**tools}
    )
    yield request
    if added := sorted(request.tools_dict.keys() - tools.keys()):
        raise ValueError(
            f"Tool {added[0]!r} does not belong to the agent. Add it or its toolset to the agent's `tools`."
        )
    llm_request.model, llm_request.contents, llm_request.config = request.model, request.contents, request.config


@contextlib.contextmanager
def editing_response(response: LlmResponse) -> Iterator[Any]:
    """Provide a google-adk LlmResponse with a response's fields, and afterwards keep the fields that were changed."""
    theirs = AdkResponse(**{name: getattr(response, name) for name in _RESPONSE_FIELDS})
    yield theirs
    for name in _RESPONSE_FIELDS:
        setattr(response, name, getattr(theirs, name))


def from_response(answer: Any) -> Any:
    """Convert a google-adk LlmResponse that a callback returned. Return other values unchanged."""
    if not isinstance(answer, AdkResponse):
        return answer
    return LlmResponse(**{name: getattr(answer, name) for name in _RESPONSE_FIELDS})
