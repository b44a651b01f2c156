"""Convert requests to OpenAI's chat completions, and their responses to genai's JSON."""

import base64
import copy
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from waystation.core.budget import to_token_count
from waystation.core.errors import ModelRefused
from waystation.core.payload import JsonObject, encode
from waystation.models.plain_request import LlmRequest
from waystation.models.sendable import MAX_NAME, THINKING
from waystation.models.service_model import parameters_schema, refuse_native_tools, standard_base64

MAX_DESCRIPTION = 1024
"""Maximum number of characters in a tool's description that OpenAI accepts."""

_SETTINGS = {
    "temperature": "temperature",
    "topP": "top_p",
    "seed": "seed",
    "stopSequences": "stop",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_TOOL_CHOICE = {"ANY": "required", "NONE": "none", "AUTO": "auto"}
_FINISH = {"stop": "STOP", "tool_calls": "STOP", "function_call": "STOP", "length": "MAX_TOKENS"}
_FINISH |= {"content_filter": "SAFETY", "eos": "STOP", "end_turn": "STOP", "max_tokens": "MAX_TOKENS"}
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}


def build_params(
    service: str, request: LlmRequest, *, stream: bool, max_tokens: str, claude: bool = False
) -> JsonObject:
    """Return the arguments of a chat completion without the model.

    `max_tokens` is the name of that argument. If the model is `claude`, thoughts that Anthropic signed are included.

    Raises:
        ModelRefused: The request contains something that chat completions do not support.
    """
    refuse_native_tools(service, request)
    config = request.config
    params: JsonObject = {"messages": _messages(service, request, claude=claude), "stream": stream}
    params |= {name: config[key] for key, name in _SETTINGS.items() if config.get(key) is not None}
    if config.get("maxOutputTokens") is not None:
        params[max_tokens] = config["maxOutputTokens"]
    if stream:
        params["stream_options"] = {"include_usage": True}
    if request.tools:
        params["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description") or "",
                    "parameters": parameters_schema(tool),
                },
            }
            for tool in request.tools
        ]
        mode = ((config.get("toolConfig") or {}).get("functionCallingConfig") or {}).get("mode")
        params |= {"tool_choice": _TOOL_CHOICE[mode]} if mode in _TOOL_CHOICE else {}
    if level := (config.get("thinkingConfig") or {}).get("thinkingLevel"):
        params["reasoning_effort"] = str(level).lower()
    if schema := config.get("responseJsonSchema"):
        schema = copy.deepcopy(schema)
        name = re.sub("[^A-Za-z0-9]", "", str(schema.get("title", "")))[:MAX_NAME] or "response"
        form = {"name": name, "schema": schema, "strict": make_strict(schema)}
        params["response_format"] = {"type": "json_schema", "json_schema": form}
    elif config.get("responseMimeType") == "application/json":
        params["response_format"] = {"type": "json_object"}
    options = config.get("httpOptions") or {}
    params |= {"extra_headers": options["headers"]} if options.get("headers") else {}
    params |= {"extra_body": options["extraBody"]} if options.get("extraBody") else {}
    return params


def make_strict(schema: Any) -> bool:
    """Forbid unknown properties in a JSON schema, and return whether services can enforce it exactly.

    They can if each object lists all its properties as required.
    """
    if isinstance(schema, list):
        return all([make_strict(item) for item in schema])
    if not isinstance(schema, dict):
        return True
    exact = True
    if schema.get("type") == "object":
        exact = schema.setdefault("additionalProperties", False) is False
        exact = exact and set(schema.get("properties") or ()) == set(schema.get("required") or ())
    return all([exact, *(make_strict(value) for value in schema.values())])


