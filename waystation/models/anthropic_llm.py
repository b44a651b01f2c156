"""Claude models through Anthropic's API. The counterpart of ADK's `AnthropicLlm`. Requires the extra `anthropic`."""

import copy
import importlib
import os
import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from waystation.adk_names import import_name
from waystation.core.budget import to_token_count
from waystation.core.errors import ModelError, ModelRefused
from waystation.core.payload import JsonObject, encode
from waystation.models.chat_completions import build_response, call_part, make_strict, thinking_block, thought
from waystation.models.plain_request import LlmRequest
from waystation.models.sendable import Rules
from waystation.models.service_model import ServiceModel, parameters_schema, refuse_native_tools, standard_base64

MAX_TOKENS = 8192
_RESOURCE = re.compile(
    r"projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)/(publishers/anthropic/models|endpoints)/(?P<name>[^/:]+)"
)
"""Matches the resource name of a model on Vertex AI."""
_SAMPLING = {"temperature": "temperature", "topP": "top_p", "topK": "top_k"}
_TOOL_CHOICE = {"ANY": "any", "NONE": "none", "AUTO": "auto"}
_EFFORT = {"MINIMAL": "low", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}
_FINISH = {"end_turn": "STOP", "tool_use": "STOP", "stop_sequence": "STOP", "max_tokens": "MAX_TOKENS"}
_FINISH |= {"model_context_window_exceeded": "MAX_TOKENS", "refusal": "SAFETY"}

__getattr__ = partial(import_name, __name__)  # ADK's class for Vertex AI is in this module


