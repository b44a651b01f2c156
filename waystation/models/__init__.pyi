from waystation.models.anthropic_llm import AnthropicLlm as AnthropicLlm
from waystation.models.anthropic_llm import Claude as Claude
from waystation.models.base_llm import BaseLlm
from waystation.models.fallback_model import FallbackModel as FallbackModel
from waystation.models.google_llm import Gemini as Gemini
from waystation.models.lite_llm import LiteLlm as LiteLlm
from waystation.models.llm_response import LlmResponse
from waystation.models.openai_llm import OpenAICompatible as OpenAICompatible
from waystation.models.plain_request import LlmRequest
from waystation.models.registry import LLMRegistry as LLMRegistry

__all__ = [
    "BaseLlm",
    "LlmRequest",
    "LlmResponse",
]
