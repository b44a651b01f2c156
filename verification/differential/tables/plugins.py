"""Plugins, which run before the callbacks of every agent. Section 9.5 of the semantics page."""

from collections.abc import Callable
from typing import Any

from google.genai import types

from verification.differential.scenario import Cast, Json, Reply, Scenario, calls, shows
from waystation.agents import LlmAgent
from waystation.models.llm_response import LlmResponse
from waystation.plugins import BasePlugin


def add(a: int, b: int = 2) -> Json:
    """Add."""
    return {"sum": a + b}


def fail() -> None:
    """Fail."""
    raise ValueError("no")


def _content(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])


class Tracing(BasePlugin):
    """Records every call of a hook in the state, and returns nothing."""

    def _note(self, context: Any, what: str) -> None:
        context.state["trace"] = [*context.state.get("trace", []), f"{self.name} {what}"]

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        self._note(callback_context, "before agent")

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        self._note(callback_context, "after agent")

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self._note(callback_context, "before model")

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        self._note(callback_context, "after model")

    async def before_tool_callback(self, *, tool: Any, tool_args: Json, tool_context: Any) -> None:
        self._note(tool_context, f"before {tool.name}")

    async def after_tool_callback(self, *, tool: Any, tool_args: Json, tool_context: Any, result: Any) -> None:
        self._note(tool_context, f"after {tool.name} {result}")


class Answering(BasePlugin):
    """Answers the configured hooks."""

    def __init__(self, *hooks: str) -> None:
        super().__init__(name="answering")
        self._hooks = hooks

    async def before_run_callback(self, *, invocation_context: Any) -> types.Content | None:
        return _content("instead of the run") if "before_run" in self._hooks else None

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> types.Content | None:
        return _content("instead of the agent") if "before_agent" in self._hooks else None

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> types.Content | None:
        return _content("after the agent") if "after_agent" in self._hooks else None

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> LlmResponse | None:
        return LlmResponse(content=_content("instead of the model")) if "before_model" in self._hooks else None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> LlmResponse | None:
        return LlmResponse(content=_content("after the model")) if "after_model" in self._hooks else None

    async def before_tool_callback(self, *, tool: Any, tool_args: Json, tool_context: Any) -> Json | None:
        return {"by": "before"} if "before_tool" in self._hooks else None

    async def after_tool_callback(self, *, tool: Any, tool_args: Json, tool_context: Any, result: Any) -> Json | None:
        return {"by": "after", "was": result} if "after_tool" in self._hooks else None

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: Json, tool_context: Any, error: Exception
    ) -> Json | None:
        return {"by": "error", "was": str(error)} if "on_tool_error" in self._hooks else None


def _agent_callback(tool: Any, args: Json, tool_context: Any) -> Json:
    tool_context.state["agent_callback"] = True
    return {"by": "the agent"}


def _build(cast: Cast) -> Any:
    return LlmAgent(name=cast.name, model=cast.model("main"), tools=[add, fail], before_tool_callback=_agent_callback)


def _build_plainly(cast: Cast) -> Any:
    return LlmAgent(name=cast.name, model=cast.model("main"), tools=[add, fail])


ADD = calls(("add", {"a": 1}))


def _with(name: str, plugins: Callable[[], list[Any]], *replies: Reply, **fields: Any) -> Scenario:
    fields.setdefault("agent", _build_plainly)
    return Scenario(name=f"plugin_{name}", script={"main": replies}, plugins=plugins, **fields)


TABLE: list[Scenario] = [
    _with("traces", lambda: [Tracing(name="first")], ADD, "done"),
    _with("traces_before_another", lambda: [Tracing(name="first"), Tracing(name="second")], ADD, "done"),
    _with(
        "stands_before_the_agent", lambda: [Answering("before_tool"), Tracing(name="late")], ADD, "done", agent=_build
    ),
    _with("passes_to_the_agent", lambda: [Tracing(name="first")], ADD, "done", agent=_build),
    *(
        _with(f"answers_{hook}", lambda hook=hook: [Answering(hook), Tracing(name="late")], ADD, "done")  # type: ignore[misc]
        for hook in ("before_agent", "after_agent", "before_model", "after_model", "after_tool")
    ),
    _with("answers_on_tool_error", lambda: [Answering("on_tool_error")], calls(("fail", {})), "done"),
    _with(
        "does_not_answer_an_error",
        lambda: [Answering("before_run_of_nothing")],
        calls(("fail", {})),
        "done",
        deviations=shows("tool-errors-are-told"),
    ),
    _with(
        "answers_before_run",
        lambda: [Answering("before_run"), Tracing(name="late")],
        deviations=shows(the_agent_is_the_author="plugin_answers_before_run"),
    ),
]
