"""Call models through ADK's protocol: `generate_content_async(llm_request, stream)` yields genai's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from waystation.core.budget import Usage
from waystation.core.errors import ModelOverloaded
from waystation.core.payload import JsonObject
from waystation.models.llm_request import EditableRequest
from waystation.models.llm_response import LlmResponse
from waystation.models.plain_request import LlmRequest
from waystation.models.service_errors import find_retry_after, map_status


async def generate_as_adk(
    llm: Any, request: LlmRequest, *, on_text: Callable[[str], None] | None = None
) -> LlmResponse:
    """Call a model through ADK's protocol and return its reply.

    The reply joins the complete responses. If they have no content, it has the text of the partial ones.

    Raises:
        ModelOverloaded: The model yielded no complete response, or the service failed.
        ModelRefused: The service rejected the request.
    """
    editable = _to_editable(llm, request)
    complete: list[LlmResponse] = []
    streamed = ""
    responses = llm.generate_content_async(editable, stream=on_text is not None)
    try:
        async with aclosing(responses):
            async for response in responses:
                if not response.partial:
                    complete.append(_to_plain(response))
                    continue
                parts = getattr(response.content, "parts", None) or ()
                text = "".join(part.text for part in parts if part.text and not part.thought)
                streamed += text
                if text and on_text is not None:
                    on_text(text)
    except Exception as error:
        # google-genai has the status in `code`, other client libraries in `status_code`.
        status = getattr(error, "code", None) or getattr(error, "status_code", None)
        if not isinstance(status, int):
            raise
        # Leave out the message, which may quote the conversation.
        raise map_status(f"The model {request.model!r} answered {status}.", status, find_retry_after(error)) from None
    if not complete:
        raise ModelOverloaded(f"The model {request.model!r} yielded no complete response.")
    return _join(complete, streamed)


def _join(responses: Sequence[LlmResponse], streamed: str) -> LlmResponse:
    """Return one response with all parts, and otherwise the last value of each field."""
    fields = {
        name: value
        for response in responses
        for name in LlmResponse.__dataclass_fields__
        if (value := getattr(response, name)) is not None
    }
    parts = [part for response in responses for part in (response.content or {}).get("parts") or ()]
    if not parts and streamed and "error_code" not in fields:
        parts = [{"text": streamed}]
    content = {**fields.get("content", {"role": "model"}), "parts": parts}
    return LlmResponse(**{**fields, "content": content if parts else fields.get("content")})


def _to_editable(llm: Any, request: LlmRequest) -> Any:
    """Return the request with genai's types: google-adk's class for its own models, and otherwise Waystation's."""
    from google.genai import types

    config = types.GenerateContentConfig.model_validate(request.config)
    config.system_instruction = request.system_instruction
    config.tools = [types.Tool.model_validate(tool) for tool in request.genai_tools()] or None
    contents = [types.Content.model_validate(content) for content in request.contents]
    fields: JsonObject = {"model": request.model, "contents": contents, "config": config}
    if any(cls.__module__.startswith("google.adk.") for cls in type(llm).__mro__):
        from google.adk.models import LlmRequest as AdkRequest

        return AdkRequest(**fields)
    return EditableRequest(**fields)


def _to_plain(response: Any) -> LlmResponse:
    return LlmResponse(
        content=_json(response.content),
        finish_reason=enum_value(response.finish_reason),
        error_code=enum_value(response.error_code),
        error_message=response.error_message,
        usage=Usage.from_genai(response.usage_metadata),
        model_version=response.model_version,
        grounding_metadata=_json(response.grounding_metadata),
        citation_metadata=_json(response.citation_metadata),
        custom_metadata=response.custom_metadata,
    )


def _json(value: Any) -> Any:
    is_model = hasattr(value, "model_dump")
    return value.model_dump(mode="json", by_alias=True, exclude_none=True) if is_model else value


def enum_value(value: Any) -> str | None:
    """Return the value of an enum member, such as a finish reason. Return strings and None unchanged."""
    return None if value is None else str(getattr(value, "value", value))
