"""Base class of the adapters for model services."""

import abc
import asyncio
import importlib.util
import json
import os
from collections import ChainMap
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import ValidationError

from waystation.core.errors import ModelError, ModelOverloaded, ModelRefused
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest
from waystation.models.llm_response import LlmResponse
from waystation.models.reply import Reply
from waystation.models.sendable import Rules, make_sendable
from waystation.models.service_errors import (
    find_retry_after,
    find_status,
    format_message,
    map_connection_error,
    map_status,
)

CONTINUATION = "continuationToken"
"""Name of the setting, and field of Gemini's requests and replies, that asks for the rest of a reply."""
_COMBINATIONS = {"allOf", "anyOf", "oneOf", "not", "enum", "const"}


class MissingExtra(ImportError):
    """A model needs a package that is not installed."""


class ServiceModel(BaseLlm):
    """A model that is called with the client library of its service.

    Subclasses convert requests and responses. Their responses are genai's `GenerateContentResponse` as JSON.
    """

    is_service = True
    service: ClassVar[str]
    """The name of the service in messages."""
    package: ClassVar[str]
    """The client library, which is also the name of the extra that installs it."""
    key_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables from which the client library reads credentials."""
    rules: ClassVar[Rules] = Rules()

    def __init__(
        self,
        *,
        model: str | None,
        api_key: str | None,
        base_url: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Store the settings. The client library is imported, and its client created, on the first call.

        Raises:
            MissingExtra: The client library is not installed.
        """
        if importlib.util.find_spec(self.package) is None:
            raise MissingExtra(
                f"The model {model!r} requires the extra `{self.package}`: pip install 'waystation[{self.package}]'."
            )
        self.model, self._api_key, self._base_url, self._timeout = model, api_key, base_url, timeout
        self._client: Any = None
        self._connecting = asyncio.Lock()

    @abc.abstractmethod
    def _connect(self) -> Any:
        """Import the client library and return its client, which makes a single attempt because Temporal retries."""

    @abc.abstractmethod
    def _responses(self, client: Any, request: LlmRequest, *, stream: bool) -> AsyncIterator[JsonObject]:
        """Send the request and yield the responses, several if they are streamed."""

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the model's response; see `BaseLlm.generate`."""
        reply = Reply(self.service, join=on_text is not None)
        request, names = make_sendable(request, self.rules)
        try:
            client = await self._connected()
            token: str | None = ""
            while token is not None:
                responses: Any = self._responses(client, request, stream=on_text is not None)
                async with aclosing(responses):
                    async for response in responses:
                        text = reply.add(response)
                        if text and on_text is not None:
                            on_text(text)
                token = reply.continuation()
                request = replace(request, config={**request.config, CONTINUATION: token}) if token else request
        except ModelError:
            raise
        except Exception as error:  # The error classes exist only after the import.
            mapped = self._mapped(error, request)
            if mapped is None:
                raise
            # Do not chain the error: histories record causes, and errors of services quote requests and replies.
            raise mapped from None
        return names.restore(reply.response())

    def account(self) -> tuple[str | None, str | None]:
        """Return the API key and the address, if they were given; see `BaseLlm.account`."""
        return self._api_key, self._base_url

    async def prepare(self) -> None:
        """Import the client library and create its client; see `BaseLlm.prepare`."""
        with suppress(Exception):
            await self._connected()

    async def close(self) -> None:
        """Close the connections. A later call of `generate` opens new ones."""
        client, self._client = self._client, None
        if hasattr(client, "close"):
            await client.close()

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                # Connect in a thread: the import is slow.
                self._client = await asyncio.to_thread(self._connect)
            return self._client

    def _mapped(self, error: Exception, request: LlmRequest) -> ModelError | None:
        """Return `error` as a ModelError, or None if neither the service nor the request caused it."""
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | ValidationError):
            return ModelOverloaded(f"{self.service}'s reply is not valid JSON.")
        name, status = type(error).__name__, getattr(error, "status_code", None)
        if not isinstance(status, int) or status < 400:  # The error is in a reply with the status 200.
            status = find_status(error)
        is_api_error = any(cls.__name__ in ("APIError", "ErrorInReply") for cls in type(error).__mro__)
        # LiteLLM reports the status 500 for connections that failed.
        if is_api_error and not name.endswith(("ConnectionError", "TimeoutError", "Timeout")):
            message = self._format_message(f"{self.service} answered {status or 'with an error'}", str(error), request)
            return map_status(message, status, find_retry_after(error))
        if problem := map_connection_error(self.service, error, request, self._keys()):
            return problem
        if is_api_error:
            title = f"{self.service} was not reached, or did not answer"
            return ModelOverloaded(self._format_message(title, str(error), request))
        if name in ("OpenAIError", "AnthropicError", "TypeError") and "api_key" in str(error):
            variables = " or ".join(self.key_variables)
            return ModelRefused(f"{self.service} has no usable credentials. Set {variables}, or pass `api_key`.")
        return None

    def _format_message(self, title: str, details: str, request: LlmRequest | None) -> str:
        return format_message(title, details, request, self._keys())

    def _keys(self) -> list[str | None]:
        return [self._api_key, *map(os.environ.get, self.key_variables)]


def check_name(model: object) -> None:
    """Check that a model object that is given to an agent has a name, because no other name reaches its service.

    Raises:
        ValueError: It has none.
    """
    if isinstance(model, ServiceModel) and not (model.model or model.default_model):
        name = type(model).__name__
        raise ValueError(f"{name} has no model name. Pass one: {name}(model=…).")


def refuse_native_tools(service: str, request: LlmRequest) -> None:
    """Refuse tools that only Gemini runs.

    Raises:
        ModelRefused: The request has such a tool.
    """
    if names := [name for tool in request.native_tools for name in tool]:
        raise ModelRefused(f"{service} has no tool {names[0]!r}; it belongs to Gemini. Remove it, or use Gemini.")


def standard_base64(data: str) -> str:
    """Return standard base64. genai's JSON uses the URL-safe alphabet."""
    return data.replace("-", "+").replace("_", "/")


def parameters_schema(declaration: JsonObject) -> JsonObject:
    """Return the JSON schema of a function's parameters. Declarations may have genai's `parameters` instead.

    Services accept no alternatives at the top. Their properties are declared as optional, and the tool checks the rest.
    """
    if declaration.get("parameters"):
        from google.genai import types

        typed = types.Schema.model_validate(declaration["parameters"])
        schema = typed.json_schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    else:
        schema = declaration.get("parametersJsonSchema") or {}
    definitions = {f"#/$defs/{name}": value for name, value in (schema.get("$defs") or {}).items()}
    branches = [branch for key in ("allOf", "anyOf", "oneOf") for branch in schema.get(key) or ()]
    objects = [schema, *(definitions.get(branch.get("$ref"), branch) for branch in branches)]
    properties = ChainMap(*(each.get("properties") or {} for each in objects))
    rest = {key: value for key, value in schema.items() if key not in _COMBINATIONS}
    return {**rest, "type": "object", "properties": dict(properties)}
