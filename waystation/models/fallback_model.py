"""A model that falls back to other models when a call fails. The counterpart of ADK's `FallbackModel`."""

import base64
import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Self

from waystation.core.errors import ModelError, ModelOverloaded, ModelRefused, RateLimited
from waystation.core.payload import JsonObject
from waystation.models.base_llm import BaseLlm, name_of_model
from waystation.models.google_llm import Gemini
from waystation.models.llm_response import LlmResponse
from waystation.models.plain_request import LlmRequest
from waystation.models.providers import find_name_problem, find_provider
from waystation.models.service_model import check_name

_UNCHECKED = base64.b64encode(b"skip_thought_signature_validator").decode()
"""A signature that Gemini accepts for a function call that another model made."""


class FallbackModel(BaseLlm):
    """Tries models in order, each once, until one answers. The history records which one did.

    If all of them fail, the engine repeats the call later, again from the first model.
    """

    is_service = True

    def __init__(
        self, models: Sequence[str | BaseLlm], *, retriable_status_codes: Collection[int] | None = None
    ) -> None:
        """Store the models.

        Args:
            models: Models or their names.
            retriable_status_codes: The HTTP status codes after which the next model is tried. By default, the next
                model is tried after any error for which another attempt may succeed, such as 429, 5xx or a failed
                connection.

        Raises:
            ValueError: `models` is empty, or a name is missing or cannot be used.
        """
        if not models:
            raise ValueError("FallbackModel has no models. Pass at least one.")
        for model in models:
            check_name(model)
            if isinstance(model, str) and (problem := find_name_problem(model)):
                raise ValueError(f"FallbackModel: {problem}")
        self._models = list(models)
        self._adapters: dict[str, BaseLlm] = {}
        self._codes = retriable_status_codes
        self._wrap: Callable[[BaseLlm], BaseLlm] | None = None
        self.model = self.names()[0]

    def names(self) -> list[str]:
        """Return the names of the models, in order."""
        return [name_of_model(model) for model in self._models]

    def wrapped(self, wrap: Callable[[BaseLlm], BaseLlm]) -> Self:
        """Return a copy that calls `wrap(model)` instead of each of its models."""
        wrapped = copy.copy(self)
        wrapped._wrap = wrap
        return wrapped

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the response of the first model that answers; see `BaseLlm.generate`.

        A failure after the first text was streamed is raised, because a second model would repeat or contradict it.
        """
        streamed: list[str] = []

        def listen(text: str) -> None:
            streamed.append(text)
            if on_text is not None:
                on_text(text)

        errors: list[ModelError] = []
        for name, model in zip(self.names(), self._models, strict=True):
            adapter = self._adapter(model)
            own = replace(request, model=name)
            if isinstance(adapter, Gemini):
                own = replace(own, contents=[_mark_unsigned_call(content) for content in request.contents])
            try:
                called = self._wrap(adapter) if self._wrap else adapter
                response = await called.generate(own, on_text=listen if on_text else None)
            except (ModelOverloaded, ModelRefused) as error:
                if streamed or not self._falls_back(error):
                    raise
                errors.append(error)
            else:
                response.model = name
                return response
        # If all models only wait for their rate limits, repeat the call as soon as one of them may be called.
        waits = [error for error in errors if isinstance(error, RateLimited)]
        raise min(waits, key=lambda error: error.retry_after_s or 0.0) if len(waits) == len(errors) else errors[-1]

    async def close(self) -> None:
        """Close the connections of all models."""
        for model in (*self._adapters.values(), *(model for model in self._models if isinstance(model, BaseLlm))):
            await model.close()

    def _adapter(self, model: str | BaseLlm) -> BaseLlm:
        if isinstance(model, BaseLlm):
            return model
        provider = find_provider(model)
        assert provider is not None  # The constructor has checked it.
        return provider.adapter_for(model, self._adapters)

    def _falls_back(self, error: ModelOverloaded | ModelRefused) -> bool:
        return isinstance(error, ModelOverloaded) if self._codes is None else error.status in self._codes


def _mark_unsigned_call(content: JsonObject) -> JsonObject:
    """Return a content whose first function call has a signature. Gemini 3 rejects turns in which it has none."""
    parts: Sequence[JsonObject] = content.get("parts") or ()
    first = next((part for part in parts if part.get("functionCall")), None)
    return {**content, "parts": [{"thoughtSignature": _UNCHECKED, **part} if part is first else part for part in parts]}