class AnthropicLlm(ServiceModel):
    """A Claude model. By default, the client library reads `ANTHROPIC_API_KEY` from the environment."""

    service, package = "Anthropic", "anthropic"
    key_variables = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
    rules = Rules(calls_need_tools=True)

    def __init__(
        self,
        model: str | None = None,
        *,
        max_tokens: int = MAX_TOKENS,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """Store the settings. The client library is imported, and its client created, on the first call.

        Args:
            model: The model name. It overrides the name in the request.
            max_tokens: The maximum length of a reply, unless the agent sets `max_output_tokens`.
            api_key: The API key. It overrides the key from the environment.
            base_url: The URL of the API, such as a gateway.
            timeout: How long to wait for data from the service.

        Raises:
            MissingExtra: The package `anthropic` is not installed.
        """
        super().__init__(model=model, api_key=api_key, base_url=base_url, timeout=timeout)
        self._max_tokens = max_tokens

    def _connect(self) -> Any:
        anthropic = importlib.import_module("anthropic")
        settings: JsonObject = {"max_retries": 0, "base_url": self._base_url, "api_key": self._api_key}
        # Without a timeout of our own, the client library refuses long replies that are not streamed.
        settings["timeout"] = self._timeout.total_seconds() if self._timeout else 3600.0
        return anthropic.AsyncAnthropic(**settings)

    async def _responses(self, client: Any, request: LlmRequest, *, stream: bool) -> AsyncIterator[JsonObject]:
        params = self._params(request)
        result = await client.messages.create(model=self.model or request.model, stream=stream, **params)
        if not stream:
            yield _convert_message(result.model_dump(exclude_none=True, warnings=False))
            return
        reply = _StreamedMessage()
        async for event in result:
            for response in reply.convert(event.model_dump(exclude_none=True, warnings=False)):
                yield response

    def _params(self, request: LlmRequest) -> JsonObject:
        """Return the arguments of a message.

        Raises:
            ModelRefused: The request contains something that Claude does not support.
        """
        refuse_native_tools(self.service, request)
        config, output = request.config, dict[str, Any]()
        params: JsonObject = {
            "messages": _messages(request.contents),
            "max_tokens": config.get("maxOutputTokens") or self._max_tokens,
        }
        if request.system_instruction:
            params["system"] = request.system_instruction
        if config.get("stopSequences"):
            params["stop_sequences"] = config["stopSequences"]
        if thinking := config.get("thinkingConfig"):
            params["thinking"] = _thinking(thinking.get("thinkingBudget"))
            if level := _EFFORT.get(str(thinking.get("thinkingLevel") or "").upper()):
                output["effort"] = level
        if request.tools:
            params["tools"] = [
                {
                    "name": tool["name"],
                    "description": tool.get("description") or "",
                    "input_schema": parameters_schema(tool),
                }
                for tool in request.tools
            ]
            mode = ((config.get("toolConfig") or {}).get("functionCallingConfig") or {}).get("mode")
            params |= {"tool_choice": {"type": _TOOL_CHOICE[mode]}} if mode in _TOOL_CHOICE else {}
        if schema := config.get("responseJsonSchema"):
            schema = copy.deepcopy(schema)
            make_strict(schema)
            output["format"] = {"type": "json_schema", "schema": schema}
        options = config.get("httpOptions") or {}
        params |= {"output_config": output} if output else {}
        params |= {"extra_headers": options["headers"]} if options.get("headers") else {}
        extra = dict(options.get("extraBody") or {})
        # The client library does not know these settings anymore. Claude refuses them while it thinks.
        if params.get("thinking", {}).get("type") in (None, "disabled"):
            extra |= {name: config[key] for key, name in _SAMPLING.items() if config.get(key) is not None}
        params |= {"extra_body": extra} if extra else {}
        return params


class Claude(AnthropicLlm):
    """A Claude model on Vertex AI. Credentials are Google's application default credentials.

    The project and the location are in GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION, or in the model name
    (`projects/…/locations/…/publishers/anthropic/models/…`).
    """

    service = "Claude on Vertex AI"

    def _connect(self) -> Any:
        place = _RESOURCE.match(self.model or "")
        project = place["project"] if place else os.environ.get("GOOGLE_CLOUD_PROJECT")
        location = place["location"] if place else os.environ.get("GOOGLE_CLOUD_LOCATION")
        if not (project and location):
            raise ModelRefused(
                f"The model {self.model!r} has no project and location. Set GOOGLE_CLOUD_PROJECT and "
                "GOOGLE_CLOUD_LOCATION, or use AnthropicLlm for Anthropic's API."
            )
        vertex = importlib.import_module("anthropic").AsyncAnthropicVertex
        # The adapter is called with the name, which the client library makes part of the URL.
        self.model = place["name"] if place else self.model
        return vertex(
            project_id=project,
            region=location,
            access_token=self._api_key,
            base_url=self._base_url,
            max_retries=0,
            timeout=self._timeout.total_seconds() if self._timeout else 3600.0,
        )

    def _mapped(self, error: Exception, request: LlmRequest) -> ModelError | None:
        from google.auth.exceptions import GoogleAuthError

        if isinstance(error, GoogleAuthError) and not error.retryable:
            return ModelRefused(
                f"{self.service} has no usable credentials. Run `gcloud auth application-default login`, or set "
                "GOOGLE_APPLICATION_CREDENTIALS."
            )
        return super()._mapped(error, request)


def _thinking(budget: int | None) -> JsonObject:
    """Return Anthropic's setting for genai's thinking budget: 0 is off, negative or None lets the model choose."""
    if budget == 0:
        return {"type": "disabled"}
    if budget is None or budget < 0:
        return {"type": "adaptive", "display": "summarized"}
    return {"type": "enabled", "budget_tokens": budget}


def _messages(contents: Sequence[JsonObject]) -> list[JsonObject]:
    messages: list[JsonObject] = []
    for content in contents:
        role = "assistant" if content.get("role") == "model" else "user"
        blocks = [block for part in content.get("parts") or () if (block := _block(part))]
        while blocks and "thinking" in blocks[-1]["type"]:  # The last block cannot be a thought.
            blocks.pop()
        if blocks and messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return messages


def _block(part: JsonObject) -> JsonObject | None:
    """Return a part as a block, or None for an empty text or a thought that Anthropic did not sign.

    Raises:
        ModelRefused: The part has a type that Claude does not support.
    """
    if part.get("thought"):
        return thinking_block(part)
    if part.get("text") is not None:
        return {"type": "text", "text": part["text"]} if part["text"].strip() else None
    if call := part.get("functionCall"):
        return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call.get("args") or {}}
    if response := part.get("functionResponse"):
        content: list[JsonObject] = [{"type": "text", "text": encode(response.get("response") or {}).decode()}]
        content += [block for item in response.get("parts") or () if (block := _block(item))]
        return {"type": "tool_result", "tool_use_id": response["id"], "content": content}
    blob, file = part.get("inlineData") or {}, part.get("fileData") or {}
    kind: str = blob.get("mimeType") or file.get("mimeType") or ""
    name = {"image": "image", "application/pdf": "document"}.get(kind if kind == "application/pdf" else kind[:5])
    if name and blob:
        source = {"type": "base64", "media_type": kind, "data": standard_base64(blob.get("data") or "")}
        return {"type": name, "source": source}
    if name and str(file.get("fileUri")).startswith(("http:", "https:")):
        return {"type": name, "source": {"type": "url", "url": file["fileUri"]}}
    raise ModelRefused(f"Anthropic does not accept {kind or next(iter(part), 'an empty part')!r} in a message.")


