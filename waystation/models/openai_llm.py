"""Models with OpenAI's chat completions: OpenAI, and servers such as vLLM and Ollama. Requires the extra `openai`."""

import importlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from waystation.core.payload import JsonObject
from waystation.models.chat_completions import MAX_DESCRIPTION, build_params, convert_chat
from waystation.models.plain_request import LlmRequest
from waystation.models.sendable import Rules
from waystation.models.service_model import ServiceModel


class OpenAICompatible(ServiceModel):
    """A model behind OpenAI's API, or behind a server that is compatible with it.

    By default, the client library reads `OPENAI_API_KEY` and `OPENAI_BASE_URL` from the environment.
    """

    service, package, key_variables = "OpenAI", "openai", ("OPENAI_API_KEY",)
    rules = Rules(max_description=MAX_DESCRIPTION)

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Store the settings. The client library is imported, and its client created, on the first call.

        Args:
            model: The model name. It overrides the name in the request.
            base_url: The URL of the API, such as `http://localhost:11434/v1` for Ollama. Servers with a URL need no
                key.
            api_key: The API key. It overrides the key from the environment.
            timeout: How long to wait for data from the service.

        Raises:
            MissingExtra: The package `openai` is not installed.
        """
        super().__init__(model=model, api_key=api_key, base_url=base_url, timeout=timeout)

    def _connect(self) -> Any:
        openai = importlib.import_module("openai")
        settings: JsonObject = {"max_retries": 0}
        if self._timeout:
            settings["timeout"] = self._timeout.total_seconds()
        if self._base_url:
            # Local servers do not check the key, but the client library requires one.
            settings |= {"base_url": self._base_url, "api_key": self._api_key or "none"}
        elif self._api_key:
            settings["api_key"] = self._api_key
        return openai.AsyncOpenAI(**settings)

    async def _responses(self, client: Any, request: LlmRequest, *, stream: bool) -> AsyncIterator[JsonObject]:
        # OpenAI's newer models accept only the new name, and other servers know the old one.
        name = "max_tokens" if self._base_url else "max_completion_tokens"
        params = build_params(self.service, request, stream=stream, max_tokens=name)
        result = await client.chat.completions.create(model=self.model or request.model, **params)
        async for response in convert_chat(result):
            yield response
