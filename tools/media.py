"""Genai objects in what a tool returns: whole FunctionResponses, and Parts that carry media.

Google's library takes a second to import, so it is looked up and never imported here: who returns one of its
objects has imported it already.
"""

import sys
from typing import Any, NamedTuple

from waystation.core.payload import JsonObject, plain

_MAX_DEPTH = 1
"""Parts are found in the returned container and in the containers it holds. Source: adk-semantics 1.5."""


class WholeResponse(NamedTuple):
    """A FunctionResponse that a tool returned itself; its name and id are the engine's business."""

    response: Any
    will_continue: bool | None
    parts: tuple[JsonObject, ...]


def function_response(value: object) -> WholeResponse | None:
    """Return what a genai FunctionResponse holds, or None when `value` is not one."""
    if not isinstance(value, _genai("FunctionResponse")):
        return None
    response: Any = value
    parts = tuple(_json(part) for part in response.parts or ())
    return WholeResponse(response.response or {}, response.will_continue, parts)


def without_media(value: Any, depth: int = 0) -> tuple[Any, tuple[JsonObject, ...]]:
    """Return `value` without the media it holds, and that media as parts of a FunctionResponse.

    A container is left as it is when there is no media in it, and left out when there is nothing else.
    """
    if isinstance(value, _genai("Part")):
        media = _media_of(value)
        return ({}, (media,)) if media else (_json(value), ())
    if not isinstance(value, dict | list | tuple) or depth > _MAX_DEPTH or not _genai("Part"):
        return value, ()
    kept: dict[Any, Any] = {}
    found: list[JsonObject] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        rest, parts = without_media(item, depth + 1)
        found.extend(parts)
        if rest or not parts:
            kept[key] = rest
    if isinstance(value, dict):
        return kept, tuple(found)
    return (list(kept.values()) or ({} if found else [])), tuple(found)


def is_genai(value: object) -> bool:
    """Whether `value` is one of the objects that are looked for here."""
    return isinstance(value, (_genai("Part"), _genai("FunctionResponse")))


def _genai(name: str) -> Any:
    """Return a class of `google.genai.types`, or no class at all while nobody has imported it."""
    return getattr(sys.modules.get("google.genai.types"), name, ())


def _media_of(part: Any) -> JsonObject | None:
    blob, file = part.inline_data, part.file_data
    if blob is not None and blob.data is not None and blob.mime_type:
        return {"inlineData": {"mimeType": blob.mime_type, "data": _json(blob)["data"]}}
    if file is not None and file.file_uri and file.mime_type:
        return {"fileData": {"fileUri": file.file_uri, "mimeType": file.mime_type}}
    return None


def _json(value: Any) -> JsonObject:
    dumped: JsonObject = plain(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dumped