def _part(block: JsonObject) -> JsonObject | None:
    """Return a block of a reply as a part, or None if it has an unknown type."""
    match block.get("type"):
        case "text":
            return {"text": block.get("text") or ""}
        case "thinking" | "redacted_thinking":
            return thought(block)
        case "tool_use":
            return {
                "functionCall": {"id": block.get("id"), "name": block.get("name"), "args": block.get("input") or {}}
            }
        case _:
            return None


def _convert_message(message: JsonObject) -> JsonObject:
    parts = [part for block in message.get("content") or () if (part := _part(block))]
    reason, counts = message.get("stop_reason"), _counts(message.get("usage") or {})
    problem = (message.get("stop_details") or {}).get("explanation")
    rest = {"modelVersion": message.get("model"), "usageMetadata": counts, "error": message.get("error")}
    finish = _FINISH.get(reason, reason.upper()) if reason else None
    return build_response(parts, finish=finish, problem=problem, **rest)


def _counts(usage: JsonObject) -> JsonObject:
    names = ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens", "output_tokens")
    cached, added, new, written = (to_token_count(usage.get(name)) for name in names)
    prompt = new + cached + added
    thoughts = to_token_count((usage.get("output_tokens_details") or {}).get("thinking_tokens"))
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(written - thoughts, 0),
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": cached,
        "totalTokenCount": prompt + written,
    }


class _StreamedMessage:
    """Converts the events of one streamed message to genai's JSON."""

    def __init__(self) -> None:
        self._blocks: dict[int, JsonObject] = {}
        self._message: JsonObject = {}

    def convert(self, event: JsonObject) -> list[JsonObject]:
        """Return the responses for one event."""
        match event.get("type"):
            case "message_start":
                self._message = {**event["message"], "content": []}  # the blocks follow
            case "content_block_start":
                block = self._blocks[event["index"]] = {**event["content_block"], "json": ""}
                return [build_response([{"text": block["text"]}])] if block.get("text") else []
            case "content_block_delta":
                return self._add(self._blocks[event["index"]], event["delta"])
            case "content_block_stop":
                return self._end(self._blocks.pop(event["index"]))
            case "message_delta":
                usage = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
                self._message = {**self._message, **event["delta"], "usage": usage}
            case "message_stop":
                return [_convert_message(self._message)]
        return []

    def _add(self, block: JsonObject, delta: JsonObject) -> list[JsonObject]:
        match delta.get("type"):
            case "text_delta":
                return [build_response([{"text": delta["text"]}])]
            case "thinking_delta":
                block["thinking"] = (block.get("thinking") or "") + delta["thinking"]
            case "signature_delta":
                block["signature"] = (block.get("signature") or "") + delta["signature"]
            case "input_json_delta":
                block["json"] += delta["partial_json"]
        return []

    def _end(self, block: JsonObject) -> list[JsonObject]:
        if block["type"] == "text":  # already sent
            return []
        is_call = block["type"] == "tool_use" and block["json"]
        part = call_part(block.get("id"), block.get("name"), block["json"]) if is_call else _part(block)
        return [build_response([part])] if part else []
