"""Models: the base class for your own, and the Gemini adapter. ADK's `google.adk.models`."""

import importlib
from typing import Any

from waystation.models.base_llm import BaseLlm, LlmRequest
from waystation.models.llm_response import LlmResponse

__all__ = ["BaseLlm", "LlmRequest", "LlmResponse"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a client needs no model SDK.
    if name == "Gemini":
        return importlib.import_module("waystation.models.google_llm").Gemini
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
