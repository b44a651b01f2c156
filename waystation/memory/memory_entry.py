"""A memory and the result of a search. Import this module only when needed: genai's types take a second to import."""

from typing import Any

from google.genai.types import Content
from pydantic import BaseModel, field_serializer


class MemoryEntry(BaseModel):
    """A stored event, or a note that was added directly."""

    content: Content
    custom_metadata: dict[str, Any] = {}
    id: str | None = None
    """The ID to pass to `delete_memory`. Defaults to the event's ID, or to a digest of the content."""
    author: str | None = None
    timestamp: str | None = None
    """The time of the event in ISO 8601 format. The model sees it."""

    @field_serializer("content")
    def _without_nulls(self, content: Content) -> Any:
        # Leave out nulls to keep the model's input short: a Part has a dozen fields that are rarely set.
        return content.model_dump(mode="json", exclude_none=True)


class SearchMemoryResponse(BaseModel):
    """The memories that a search found, best match first."""

    memories: list[MemoryEntry] = []