def _messages(service: str, request: LlmRequest, *, claude: bool) -> list[JsonObject]:
    messages: list[JsonObject] = []
    if request.system_instruction:
        messages.append({"role": "system", "content": request.system_instruction})
    for content in request.contents:
        parts: Sequence[JsonObject] = content.get("parts") or ()
        if content.get("role") == "model":
            message = _assistant_message(parts)
            blocks = [block for part in parts if claude and (block := thinking_block(part))]
            message |= {"thinking_blocks": blocks} if blocks else {}
            messages += [message] if message["content"] or message.get("tool_calls") else []
            continue
        media: list[JsonObject] = []
        for part in parts:
            if response := part.get("functionResponse"):
                text = encode(response.get("response") or {}).decode()
                messages.append({"role": "tool", "tool_call_id": response["id"], "content": text})
                # The messages of tools are text.
                media += [_part(service, item) for item in response.get("parts") or ()]
            else:
                media.append(_part(service, part))
        if media:
            texts = [part["text"] for part in media if part["type"] == "text"]
            messages.append({"role": "user", "content": texts[0] if len(media) == len(texts) == 1 else media})
    return messages


def _assistant_message(parts: Sequence[JsonObject]) -> JsonObject:
    text = "".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))
    message: JsonObject = {"role": "assistant", "content": text or None}
    calls = [part["functionCall"] for part in parts if part.get("functionCall")]
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": encode(call.get("args") or {}).decode()},
            }
            for call in calls
        ]
    return message


def _part(service: str, part: JsonObject) -> JsonObject:
    """Return one part of a user's message.

    Raises:
        ModelRefused: The part has a type that chat completions do not support.
    """
    if part.get("text") is not None:
        return {"type": "text", "text": part["text"]}
    blob, file = part.get("inlineData") or {}, part.get("fileData") or {}
    kind: str = blob.get("mimeType") or file.get("mimeType") or ""
    data = standard_base64(blob.get("data") or "")
    url = f"data:{kind};base64,{data}" if blob else str(file.get("fileUri") or "")
    if kind.startswith("image/") and url.startswith(("data:", "https:", "http:")):
        return {"type": "image_url", "image_url": {"url": url}}
    if blob and kind == "application/pdf":
        return {"type": "file", "file": {"filename": blob.get("displayName") or "document.pdf", "file_data": url}}
    if blob and kind in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[kind]}}
    if blob and kind.startswith("text/"):
        return {"type": "text", "text": base64.b64decode(data).decode(errors="replace")}
    raise ModelRefused(f"{service} does not accept {kind or next(iter(part), 'an empty part')!r} in a message.")


def thinking_block(part: JsonObject) -> JsonObject | None:
    """Return a thought as Anthropic's block, or None if the part is not a thought that Anthropic signed."""
    encoded = part.get("thoughtSignature") if part.get("thought") else None
    signature = base64.b64decode(standard_base64(encoded)).decode(errors="replace") if encoded else ""
    if not signature.startswith(THINKING):
        return None
    signature = signature.removeprefix(THINKING)
    if part.get("text") is None:
        return {"type": "redacted_thinking", "data": signature}
    return {"type": "thinking", "thinking": part["text"], "signature": signature}


def thought(block: JsonObject) -> JsonObject:
    """Return a thinking block of Anthropic as a part."""
    signature = block.get("signature") or block.get("data")
    signed = base64.b64encode(f"{THINKING}{signature}".encode()).decode() if signature else None
    text = {} if block.get("type") == "redacted_thinking" else {"text": block.get("thinking") or ""}
    return {**text, "thought": True, **({"thoughtSignature": signed} if signed else {})}


def call_part(call_id: object, name: object, arguments: str) -> JsonObject:
    """Return a function call as a part."""
    return {"functionCall": {"id": call_id, "name": name, "args": _parse_arguments(arguments)}}


def _parse_arguments(text: str) -> JsonObject | str:
    """Return an object, or the text if it is not one. The engine repairs the text, or reports it to the model.

    Some services write null for a call without arguments.
    """
    with suppress(ValueError, RecursionError):
        value = json.loads(text.strip() or "{}")
        return value if isinstance(value, dict) else {} if value is None else text
    return text


def build_response(
    parts: Sequence[JsonObject], *, finish: str | None = None, problem: str | None = None, **rest: Any
) -> JsonObject:
    """Return a `GenerateContentResponse` as JSON. `problem` explains `finish`."""
    return {
        "candidates": [
            {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, "finishMessage": problem}
        ],
        **rest,
    }


