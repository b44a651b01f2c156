"""Convert requests and responses to genai's types, for callbacks and for tools that change requests, and back to JSON.

The conversion is done only when needed, because importing the types takes a second. Unchanged values keep their
original JSON, because the types re-encode thought signatures and drop unknown part fields.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from waystation.core.budget import Usage
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, normalize_json
from waystation.events.lazy_list import LazyList
from waystation.models import LlmRequest, LlmResponse
from waystation.models.adk_protocol import enum_value
from waystation.models.llm_request import EditableRequest
from waystation.tools.base_tool import BaseTool


class TypedRequest:
    """A request that callbacks can change in place, together with the original."""

    def __init__(self, request: LlmRequest, tools: Mapping[str, BaseTool]) -> None:
        """Convert `request` to genai's types. `tools` contains the tools that the model may call."""
        from google.genai import types

        self._plain = request
        config = types.GenerateContentConfig.model_validate(request.config)
        config.system_instruction = request.system_instruction
        declared = [types.FunctionDeclaration.model_validate(tool) for tool in request.tools]
        native = [types.Tool.model_validate(tool) for tool in request.native_tools]
        functions = [types.Tool(function_declarations=declared)] if declared else []
        config.tools = [*functions, *native] or None
        self._declared = {
            str(declaration["name"]): (_json(tool), declaration)
            for tool, declaration in zip(declared, request.tools, strict=True)
        }
        self._config = _settings(config)
        self._contents = LazyList(request.contents, _content)
        self.editable = EditableRequest(model=request.model, config=config, tools_dict=dict(tools))
        self.editable.contents = self._contents

    def plain(self) -> LlmRequest:
        """Return the request, with the changes that callbacks and tools made, as plain JSON.

        Raises:
            NotJson: A value cannot be converted to JSON.
            TypeError: A value has the wrong type.
        """
        now, config = self.editable, self.editable.config
        if not isinstance(now.contents, list):
            raise TypeError(f"`contents` of the request is {with_article(now.contents)}; it must be a list.")
        settings = _settings(config)
        declared, native = self._tools(config.tools or [])
        return replace(
            self._plain,
            model=now.model or self._plain.model,
            contents=self._plain_contents(now.contents),
            system_instruction=_text(config.system_instruction),
            tools=declared,
            native_tools=native,
            config=self._plain.config if settings == self._config else settings,
        )

    def _plain_contents(self, contents: list[Any]) -> list[JsonObject]:
        items = enumerate(list.__iter__(contents))
        if contents is not self._contents:
            return [self._content(item, number) for number, item in items]
        plain = self._contents.plain
        # Items that are still positions were not converted, so not changed. Long conversations have thousands of them.
        return [plain[item] if type(item) is int else self._content(item, number) for number, item in items]

    def _content(self, item: Any, number: int) -> JsonObject:
        now, (_, original) = _json(item, f"contents[{number}]"), self._contents.converted.get(id(item), (None, None))
        return original if original is not None and now == _json(_content(original)) else now

    def _tools(self, tools: Sequence[Any]) -> tuple[list[JsonObject], list[JsonObject]]:
        declared: list[JsonObject] = []
        native: list[JsonObject] = []
        for number, tool in enumerate(tools):
            if callable(tool):
                raise TypeError(
                    "`config.tools` contains a Python function, which cannot run. Add it to the agent's `tools`."
                )
            rest = _json(tool, f"config.tools[{number}]", "Tool")
            for declaration in rest.pop("functionDeclarations", ()):
                before, original = self._declared.get(declaration.get("name"), (None, declaration))
                declared.append(original if before == declaration else declaration)
            if rest:
                native.append(rest)
        return declared, native


def to_genai_response(response: LlmResponse) -> LlmResponse:
    """Return a copy of a model's response with genai's types, for callbacks."""
    from waystation.events.event import to_usage_metadata  # loads google-genai, which takes long

    usage_metadata = response.usage and to_usage_metadata(response.usage.model_dump())
    content = _content(response.content) if isinstance(response.content, dict) else response.content
    return replace(response, content=content, usage_metadata=usage_metadata)


