"""Agents that use a language model."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from waystation.agents import ApprovalRule, BaseAgent, Callbacks, lineage
from waystation.agents.toolbox import list_tools
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core.naming import with_article
from waystation.extensions import find_adapter, find_adapters
from waystation.models import BaseLlm
from waystation.models.base_llm import DEFAULT_MODEL, AdkLlm, GeneratesContent
from waystation.models.providers import create_model
from waystation.models.service_model import check_name
from waystation.tools import BaseTool, ReadonlyContext, ToolContext
from waystation.tools.memoize import memoize

_CONFIG_BELONGS_ELSEWHERE = {
    "tools": ("tools", "All tools must be set via LlmAgent.tools, not via generate_content_config.tools."),
    "system_instruction": (
        "systemInstruction",
        "System instruction must be set via LlmAgent.instruction, not via generate_content_config.system_instruction.",
    ),
    "response_schema": (
        "responseSchema",
        "Response schema must be set via LlmAgent.output_schema, not via generate_content_config.response_schema.",
    ),
}
"""Fields of `generate_content_config` that ADK rejects, each with its JSON name and the error message."""

_UNSUPPORTED = {
    "mode": "Only the mode `chat` is supported. Wrap an agent that handles a single request in AgentTool.",
    "parallel_worker": "Use a ParallelAgent.",
    "retry_config": "The engine retries model calls. For tools, set `retries` on FunctionTool.",
    "timeout": "Set `timeout` on tools and `deadline` on tools that wait for approvers.",
    "state_schema": "State must be JSON; it has no schema.",
}
"""Fields of ADK's LlmAgent that are rejected if set, each with advice for the error message."""


CALLBACKS: dict[str, tuple[str, ...]] = {
    "before_agent_callback": ("callback_context",),
    "after_agent_callback": ("callback_context",),
    "before_model_callback": ("callback_context", "llm_request"),
    "after_model_callback": ("callback_context", "llm_response"),
    "on_model_error_callback": ("callback_context", "llm_request", "error"),
    "before_tool_callback": ("tool", "args", "tool_context"),
    "after_tool_callback": ("tool", "args", "tool_context", "tool_response"),
    "on_tool_error_callback": ("tool", "args", "tool_context", "error"),
}
"""The arguments of each callback, passed by keyword or, if its parameters have other names, by position."""


