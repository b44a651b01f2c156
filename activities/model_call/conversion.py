"""Requests and responses in genai's types, for callbacks and for tools that change requests; and back to plain JSON.

The types take a second to import, so nothing is shaped unless somebody looks at it. What was not changed goes back as
it was: the types recode thought signatures, and drop part fields that they do not know.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from waystation.core import JsonObject, Usage, a, copy_json, plain
from waystation.models import LlmRequest, LlmResponse
from waystation.models.llm_request import LlmRequest as EditableRequest
from waystation.tools.base_tool import BaseTool


class ShapedRequest:
    """A request to be changed in place, and what it was before."""

    def __init__(self, request: LlmRequest, tools: Mapping[str, BaseTool]) -> None:
        """Show `request` to callbacks; `tools` is what the model may call."""
        from google.genai import types

        self._plain = request
        shown = [_content(content) for content in request.contents]
        # The objects are kept, so that no other one gets the id of one of them.
        self._before = {
            id(content): (content, _json(content), given)
            for content, given in zip(shown, request.contents, strict=True)
        }
        config = types.GenerateContentConfig.model_validate(request.config)
        config.system_instruction = request.system_instruction
        declared = [types.FunctionDeclaration.model_validate(tool) for tool in request.tools]
        native = [types.Tool.model_validate(tool) for tool in request.native_tools]
        functions = [types.Tool(function_declarations=declared)] if declared else []
        config.tools = [*functions, *native] or None
        self._declared = {
            str(given["name"]): (_json(tool), given) for tool, given in zip(declared, request.tools, strict=True)
        }
        self._config = _settings(config)
        self.editable = EditableRequest(model=request.model, contents=shown, config=config, tools_dict=dict(tools))

    def plain(self) -> LlmRequest:
        """Return the request as it is now.

        Raises:
            NotJson: Something in it has no JSON form.
            TypeError: Something in it is not what it should be.
        """
        now, config = self.editable, self.editable.config
        if not isinstance(now.contents, list):
            raise TypeError(f"`contents` of the request is {a(now.contents)} now; it has to be a list.")
        settings = _settings(config)
        declared, native = self._tools(config.tools or [])
        return replace(
            self._plain,
            model=now.model or self._plain.model,
            contents=[self._content(content, f"contents[{i}]") for i, content in enumerate(now.contents)],
            system_instruction=_text(config.system_instruction),
            tools=declared,
            native_tools=native,
            config=self._plain.config if settings == self._config else settings,
        )

    def _content(self, content: Any, place: str) -> JsonObject:
        _, before, given = self._before.get(id(content), (None, None, {}))
        now = _json(content, place)
        return given if before is not None and now == before else now

    def _tools(self, tools: Sequence[Any]) -> tuple[list[JsonObject], list[JsonObject]]:
        declared: list[JsonObject] = []
        native: list[JsonObject] = []
        for number, tool in enumerate(tools):
            if callable(tool):
                raise TypeError(
                    "A function in `config.tools` cannot be called from here; put it into the agent's `tools`."
                )
            rest = _json(tool, f"config.tools[{number}]", "Tool")
            for declaration in rest.pop("functionDeclarations", ()):
                before, given = self._declared.get(declaration.get("name"), (None, declaration))
                declared.append(given if before == declaration else declaration)
            if rest:
                native.append(rest)
        return declared, native


def shaped_response(response: LlmResponse) -> LlmResponse:
    """Return a response for callbacks, with genai's types in it."""
    from google.genai import types

    usage = response.usage
    shown = usage and types.GenerateContentResponseUsageMetadata(
        prompt_token_count=usage.prompt_tokens,
        candidates_token_count=usage.output_tokens,
        thoughts_token_count=usage.thoughts_tokens,
        cached_content_token_count=usage.cached_tokens,
        total_token_count=usage.total_tokens,
    )
    content = _content(response.content) if isinstance(response.content, dict) else response.content
    return replace(response, content=content, usage_metadata=shown)


