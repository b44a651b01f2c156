"""Callbacks around agents, models and tools. Sections 1.6 and 9.5 of the semantics page."""

from collections.abc import Callable
from typing import Any

from google.genai import types

from verification.differential.scenario import Json, Refusal, Reply, Scenario, alone, calls
from waystation.agents.callback_context import CallbackContext
from waystation.models.llm_request import LlmRequest
from waystation.models.llm_response import LlmResponse
from waystation.tools import BaseTool, ToolContext


def add(a: int, b: int = 2) -> Json:
    """Add."""
    return {"sum": a + b}


def greet() -> str:
    """Greet."""
    return "hello"


def fail(a: int, tool_context: ToolContext) -> str:
    """Fail."""
    tool_context.state["tried"] = a
    raise ValueError("no")


def _text(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])


def _trace(state: Any, what: str) -> None:
    state["trace"] = [*state.get("trace", []), what]


def before_tool_changes(tool: BaseTool, args: Json, tool_context: ToolContext) -> Json | None:
    args["a"] = 40
    _trace(tool_context.state, f"before {tool.name}")
    return None


def before_tool_answers(tool: BaseTool, args: Json, tool_context: ToolContext) -> Json | None:
    _trace(tool_context.state, f"answered {tool.name}")
    return {"instead": args}


def before_tool_answers_nothing(tool: BaseTool, args: Json, tool_context: ToolContext) -> Json | None:
    return {}


def before_tool_passes(tool: BaseTool, args: Json, tool_context: ToolContext) -> Json | None:
    return None


async def after_tool_changes(tool: BaseTool, args: Json, tool_context: ToolContext, tool_response: Any) -> Json | None:
    _trace(tool_context.state, "after")
    return {"was": tool_response, "args": args}


def after_tool_looks(tool: BaseTool, args: Json, tool_context: ToolContext, tool_response: Any) -> Json | None:
    tool_context.state["seen"] = tool_response
    return None


def after_tool_skips(tool: BaseTool, args: Json, tool_context: ToolContext, tool_response: Any) -> Json | None:
    tool_context.actions.skip_summarization = True
    return None


def on_tool_error_recovers(tool: BaseTool, args: Json, tool_context: ToolContext, error: Exception) -> Json | None:
    return {"recovered": str(error), "type": type(error).__name__}


def on_tool_error_tells_the_type(
    tool: BaseTool, args: Json, tool_context: ToolContext, error: Exception
) -> Json | None:
    return {"recovered": type(error).__name__, "tool": tool.name}