def to_plain_response(response: LlmResponse, original: LlmResponse | None = None) -> LlmResponse:
    """Convert a response from callbacks to plain JSON.

    `original` is the model's response. Unchanged content keeps its original JSON. A response without token counts gets
    those of `original`, because that call has to be paid for.

    Raises:
        NotJson: A value cannot be converted to JSON.
        TypeError: A value has the wrong type.
    """
    content = response.content
    if content is not None and not isinstance(content, dict):
        content = _json(content)
    if original is not None and content is not None and isinstance(original.content, dict):
        content = original.content if content == _json(_content(original.content)) else content
    usage = response.usage or Usage.from_genai(response.usage_metadata) or (original.usage if original else None)
    return LlmResponse(
        content=content,
        finish_reason=enum_value(response.finish_reason),
        error_code=enum_value(response.error_code),
        error_message=response.error_message,
        usage=usage,
        model_version=response.model_version,
        model=response.model or (original.model if original else None),
        grounding_metadata=response.grounding_metadata
        and _json(response.grounding_metadata, "grounding_metadata", "GroundingMetadata"),
        citation_metadata=response.citation_metadata
        and _json(response.citation_metadata, "citation_metadata", "CitationMetadata"),
        custom_metadata=response.custom_metadata,
    )


def _content(content: JsonObject) -> Any:
    from waystation.events.event import to_content  # loads google-genai, which takes long

    return to_content(content)


def _json(value: Any, place: str = "content", kind: str = "Content") -> JsonObject:
    if isinstance(value, dict):
        return dict(normalize_json(value))
    return _dumped(value, place, kind)


def _dumped(value: Any, place: str, kind: str, left_out: Set[str] = frozenset()) -> JsonObject:
    if not hasattr(value, "model_dump"):
        # The error does not name the callback that set the value, because callbacks, plugins and tools change requests
        # one after another.
        raise TypeError(f"A callback set `{place}` to {with_article(value)}; use a genai {kind} instead.")
    # Suppress pydantic's warnings, because values with a wrong type are reported where they are used.
    dumped = value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out, warnings=False)
    return dict(normalize_json(dumped))


def _settings(config: Any) -> JsonObject:
    """Convert a generation config to JSON, with its response schema as a JSON Schema.

    The system instruction and the tools are left out, because they are stored elsewhere in the request.
    """
    from waystation.tools.json_schema import json_schema

    left_out = {"system_instruction", "tools", "response_schema"}
    settings = _dumped(config, "config", "GenerateContentConfig", left_out)
    if config.response_schema is not None:
        settings["responseJsonSchema"] = json_schema(config.response_schema)
    return settings


def _text(instruction: Any) -> str | None:
    """Convert a system instruction of any supported type to text. Skip parts without text. Return None unchanged."""
    if instruction is None or isinstance(instruction, str):
        return instruction
    if isinstance(instruction, list):
        return "\n\n".join(filter(None, map(_text, instruction)))
    parts = instruction.get("parts") if isinstance(instruction, dict) else getattr(instruction, "parts", None)
    if parts is None:
        parts = [instruction]
    texts = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in parts]
    return "\n\n".join(filter(None, texts))


def content_to_json(content: Any) -> JsonObject:
    """Convert a callback's return value (a string, or a Content as an object or as JSON) to a Content in JSON.

    Raises:
        NotJson: The value cannot be converted to JSON.
        TypeError: The value has a different type.
    """
    if isinstance(content, str):
        return {"role": "model", "parts": [{"text": content}]}
    if isinstance(content, dict) or hasattr(content, "model_dump"):
        return {"role": "model", **_json(content)}
    raise TypeError(f"A callback returned {with_article(content)}; return a genai Content or None.")
