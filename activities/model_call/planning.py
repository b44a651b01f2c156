"""Let an agent's planner change requests and replies, at the points where ADK 2.13 does."""

from collections.abc import Callable
from typing import Any, TypeVar

from waystation.activities.callbacks import CallbackRaised
from waystation.models.llm_request import EditableRequest
from waystation.tools import CallbackContext, ReadonlyContext

T = TypeVar("T")


def plan_request(planner: Any, context: ReadonlyContext, request: EditableRequest) -> None:
    """Set the thinking config, or append the planner's instruction. The model then sees earlier thoughts as text.

    Raises:
        CallbackRaised: The planner raised an exception.
    """
    if hasattr(planner, "apply_thinking_config"):
        _call(planner, "apply_thinking_config", lambda: planner.apply_thinking_config(request))
        return
    instruction = _call(
        planner, "build_planning_instruction", lambda: planner.build_planning_instruction(context, request)
    )
    if instruction:
        request.append_instructions([instruction])
    for content in request.contents:
        for part in content.parts or ():
            if part.thought:
                part.thought = None


def can_change_reply(planner: Any) -> bool:
    """Return whether a planner may change replies. A BuiltInPlanner, also that of google-adk, does not."""
    if planner is None:
        return False
    return not type(planner).process_planning_response.__qualname__.startswith("BuiltInPlanner.")


def plan_reply(planner: Any, context: CallbackContext, parts: list[Any]) -> list[Any]:
    """Return the parts of a reply after the planner has changed them.

    Raises:
        CallbackRaised: The planner raised an exception.
    """
    changed = _call(planner, "process_planning_response", lambda: planner.process_planning_response(context, parts))
    return changed or parts


def _call(planner: Any, method: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:
        raise CallbackRaised(f"{type(planner).__name__}.{method}", error) from error
