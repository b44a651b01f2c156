"""Agents with a language model."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from waystation.agents import ApprovalRule, BaseAgent, Callbacks, lineage
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core import with_article
from waystation.models import BaseLlm

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
"""Fields of a generation config that ADK rejects: name, name in JSON, error message."""

_UNSUPPORTED = {
    "planner": "A planner is not supported; put `thinking_config` into `generate_content_config`.",
    "mode": "Only the mode `chat` is supported. Wrap an agent that handles a single request in AgentTool.",
    "parallel_worker": "Use a ParallelAgent.",
    "retry_config": "The engine retries model calls. For tools, set `retries` on FunctionTool.",
    "timeout": "Set `timeout` on tools and `deadline` on tools that wait for approvers.",
    "state_schema": "State must be JSON; it has no schema.",
}
"""Unsupported fields of ADK's LlmAgent, and their replacements."""


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
"""Arguments of each callback, by keyword and in this order. Source: adk-semantics 1.6, 9.4."""


class LlmAgent(BaseAgent):
    """An agent with a language model. `Agent` is the same class. adk-semantics 9.3 describes the fields."""

    DEFAULT_MODEL: ClassVar[str] = "gemini-3.5-flash"
    """Model of an agent when neither it nor an agent above it has one."""

    model: str | BaseLlm = ""
    """Name or object of the model. By default, the model of the agent above, or else `DEFAULT_MODEL`."""
    instruction: Any = ""
    """Text with `{state_key}` templates, or a function `(readonly_context)` that returns text, sync or async."""
    global_instruction: Any = ""
    """Like `instruction`, for all agents of the tree. Only the root agent's value is used."""
    static_instruction: Any = None
    """Text, Content or Part that never changes. `instruction` then becomes part of the contents."""
    tools: list[Any] = Field(default_factory=list)
    """Functions, BaseTools and BaseToolsets."""
    approval_rules: list[ApprovalRule] = Field(default_factory=list)
    """Rules for approval of the agent's tool calls. A tool's own policy comes first, then the first matching rule."""
    generate_content_config: Any = None
    """A genai `GenerateContentConfig` or its dictionary."""
    disallow_transfer_to_parent: bool = False
    """If True, the user's next message does not go to this agent either."""
    disallow_transfer_to_peers: bool = False
    include_contents: Literal["default", "none"] = "default"
    """`none`: the model receives only the current turn."""
    input_schema: type[BaseModel] | None = None
    """Input schema of the agent as a tool."""
    output_schema: Any = None
    """Schema of the agent's answer: a pydantic model, a list of one, any type, or a dictionary."""
    output_key: str | None = None
    """State key for the agent's answer."""
    code_executor: BuiltInCodeExecutor | None = None
    """Code execution of the model's provider, the only supported one."""
    before_model_callback: Callbacks = None
    """`(callback_context, llm_request)`; an LlmResponse that it returns stands for the model's."""
    after_model_callback: Callbacks = None
    """`(callback_context, llm_response)`; an LlmResponse that it returns replaces the model's."""
    on_model_error_callback: Callbacks = None
    """`(callback_context, llm_request, error)`; an LlmResponse that it returns replaces the error."""
    before_tool_callback: Callbacks = None
    """`(tool, args, tool_context)`; anything but None stands for the tool's result. `args` may be changed in place."""
    after_tool_callback: Callbacks = None
    """`(tool, args, tool_context, tool_response)`; anything but None replaces the tool's result."""
    on_tool_error_callback: Callbacks = None
    """`(tool, args, tool_context, error)`; anything but None replaces the error."""

    @property
    def canonical_model(self) -> str | BaseLlm:
        """The model of this agent, otherwise of the nearest agent above that has one, otherwise `DEFAULT_MODEL`."""
        models = (agent.model for agent in lineage(self) if isinstance(agent, LlmAgent) and agent.model)
        return next(models, self.DEFAULT_MODEL)

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
        # None is accepted, since code for ADK may pass it explicitly.
        return {key: value for key, value in data.items() if key not in _UNSUPPORTED}

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

    @field_validator("code_executor", mode="before")
    @classmethod
    def _check_code_executor(cls, executor: Any) -> Any:
        if executor is not None and not isinstance(executor, BuiltInCodeExecutor):
            raise ValueError(
                f"{type(executor).__name__} is not supported; use BuiltInCodeExecutor, which runs at the model's "
                "provider, or add a tool that runs code."
            )
        return executor


Agent = LlmAgent
