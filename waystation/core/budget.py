"""What an invocation uses, and how much it may use."""

from waystation.core.payload import Recorded

MAX_MODEL_CALLS = 500
"""ADK's default of `max_llm_calls`."""


class Budget(Recorded):
    """How much one invocation may use before it stops."""

    max_llm_calls: int = MAX_MODEL_CALLS


class Usage(Recorded):
    """Tokens, as the provider counts them."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    thoughts_tokens: int = 0
    cached_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


NO_USAGE = Usage()
