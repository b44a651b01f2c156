"""The interface of planners. Method names and signatures match ADK 2.13."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.genai import types

    from waystation.models.llm_request import EditableRequest
    from waystation.tools import CallbackContext, ReadonlyContext


class BasePlanner(abc.ABC):
    """Adds an instruction to each of an agent's requests, and changes the parts of the model's replies."""

    @abc.abstractmethod
    def build_planning_instruction(self, readonly_context: ReadonlyContext, llm_request: EditableRequest) -> str | None:
        """Return text to append to the system instruction, or None."""

    @abc.abstractmethod
    def process_planning_response(
        self, callback_context: CallbackContext, response_parts: list[types.Part]
    ) -> list[types.Part] | None:
        """Return the parts to use instead of the reply's, or None to keep them. Parts can be changed in place."""
