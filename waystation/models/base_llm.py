"""Where ADK has `google.adk.models.base_llm`."""

from waystation.models import BaseLlm

__all__ = ["BaseLlm"]
