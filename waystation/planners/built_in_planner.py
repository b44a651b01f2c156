"""Plan with the thinking of the model itself. Mirrors ADK's `google.adk.planners.built_in_planner` module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.planners.base_planner import BasePlanner

if TYPE_CHECKING:
    from google.genai import types

    from waystation.models.llm_request import EditableRequest
    from waystation.tools import CallbackContext, ReadonlyContext


class BuiltInPlanner(BasePlanner):
    """Sets the `thinking_config` of requests. Models that cannot think refuse such requests."""

    def __init__(self, *, thinking_config: types.ThinkingConfig) -> None:
        """Store the setting, which replaces the one in the agent's `generate_content_config`."""
        self.thinking_config = thinking_config

    def apply_thinking_config(self, llm_request: EditableRequest) -> None:
        """Set `thinking_config` in a request."""
        llm_request.config.thinking_config = self.thinking_config

    def build_planning_instruction(self, readonly_context: ReadonlyContext, llm_request: EditableRequest) -> str | None:
        """Return None: the model needs no instruction."""
        return None

    def process_planning_response(
        self, callback_context: CallbackContext, response_parts: list[types.Part]
    ) -> list[types.Part] | None:
        """Return None: the reply stays as it is."""
        return None
