"""Where ADK has `google.adk.models.llm_response`."""

from waystation.models import LlmResponse

__all__ = ["LlmResponse"]
