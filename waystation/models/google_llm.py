"""Where ADK has `google.adk.models.google_llm`."""

from activities.models.gemini import Gemini

__all__ = ["Gemini"]
