"""Models of any provider through LiteLLM. The counterpart of ADK's `LiteLlm`. Requires the extra `litellm`."""

import importlib
import os
from collections.abc import AsyncIterator
from typing import Any

from waystation.core.errors import ModelOverloaded
from waystation.core.payload import JsonObject
from waystation.models.chat_completions import MAX_DESCRIPTION, build_params, build_response, convert_chat
from waystation.models.plain_request import LlmRequest
from waystation.models.sendable import Rules
from waystation.models.service_model import ServiceModel

_MANAGED = ("llm_client", "messages", "tools", "stream")
"""Arguments that the adapter sets. ADK ignores them as well."""


class LiteLlm(ServiceModel):
    """A model that LiteLLM serves, such as `anthropic/claude-sonnet-5-5`.

    LiteLLM reads the credentials of the provider from the environment.
    """

    service, package = "LiteLLM", "litellm"
    rules = Rules(max_description=MAX_DESCRIPTION, calls_need_tools=True)

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """Store the settings. LiteLLM is imported on the first call.

        Args:
            model: The model name with its provider. It overrides the name in the request.
            **kwargs: Further arguments of `litellm.acompletion`, such as `api_base` and `temperature`.

        Raises:
            MissingExtra: The package `litellm` is not installed.
        """
        super().__init__(model=model, api_key=kwargs.get("api_key"))
        self._args = {name: value for name, value in kwargs.items() if name not in _MANAGED}

    def _connect(self) -> Any:
        # By default, the import downloads a table of prices.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        litellm: Any = importlib.import_module("litellm")
        litellm.suppress_debug_info = True  # Otherwise LiteLLM prints advice to standard output.
        return litellm

    async def close(self) -> None:
        """Do nothing: LiteLLM keeps its connections for the whole process."""

    async def _responses(self, client: Any, request: LlmRequest, *, stream: bool) -> AsyncIterator[JsonObject]:
        model = self.model or request.model
        params = build_params(
            self.service, request, stream=stream, max_tokens="max_completion_tokens", claude="claude" in model
        )
        result = await client.acompletion(model=model, num_retries=0, max_retries=0, **{**params, **self._args})
        refusals: list[str] = []
        if stream:
            result.completion_stream = _keep_refusals(result.completion_stream, refusals)
        async for response in convert_chat(result):
            yield response
        ends = [getattr(result, f"{kind}_finish_reason", None) for kind in ("received", "intermittent")]
        if stream and not any(ends):  # LiteLLM reports the end of the stream as the end of the reply.
            raise ModelOverloaded("LiteLLM's stream ended before the reply was complete.")
        if refusals:
            text = "".join(refusals)
            yield build_response([{"text": text}], finish="SAFETY", problem=text)


async def _keep_refusals(chunks: Any, refusals: list[str]) -> AsyncIterator[Any]:
    """Yield a provider's chunks, and collect the texts of refusals, which LiteLLM leaves out of streams."""
    async for chunk in chunks:
        for choice in getattr(chunk, "choices", None) or ():
            if text := getattr(getattr(choice, "delta", None), "refusal", None):
                refusals.append(text)
        yield chunk