class ChatReply:
    """Converts the chunks of one chat completion, or a whole one, to genai's JSON."""

    def __init__(self) -> None:
        self._calls: list[JsonObject] = []
        self._thinking = ""
        self._refusal = ""

    def convert(self, chunk: JsonObject) -> JsonObject:
        """Return a chunk's text, and at the end the calls, the finish reason and the usage."""
        usage = _counts(chunk["usage"]) if chunk.get("usage") else None
        choice: JsonObject = next(iter(chunk.get("choices") or ()), {})
        reason = choice.get("finish_reason")
        error = chunk.get("error") or choice.get("error") or (reason if reason == "error" else None)
        rest: JsonObject = {"modelVersion": chunk.get("model"), "usageMetadata": usage, "error": error}
        delta: JsonObject = choice.get("delta") or choice.get("message") or {}
        parts = self._thoughts(delta.get("thinking_blocks") or ())
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and not delta.get("thinking_blocks"):
            parts += _text_parts(reasoning, thought=True)
        refusal = delta.get("refusal") or (delta.get("provider_specific_fields") or {}).get("refusal") or ""
        self._refusal += refusal
        parts += _text_parts(delta.get("content") or refusal)
        for number, call in enumerate(delta.get("tool_calls") or ()):
            self._add(number if call.get("index") is None else call["index"], call, call.get("function") or {})
        if not reason:
            return build_response(parts, **rest)
        finish, problem = _FINISH.get(str(reason).lower(), str(reason).upper()), None
        if self._refusal:
            finish, problem = "SAFETY", self._refusal
        parts += [call_part(call["id"], call["name"], call["arguments"]) for call in self._calls]
        return build_response(parts, finish=finish, problem=problem, **rest)

    def _add(self, index: int, piece: JsonObject, function: JsonObject) -> None:
        """Add a piece of a call.

        Some services give all calls the same index or ID, or repeat the name in each piece.
        """
        call_id, name, arguments = piece.get("id"), function.get("name"), function.get("arguments") or ""
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        by_id = [call for call in self._calls if call_id and call["id"] == call_id]
        by_id = [call for call in by_id if name in (None, "", call["name"])]
        at_index = [call for call in self._calls if call["index"] == index]
        call = next(reversed([call for call in by_id if call in at_index] or by_id or at_index), None)
        if call and call["name"] and name:
            may_begin = call["arguments"] and arguments.lstrip().startswith("{")  # Parsing each piece would be slow.
            is_other = name != call["name"] or (may_begin and isinstance(_parse_arguments(call["arguments"]), dict))
            call = None if is_other or (call_id and call["id"] and not by_id) else call
        if call is None:
            call = {"index": index, "id": None, "name": "", "arguments": ""}
            self._calls.append(call)
        call["id"], call["name"] = call["id"] or call_id, call["name"] or name or ""
        call["arguments"] += arguments

    def _thoughts(self, blocks: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the complete thinking blocks. LiteLLM streams the text in pieces, and then all of it with the
        signature."""
        parts: list[JsonObject] = []
        for block in blocks:
            text = block.get("thinking") or ""
            if block.get("signature") or block.get("data"):
                parts.append(thought({**block, "thinking": text or self._thinking}))
                self._thinking = ""
            else:
                self._thinking += text
        return parts


def _text_parts(content: Any, **kind: bool) -> list[JsonObject]:
    """Return a text, or a list of parts with text or thoughts, as parts."""
    if isinstance(content, str):
        return [{"text": content, **kind}] if content else []
    if isinstance(content, dict):
        return _text_parts(content.get("text"), **kind) + _text_parts(content.get("thinking"), thought=True)
    return [part for item in content or () for part in _text_parts(item, **kind)]


def _counts(usage: JsonObject) -> JsonObject:
    prompt, written, total = (to_token_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    thoughts = to_token_count((usage.get("completion_tokens_details") or {}).get("reasoning_tokens"))
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(written - thoughts, 0),
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "totalTokenCount": total or prompt + written,
    }


async def convert_chat(result: Any) -> AsyncIterator[JsonObject]:
    """Yield genai's JSON for a chat completion of the client library: an object, or a stream of chunks."""
    reply = ChatReply()
    if hasattr(result, "__aiter__"):
        async for chunk in result:
            yield reply.convert(chunk.model_dump(exclude_none=True, warnings=False))
    else:
        yield reply.convert(result.model_dump(exclude_none=True, warnings=False))
