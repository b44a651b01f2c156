"""Gemini models through google-genai, with an API key or on Vertex AI.

Contents and declarations bypass the SDK's types in both directions. The types drop unknown part fields, re-encode
thought signatures (`+/` becomes `-_`) and warn about new enum values, and the service rejects a conversation with a
missing signature. The SDK handles connections, credentials and the generation config.
"""

import json
import math
import re
from collections.abc import AsyncIterator
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from waystation.core.errors import ModelError, ModelOverloaded, ModelRefused
from waystation.core.payload import JsonObject, describe_faults
from waystation.models.base_llm import DEFAULT_MODEL
from waystation.models.plain_request import LlmRequest
from waystation.models.sendable import MAX_NAME, Rules
from waystation.models.service_errors import find_retry_after, map_status
from waystation.models.service_model import CONTINUATION, ServiceModel

if TYPE_CHECKING:  # The import takes 0.8 s, which workers with other models should not pay.
    from google.genai import Client, types

_NO_CREDENTIALS = (
    "Gemini has no usable credentials (set GOOGLE_API_KEY or GEMINI_API_KEY; for Vertex AI "
    "GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION)"
)
_streamed_json: ContextVar[list[str]] = ContextVar("streamed_json")


class Gemini(ServiceModel):
    """A Gemini model.

    By default, google-genai reads the credentials from the environment. It uses either `GOOGLE_API_KEY` or
    `GEMINI_API_KEY`, or `GOOGLE_GENAI_USE_VERTEXAI=true` with `GOOGLE_CLOUD_PROJECT`, `GOOGLE_CLOUD_LOCATION` and
    application default credentials.
    """

    default_model = DEFAULT_MODEL
    service, package, key_variables = "Gemini", "google.genai", ("GOOGLE_API_KEY", "GEMINI_API_KEY")
    rules = Rules(name=re.compile(rf"[A-Za-z_][A-Za-z0-9_.:-]{{0,{MAX_NAME - 1}}}"), is_genai=True)

    def __init__(
        self,
        *,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Store the settings. google-genai is imported, and its client created, on the first call.

        Args:
            model: The model name. It overrides the name in the request. By default, an agent requests `default_model`.
            api_key: The API key. It overrides the key from the environment.
            base_url: The URL of the API, such as a gateway or `FakeGemini.url`.
            timeout: How long to wait for data from the service. There is no limit by default, because the activity
                has its own timeout.

        Raises:
            ValueError: `timeout` is not positive.
        """
        if timeout is not None and timeout <= timedelta(0):
            raise ValueError(f"The Gemini timeout {timeout} is not positive. Use a longer one, or None for no limit.")
        super().__init__(model=model, api_key=api_key, base_url=base_url, timeout=timeout)

    async def close(self) -> None:
        """Close the connections. A later call of `generate` opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aio.aclose()
            client.close()

    def _connect(self) -> "Client":
        from google.genai import Client, types

        options = types.HttpOptions(
            base_url=self._base_url,
            timeout=math.ceil(self._timeout.total_seconds() * 1000) if self._timeout else None,
            # Make a single attempt because Temporal retries. By default, the SDK retries too if aiohttp is installed.
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        try:
            client = Client(api_key=self._api_key, http_options=options)
        except ValueError as error:
            raise ModelRefused(self._format_message(_NO_CREDENTIALS, str(error), None)) from None
        _keep_streamed_json(client)
        return client

    async def _responses(self, client: "Client", request: LlmRequest, *, stream: bool) -> AsyncIterator[JsonObject]:
        models, name, config = client.aio.models, self.model or request.model, _config(request, stream)
        if not stream:
            whole = await models.generate_content(model=name, contents="-", config=config)
            yield _parsed((whole.sdk_http_response.body if whole.sdk_http_response else None) or "")
            return
        bodies: list[str] = []
        _streamed_json.set(bodies)
        async for chunk in await models.generate_content_stream(model=name, contents="-", config=config):
            # The fallback is for SDK versions with different internals. It loses unknown fields.
            yield _parsed(bodies.pop(0) if bodies else chunk.model_dump_json(by_alias=True, exclude_none=True))

    def _mapped(self, error: Exception, request: LlmRequest) -> ModelError | None:
        """Return `error` as a ModelError, or None if neither the service nor the request caused it."""
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.genai.errors import APIError, UnknownApiResponseError

        if isinstance(error, APIError):
            details = ": ".join(str(text) for text in (error.status, error.message) if text)
            message = self._format_message(f"Gemini answered {error.code}", details, request)
            return map_status(message, error.code, find_retry_after(error))
        if isinstance(error, ValidationError):
            where = describe_faults(error)
            return ModelRefused(self._format_message("The agent's generate_content_config is invalid", where, None))
        if isinstance(error, UnknownApiResponseError):
            return ModelOverloaded("Gemini's reply is not valid JSON.")
        details = f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, GoogleAuthError):
            kind = ModelOverloaded if isinstance(error, TransportError) or error.retryable else ModelRefused
            return kind(self._format_message(_NO_CREDENTIALS, details, request))
        if (mapped := super()._mapped(error, request)) or not isinstance(error, ValueError):
            return mapped
        return ModelRefused(self._format_message("google-genai does not send the request", details, request))


def _parsed(text: str) -> JsonObject:
    """Parse one response.

    Raises:
        ModelOverloaded: The response is not a JSON object.
    """
    try:
        value = json.loads(text)  # The engine repairs what it cannot record.
    except (ValueError, RecursionError):
        raise ModelOverloaded("Gemini's reply is not valid JSON.") from None
    if not isinstance(value, dict | None):
        raise ModelOverloaded("Gemini's reply is malformed: it is not an object.")
    return value or {}


def _config(request: LlmRequest, stream: bool) -> "types.GenerateContentConfig":
    from google.genai import types

    settings = dict(request.config)
    continuation = settings.pop(CONTINUATION, None)
    config = types.GenerateContentConfig.model_validate(settings)
    options = config.http_options or types.HttpOptions()
    # These contents replace the "-" that the caller passes only because the SDK requires contents.
    body = _Body(options.extra_body or {}, contents=request.contents)
    if tools := request.genai_tools():
        body["tools"] = tools
    if continuation:
        body[CONTINUATION] = continuation
    return config.model_copy(
        update={
            "system_instruction": request.system_instruction or config.system_instruction,
            "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
            "automatic_continuation": False,  # It would also reconnect streams, which is a retry.
            "should_return_http_response": None if stream else True,
            "http_options": options.model_copy(update={"extra_body": body, "retry_options": None}),
        }
    )


class _Body(dict[str, Any]):
    """Fields of the body of a request. The SDK copies options deeply, but only reads these fields to serialize them."""

    def __deepcopy__(self, memo: object) -> "_Body":
        return _Body(self)


def _keep_streamed_json(client: "Client") -> None:
    """Capture the JSON of streamed responses, and pass empty ones to the SDK for parsing, which also saves time.

    For a whole response, the SDK option `should_return_http_response` returns the JSON. Streams have no public
    equivalent.
    """
    api: Any = getattr(client, "_api_client", None)
    plain: Any = getattr(api, "async_request_streamed", None)

    async def emptied(responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for response in responses:
            _streamed_json.get().append(response.body)
            yield response.model_copy(update={"body": "{}"})

    async def request_streamed(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return emptied(await plain(*args, **kwargs))

    if plain is not None:
        api.async_request_streamed = request_streamed
