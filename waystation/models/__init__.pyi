from waystation.models.base_llm import BaseLlm, LlmRequest
from waystation.models.google_llm import Gemini as Gemini
from waystation.models.llm_response import LlmResponse

__all__ = [
    "BaseLlm",
    "LlmRequest",
    "LlmResponse",
]