class LlmAgent(BaseAgent):
    """An agent that uses a language model. `Agent` is an alias. The fields have the same meaning as in ADK 2.13."""

    DEFAULT_MODEL: ClassVar[str] = DEFAULT_MODEL
    """The model that is used when neither the agent nor any of its ancestors sets one."""

    model: str | BaseLlm = ""
    """The model or its name. By default, the model of the nearest ancestor that has one, or else `DEFAULT_MODEL`. Other
    objects with ADK's method `generate_content_async` are accepted, too, and wrapped."""
    instruction: Any = ""
    """Text with `{state_key}` placeholders, or a sync or async function `(readonly_context)` that returns text."""
    global_instruction: Any = ""
    """Like `instruction`, but for all agents in the tree. Only the root agent's value is used."""
    static_instruction: Any = None
    """Text, a Content, a Part, or a list of these. It is the same in every request. If set, `instruction` moves from
    the system instruction to the contents.
    """
    tools: list[Any] = Field(default_factory=list)
    """Functions, BaseTools or BaseToolsets. Those of google-adk are adapted."""
    approval_rules: list[ApprovalRule] = Field(default_factory=list)
    """Approval rules for the agent's tool calls. The first rule that matches a call applies, unless the tool has its
    own policy.
    """
    generate_content_config: Any = None
    """A genai `GenerateContentConfig`, or a dictionary with the same fields."""
    disallow_transfer_to_parent: bool = False
    """If True, the agent cannot transfer to its parent, and the user's next message does not go to this agent."""
    disallow_transfer_to_peers: bool = False
    include_contents: Literal["default", "none"] = "default"
    """With `none`, the model receives only the current turn."""
    input_schema: type[BaseModel] | None = None
    """The input schema of the agent when it is used as a tool."""
    output_schema: Any = None
    """The schema of the agent's answer: a pydantic model, any other type such as `list[Item]`, or a JSON schema as a
    dictionary.
    """
    output_key: str | None = None
    """The state key that the agent's answer is saved under."""
    planner: Any = None
    """A planner of `waystation.planners` or of google-adk, which changes requests and replies."""
    code_executor: Any = None
    """A BuiltInCodeExecutor lets the model run code at its provider. Code executors of google-adk run the code that the
    model writes in a tool call; the field is then None, and `tools` contains the toolset that runs it."""
    before_model_callback: Callbacks = None
    """Called with `(callback_context, llm_request)`. A returned LlmResponse replaces the model call."""
    after_model_callback: Callbacks = None
    """Called with `(callback_context, llm_response)`. A returned LlmResponse replaces the model's response."""
    on_model_error_callback: Callbacks = None
    """Called with `(callback_context, llm_request, error)`. A returned LlmResponse replaces the error."""
    before_tool_callback: Callbacks = None
    """Called with `(tool, args, tool_context)`. It may change `args` in place. A result other than None replaces the
    call.
    """
    after_tool_callback: Callbacks = None
    """Called with `(tool, args, tool_context, tool_response)`. A result other than None replaces the tool's result."""
    on_tool_error_callback: Callbacks = None
    """Called with `(tool, args, tool_context, error)`. A result other than None replaces the error."""

    @property
    def declared_model(self) -> str | BaseLlm:
        """The agent's own model, or that of the nearest ancestor that has one, or `DEFAULT_MODEL`."""
        models = (agent.model for agent in lineage(self) if isinstance(agent, LlmAgent) and agent.model)
        return next(models, self.DEFAULT_MODEL)

    @property
    def canonical_model(self) -> BaseLlm:
        """The model of `declared_model` as an object, always the same, for code that reads its attributes.

        Raises:
            ValueError: No installed adapter serves the name.
        """
        model = self.declared_model
        return model if isinstance(model, BaseLlm) else memoize(self, "_model", model, lambda: create_model(model))

    @property
    def request_schema(self) -> type[BaseModel] | None:
        """The agent's input schema."""
        return self.input_schema

    @property
    def answers_with_object(self) -> bool:
        """Whether the agent has an output schema."""
        return self.output_schema is not None

    async def canonical_instruction(self, ctx: ReadonlyContext) -> tuple[str, bool]:
        """Return the instruction as text, and whether a function provided it. Placeholders are not filled in."""
        return await _resolve(self.instruction, ctx)

    async def canonical_global_instruction(self, ctx: ReadonlyContext) -> tuple[str, bool]:
        """Return the global instruction as text, and whether a function provided it."""
        return await _resolve(self.global_instruction, ctx)

    async def canonical_tools(self, ctx: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the agent's tools, with functions wrapped and toolsets expanded."""
        return list((await list_tools(self, lambda: ctx or ToolContext())).values())

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("mode") == "chat":
            data = {key: value for key, value in data.items() if key != "mode"}
        for name, remedy in _UNSUPPORTED.items():
            if data.get(name) is not None:
                raise ValueError(f"`{name}` is not supported. {remedy}")
        # Drop unsupported fields that are None, because code written for ADK may pass None explicitly.
        return {key: value for key, value in data.items() if key not in _UNSUPPORTED}

    @model_validator(mode="after")
    def _adapt_parts(self) -> LlmAgent:
        for adapter in find_adapters(self.tools):
            self.tools = adapter.adapt_tools(self, self.tools)
        if runs_code := find_adapter(self.code_executor):
            runs_code.adapt_code_executor(self)
        return self

    @field_validator("model", mode="before")
    @classmethod
    def _adapt_model(cls, model: Any) -> Any:
        check_name(model)
        return AdkLlm(model) if isinstance(model, GeneratesContent) and not isinstance(model, BaseLlm) else model

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: list[Any]) -> list[Any]:
        for tool in tools:
            if isinstance(tool, BaseAgent):
                raise ValueError(
                    f"Agent {tool.name!r} cannot be used directly as a tool. Wrap it in AgentTool(agent=...)."
                )
        return tools

    @field_validator("instruction", "global_instruction")
    @classmethod
    def _check_instruction(cls, instruction: Any) -> Any:
        if not isinstance(instruction, str) and not callable(instruction):
            raise ValueError(f"It is {with_article(instruction)}; use text, or a function that returns text.")
        return instruction

    @field_validator("generate_content_config")
    @classmethod
    def _check_config(cls, config: Any) -> Any:
        for name, (alias, problem) in _CONFIG_BELONGS_ELSEWHERE.items():
            value = config.get(name) or config.get(alias) if isinstance(config, dict) else getattr(config, name, None)
            if value:
                raise ValueError(problem)
        return config

    @field_validator("planner")
    @classmethod
    def _check_planner(cls, planner: Any) -> Any:
        methods = ("build_planning_instruction", "process_planning_response")
        if planner is not None and not all(callable(getattr(planner, name, None)) for name in methods):
            raise ValueError(f"It is {with_article(planner)}; use an instance of a subclass of BasePlanner.")
        return planner

    @field_validator("code_executor")
    @classmethod
    def _check_code_executor(cls, executor: Any) -> Any:
        if executor is not None and not isinstance(executor, BuiltInCodeExecutor) and not find_adapter(executor):
            raise ValueError(
                f"{type(executor).__name__} is not supported; use BuiltInCodeExecutor, which runs code at the model's "
                "provider, a code executor of google-adk, or a tool that runs code."
            )
        return executor


async def _resolve(instruction: Any, context: ReadonlyContext) -> tuple[str, bool]:
    if isinstance(instruction, str):
        return instruction, False
    text = instruction(context)
    return (await text if inspect.isawaitable(text) else text), True


Agent = LlmAgent