def before_model_changes(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    callback_context.state["asked"] = callback_context.state.get("asked", 0) + 1
    llm_request.config.temperature = 0.5
    return None


def before_model_answers(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    _trace(callback_context.state, "before model")
    return LlmResponse(content=_text("not asked"))


def after_model_changes(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse | None:
    callback_context.state["answered"] = callback_context.state.get("answered", 0) + 1
    return LlmResponse(content=_text("changed"))


def after_model_looks(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse | None:
    callback_context.state["answered"] = callback_context.state.get("answered", 0) + 1
    return None


def on_model_error_recovers(
    callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
) -> LlmResponse | None:
    callback_context.state["recovered"] = True
    return LlmResponse(content=_text("recovered"))


def on_model_error_looks(
    callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
) -> LlmResponse | None:
    callback_context.state["seen"] = True
    return None


def before_agent_notes(callback_context: CallbackContext) -> types.Content | None:
    callback_context.state["entered"] = callback_context.agent_name
    return None


def before_agent_answers(callback_context: CallbackContext) -> types.Content | None:
    callback_context.state["entered"] = callback_context.agent_name
    return _text("instead of the agent")


async def after_agent_notes(callback_context: CallbackContext) -> types.Content | None:
    callback_context.state["left"] = callback_context.agent_name
    return None


def after_agent_answers(callback_context: CallbackContext) -> types.Content | None:
    return _text("after the agent")


ADD: Reply = calls(("add", {"a": 1}))


def _called(
    name: str, *replies: Reply, tools: tuple[Callable[..., Any], ...] = (add, greet, fail), **callbacks: Any
) -> Scenario:
    fields = {key: callbacks.pop(key) for key in ("deviations",) if key in callbacks}
    return alone(f"callback_{name}", *replies, tools=lambda: list(tools), agent=callbacks, **fields)


TOOLS: list[Scenario] = [
    _called("before_tool_changes_arguments", ADD, "done", before_tool_callback=before_tool_changes),
    _called("before_tool_answers", ADD, "done", before_tool_callback=before_tool_answers),
    _called("before_tool_answers_nothing", ADD, "done", before_tool_callback=before_tool_answers_nothing),
    _called(
        "before_tool_in_a_row",
        ADD,
        "done",
        before_tool_callback=[
            before_tool_passes,
            before_tool_changes,
            before_tool_answers,
            before_tool_answers_nothing,
        ],
    ),
    _called(
        "before_tool_answers_for_an_unknown_one",
        calls(("nope", {"a": 1})),
        "done",
        before_tool_callback=before_tool_answers,
    ),
    _called(
        "before_tool_of_two",
        calls(("add", {"a": 1}), ("greet", {})),
        "done",
        before_tool_callback=before_tool_passes,
        after_tool_callback=after_tool_looks,
    ),
    _called("after_tool_changes", ADD, "done", after_tool_callback=after_tool_changes),
    _called("after_tool_of_an_unknown_one", calls(("nope", {})), "done", after_tool_callback=after_tool_changes),
    _called("after_tool_sees_text", calls(("greet", {})), "done", after_tool_callback=after_tool_changes),
    _called("after_tool_looks", ADD, "done", after_tool_callback=after_tool_looks),
    _called("after_tool_skips", ADD, after_tool_callback=after_tool_skips),
    _called(
        "after_tool_after_before",
        ADD,
        "done",
        before_tool_callback=before_tool_answers,
        after_tool_callback=after_tool_changes,
    ),
    _called(
        "after_tool_in_a_row", ADD, "done", after_tool_callback=[after_tool_looks, after_tool_changes, after_tool_looks]
    ),
    _called("on_tool_error", calls(("fail", {"a": 1})), "done", on_tool_error_callback=on_tool_error_recovers),
    _called(
        "on_tool_error_then_after",
        calls(("fail", {"a": 1})),
        "done",
        on_tool_error_callback=on_tool_error_recovers,
        after_tool_callback=after_tool_changes,
    ),
    _called(
        "on_tool_error_of_an_unknown_one",
        calls(("nope", {})),
        "done",
        on_tool_error_callback=on_tool_error_tells_the_type,
    ),
    _called("after_tool_of_missing_arguments", calls(("add", {})), "done", after_tool_callback=after_tool_changes),
]

MODELS: list[Scenario] = [
    _called("before_model_changes", ADD, "done", before_model_callback=before_model_changes),
    _called("before_model_answers", before_model_callback=before_model_answers),
    _called("after_model_changes", "said", after_model_callback=after_model_changes),
    _called("after_model_looks", ADD, "done", after_model_callback=after_model_looks),
    _called(
        "after_model_after_before", before_model_callback=before_model_answers, after_model_callback=after_model_looks
    ),
    _called(
        "around_model", ADD, "done", before_model_callback=before_model_changes, after_model_callback=after_model_looks
    ),
]

ERRORS: list[Scenario] = [
    _called("on_model_error", Refusal("no"), on_model_error_callback=on_model_error_recovers),
    _called(
        "on_model_error_in_a_row",
        Refusal("no"),
        on_model_error_callback=[on_model_error_looks, on_model_error_recovers],
    ),
    _called(
        "on_model_error_then_after",
        Refusal("no"),
        on_model_error_callback=on_model_error_recovers,
        after_model_callback=after_model_changes,
    ),
    _called("on_model_error_after_a_call", ADD, Refusal("no"), on_model_error_callback=on_model_error_recovers),
    _called("on_model_error_of_none", "said", on_model_error_callback=on_model_error_recovers),
]

AGENTS: list[Scenario] = [
    _called("before_agent_notes", "said", before_agent_callback=before_agent_notes),
    _called("before_agent_answers", before_agent_callback=before_agent_answers),
    _called("before_agent_in_a_row", before_agent_callback=[before_agent_notes, before_agent_answers]),
    _called("after_agent_notes", "said", after_agent_callback=after_agent_notes),
    _called("after_agent_answers", "said", after_agent_callback=after_agent_answers),
    _called(
        "around_agent", ADD, "done", before_agent_callback=before_agent_notes, after_agent_callback=after_agent_answers
    ),
    _called(
        "before_and_after_agent", before_agent_callback=before_agent_answers, after_agent_callback=after_agent_answers
    ),
]


def _seen(context: Any) -> list[Json]:
    """Return the events of a session as author code sees them, without IDs and times."""
    return [
        {
            "author": event.author,
            "role": event.content and event.content.role,
            "texts": [part.text for part in (event.content and event.content.parts) or () if part.text],
            "calls": [[call.name, call.args] for call in event.get_function_calls()],
            "responses": [response.response for response in event.get_function_responses()],
            "is_final": event.is_final_response(),
            "state": event.actions.state_delta,
            "has_escalated": bool(event.actions.escalate),
            "types": [type(event).__name__, type(event.content).__name__, type(event.actions).__name__],
        }
        for event in context.session.events
    ]


def look_back(tool_context: ToolContext) -> Json:
    """Look at the conversation."""
    tool_context.state["looked"] = True
    newest = next(event for event in reversed(tool_context.session.events) if event.get_function_calls())
    return {"seen": _seen(tool_context), "newest": newest.author, "last": tool_context.session.events[-1].author}


def before_model_looks_back(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
    callback_context.state["seen"] = _seen(callback_context)


def after_agent_looks_back(callback_context: CallbackContext) -> types.Content:
    return _text(str([event["texts"] for event in _seen(callback_context)]))


EVENTS: list[Scenario] = [
    alone("events_seen_by_a_tool", calls(("look_back", {}), text="Wait."), "done", tools=lambda: [look_back]),
    alone(
        "events_seen_by_two_tools",
        calls(("add", {"a": 1})),
        calls(("look_back", {})),
        "done",
        tools=lambda: [add, look_back],
    ),
    _called("events_seen_before_the_model", ADD, "done", before_model_callback=before_model_looks_back),
    _called("events_seen_after_the_agent", ADD, "done", after_agent_callback=after_agent_looks_back),
]
