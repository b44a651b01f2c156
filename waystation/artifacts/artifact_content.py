"""A Part taken apart into what is kept as a file and what is kept beside it, and put together again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from waystation.artifacts.artifact_key import is_reference
from waystation.core.errors import InputValidationError, NotJson
from waystation.core.payload import JsonObject, encode, plain

if TYPE_CHECKING:
    from google.genai.types import Part

Carrier = Literal["inlineData", "text", "fileData"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactContent:
    """What one version of an artifact holds. Nothing in it is shared with the Part that it was made from."""

    part: JsonObject
    """The Part as genai's JSON, without what is in `data`."""
    carrier: Carrier
    """Which field of the Part the data belongs into."""
    data: bytes | None
    """The bytes, or the text as UTF-8; None when the Part only says where the content is."""

    @property
    def mime_type(self) -> str | None:
        """The type of the content; unknown for a reference to another artifact."""
        if self.carrier == "text":
            return "text/plain"
        if is_reference(self.file_uri):
            return None
        found: str | None = self.part[self.carrier].get("mimeType")
        return found

    @property
    def file_uri(self) -> str | None:
        """Where the content is, when it is elsewhere."""
        found: str | None = self.part["fileData"].get("fileUri") if self.carrier == "fileData" else None
        return found

    def digest(self, custom_metadata: JsonObject) -> str:
        """Return a digest that only the same content with the same metadata has."""
        said = hashlib.sha256(encode([self.part, self.carrier, custom_metadata]))
        said.update(b"\0" if self.data is None else b"\1" + self.data)
        return said.hexdigest()


def content_of(artifact: Part | dict[str, Any]) -> ArtifactContent:
    """Take a Part apart.

    Raises:
        InputValidationError: It is not a Part, holds nothing that can be kept, or cannot be written.
    """
    from google.genai.types import Part  # takes a second to import; here somebody has a Part anyway

    part = Part.model_validate(artifact) if isinstance(artifact, dict) else artifact
    if not isinstance(part, Part):
        raise InputValidationError(
            f"An artifact is a google.genai.types.Part, not {type(part).__name__}; "
            "use types.Part.from_text(text=...) or types.Part.from_bytes(data=..., mime_type=...)."
        )
    if part.inline_data is not None:
        data = part.inline_data.data
        # Without the bytes, which would be written as base64.
        rest = part.model_copy(update={"inline_data": part.inline_data.model_copy(update={"data": None})})
        return ArtifactContent(part=_json(rest), carrier="inlineData", data=data)
    if part.text is not None:
        rest = part.model_copy(update={"text": None})
        return ArtifactContent(part=_json(rest), carrier="text", data=part.text.encode("utf-8", "surrogatepass"))
    if part.file_data is not None:
        return ArtifactContent(part=_json(part), carrier="fileData", data=None)
    raise InputValidationError("Not supported artifact type.")  # ADK's literal


def part_of(content: ArtifactContent) -> Part:
    """Put a Part together again."""
    from google.genai.types import Blob, Part

    part = Part.model_validate(content.part)
    if content.data is None:
        return part
    if content.carrier == "text":
        return part.model_copy(update={"text": content.data.decode("utf-8", "surrogatepass")})
    blob = (part.inline_data or Blob()).model_copy(update={"data": content.data})
    return part.model_copy(update={"inline_data": blob})


def _json(part: Part) -> JsonObject:
    try:
        dumped: JsonObject = plain(part.model_dump(mode="json", by_alias=True, exclude_none=True))
    except (ValueError, NotJson) as error:
        raise InputValidationError(f"The artifact cannot be written as JSON: {error}") from None
    return dumped