def plain_response(response: LlmResponse, given: LlmResponse | None = None) -> LlmResponse:
    """Return a response that callbacks gave or changed, as plain JSON.

    `given` is what the model gave: a content that is still as it was goes back as the model gave it, and a response
    that says nothing of tokens keeps the model's count, since the call was paid for.

    Raises:
        NotJson: Something in it has no JSON form.
        TypeError: Something in it is not what it should be.
    """
    content = response.content
    if content is not None and not isinstance(content, dict):
        content = _json(content)
    if given is not None and content is not None and isinstance(given.content, dict):
        content = given.content if content == _json(_content(given.content)) else content
    usage = response.usage or _usage(response.usage_metadata) or (given.usage if given else None)
    return LlmResponse(
        content=content,
        finish_reason=_name(response.finish_reason),
        error_code=_name(response.error_code),
        error_message=response.error_message,
        usage=usage,
        model_version=response.model_version,
        grounding_metadata=_maybe_json(response.grounding_metadata, "grounding_metadata", "GroundingMetadata"),
        citation_metadata=_maybe_json(response.citation_metadata, "citation_metadata", "CitationMetadata"),
    )


def _maybe_json(value: Any, place: str, kind: str) -> JsonObject | None:
    return None if value is None else _json(value, place, kind)


def _content(content: JsonObject) -> Any:
    from google.genai import types

    known = {field.alias or name for name, field in types.Part.model_fields.items()} | set(types.Part.model_fields)
    parts = [{key: value for key, value in part.items() if key in known} for part in content.get("parts") or ()]
    # A copy, since genai's types keep arguments and responses as they are given, and these are the log's.
    return types.Content.model_validate({"role": content.get("role"), "parts": copy_json(parts)})


def _json(value: Any, place: str = "content", kind: str = "Content") -> JsonObject:
    if isinstance(value, dict):
        return dict(plain(value))
    return _dumped(value, place, kind)


def _dumped(value: Any, place: str, kind: str, left_out: Set[str] = frozenset()) -> JsonObject:
    if not hasattr(value, "model_dump"):
        # Whose mistake it is, only the author knows: callbacks, plugins and tools change requests one after another.
        raise TypeError(f"A callback put {a(value)} into `{place}`; put a genai {kind} there.")
    # Without pydantic's warnings: a wrong type is reported where it is used.
    return dict(
        plain(value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out, warnings=False))
    )


def _settings(config: Any) -> JsonObject:
    """Return a generation config as JSON, without what the request has elsewhere."""
    from waystation.tools.json_schema import json_schema

    left_out = {"system_instruction", "tools", "response_schema"}
    settings = _dumped(config, "config", "GenerateContentConfig", left_out)
    if config.response_schema is not None:
        settings["responseJsonSchema"] = json_schema(config.response_schema)
    return settings


def _text(instruction: Any) -> str | None:
    """Return a system instruction as text, whatever form a callback gave it."""
    if instruction is None or isinstance(instruction, str):
        return instruction
    if isinstance(instruction, list):
        return "\n\n".join(filter(None, map(_text, instruction)))
    parts = instruction.get("parts") if isinstance(instruction, dict) else getattr(instruction, "parts", None)
    if parts is None:
        parts = [instruction]
    texts = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in parts]
    return "\n\n".join(filter(None, texts))


def _usage(usage: Any) -> Usage | None:
    if usage is None:
        return None
    return Usage(
        prompt_tokens=usage.prompt_token_count or 0,
        output_tokens=usage.candidates_token_count or 0,
        thoughts_tokens=usage.thoughts_token_count or 0,
        cached_tokens=usage.cached_content_token_count or 0,
        total_tokens=usage.total_token_count or 0,
    )


def _name(value: Any) -> str | None:
    """Return an enum's value, as genai has for reasons, or a text as it is."""
    return None if value is None else str(getattr(value, "value", value))


def content_json(content: Any) -> JsonObject:
    """Return a Content that a callback returned, a text, or a Content as JSON already, as JSON.

    Raises:
        NotJson: It has no JSON form.
        TypeError: It is something else.
    """
    if isinstance(content, str):
        return {"role": "model", "parts": [{"text": content}]}
    if isinstance(content, dict) or hasattr(content, "model_dump"):
        return {"role": "model", **_json(content)}
    raise TypeError(f"A callback returned {a(content)}; return a genai Content or None.")
