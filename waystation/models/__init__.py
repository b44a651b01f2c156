"""Models: the base class for your own, and the Gemini adapter. ADK's `google.adk.models`."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports
from waystation.models.base_llm import BaseLlm, LlmRequest
from waystation.models.llm_response import LlmResponse

if TYPE_CHECKING:
    from waystation.models.google_llm import Gemini as Gemini

__all__ = ["BaseLlm", "LlmRequest", "LlmResponse"]

if not TYPE_CHECKING:  # a client needs no model SDK
    __getattr__, __dir__ = lazy_exports(__name__, {"waystation.models.google_llm": "Gemini"})
