"""Agents that a language model drives."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from waystation.agents import ApprovalRule, BaseAgent, Callbacks, lineage
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core import a
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
"""What ADK refuses in a generation config: field, its name in JSON, and what to do instead."""

_UNSUPPORTED = {
    "planner": "A planner is not supported; put `thinking_config` into `generate_content_config`.",
    "mode": "Only the mode `chat` is supported: wrap an agent that answers one request in AgentTool.",
    "parallel_worker": "Use a ParallelAgent.",
    "retry_config": "Model calls are retried by the engine; for tools set `retries` on FunctionTool.",
    "timeout": "Set `timeout` on the tools, and a deadline on what waits for people.",
    "state_schema": "State is checked to be JSON, not against a schema.",
}
"""Fields of ADK's LlmAgent that mean nothing here, and what to use instead."""


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
"""What each callback is given, by keyword and in this order. Source: adk-semantics 1.6, 9.4."""


class LlmAgent(BaseAgent):
    """An agent that a language model drives. `Agent` is the same class. Fields: see adk-semantics 9.3."""

    DEFAULT_MODEL: ClassVar[str] = "gemini-3.5-flash"
    """What an agent gets when neither it nor any agent above it names a model."""

    model: str | BaseLlm = ""
    """A name or a model. Left out: that of the agent above, in the end `DEFAULT_MODEL`."""
    instruction: Any = ""
    """Text with `{state_key}` templates, or a function `(readonly_context)` that returns text, sync or async."""
    global_instruction: Any = ""
    """As `instruction`, before that of every agent of the tree; only the root agent's counts."""
    static_instruction: Any = None
    """Text, Content or Part that never changes; `instruction` then goes into the contents."""
    tools: list[Any] = Field(default_factory=list)
    """Functions, `BaseTool`s and `BaseToolset`s."""
    approval_rules: list[ApprovalRule] = Field(default_factory=list)
    """Which calls of its tools need a person, after what the tools themselves say; the first that matches counts."""
    generate_content_config: Any = None
    """A genai `GenerateContentConfig`, or the same as a dictionary."""
    disallow_transfer_to_parent: bool = False
    """Also means that the user's next message does not go to this agent."""
    disallow_transfer_to_peers: bool = False
    include_contents: Literal["default", "none"] = "default"
    """`none`: the model sees only the current turn."""
    input_schema: type[BaseModel] | None = None
    """What the agent takes when it is called as a tool."""
    output_schema: Any = None
    """What the agent's answer is: a pydantic model, a list of one, any type, or a schema as a dictionary."""
    output_key: str | None = None
    """The state key that the agent's answer is stored under."""
    code_executor: BuiltInCodeExecutor | None = None
    """The model's own code execution, the only one that is supported."""
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
        """The model of this agent, or else of the nearest agent above it that names one."""
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
        # Set to None they mean nothing, and code for ADK may spell them out.
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
            raise ValueError(f"It is {a(instruction)}; give text, or a function that returns text.")
        return instruction

    @field_validator("generate_content_config")
    @classmethod
    def _check_config(cls, config: Any) -> Any:
        for name, (alias, problem) in _CONFIG_BELONGS_ELSEWHERE.items():
            found = config.get(name) or config.get(alias) if isinstance(config, dict) else getattr(config, name, None)
            if found:
                raise ValueError(problem)
        return config

    @field_validator("code_executor", mode="before")
    @classmethod
    def _check_code_executor(cls, executor: Any) -> Any:
        if executor is not None and not isinstance(executor, BuiltInCodeExecutor):
            raise ValueError(
                f"{type(executor).__name__} is not supported; use BuiltInCodeExecutor, which is the model's own, or "
                "give the model a tool that runs code."
            )
        return executor


Agent = LlmAgent
