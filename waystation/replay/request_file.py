"""A prompt as a file: what one model call is given, as JSON that a person can edit."""

from typing import Any

from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject, decode
from waystation.models import LlmRequest

_FIELDS = {
    "model": ("model", str),
    "systemInstruction": ("system_instruction", str | None),
    "contents": ("contents", list),
    "tools": ("tools", list),
    "nativeTools": ("native_tools", list),
    "config": ("config", dict),
}
"""Names in the file, with those of the fields and their types."""


class NotAPrompt(WaystationError):
    """A file does not hold what a model can be given."""


def to_json(request: LlmRequest) -> JsonObject:
    """Return a request as a file holds it; what is empty is left out."""
    held: JsonObject = {}
    for name, (field, kind) in _FIELDS.items():
        value = getattr(request, field)
        if value or name == "contents":
            held[name] = list(value) if kind is list else value
    return held


def read(text: str | bytes) -> JsonObject:
    """Return what a file says of a request: fields as `dataclasses.replace` takes them.

    A file may leave out what is to stay as it is.

    Raises:
        NotAPrompt: It holds something else.
    """
    try:
        held: Any = decode(text)
    except ValueError as error:
        raise NotAPrompt(f"The prompt is no JSON: {error}") from None
    if not isinstance(held, dict):
        raise NotAPrompt('The prompt is no JSON object, such as {"contents": […]}.')
    if unknown := sorted(held.keys() - _FIELDS.keys()):
        raise NotAPrompt(f"The prompt has {unknown[0]!r}; it may have: {', '.join(_FIELDS)}.")
    for name, value in held.items():
        kind = _FIELDS[name][1]
        if not isinstance(value, kind):
            raise NotAPrompt(f"`{name}` of the prompt is {type(value).__name__}; give what --write-prompt wrote there.")
        if kind is list and not all(isinstance(each, dict) for each in value):
            raise NotAPrompt(f"`{name}` of the prompt is to be a list of objects.")
    if held.get("contents") == []:
        raise NotAPrompt("The prompt has no `contents`; a model needs at least one.")
    return {_FIELDS[name][0]: value for name, value in held.items()}
