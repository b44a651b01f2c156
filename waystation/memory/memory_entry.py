"""One memory, and the result of a search. Imported late, because genai's types take a second to import."""

from typing import Any

from google.genai.types import Content
from pydantic import BaseModel, field_serializer


class MemoryEntry(BaseModel):
    """A stored event or note."""

    content: Content
    custom_metadata: dict[str, Any] = {}
    id: str | None = None
    """Identifies it for deletion: the id of its event, or a digest of its content."""
    author: str | None = None
    timestamp: str | None = None
    """When it happened, in ISO 8601. Models receive it."""

    @field_serializer("content")
    def _without_nulls(self, content: Content) -> Any:
        # For models: a Part has a dozen fields that are rarely set.
        return content.model_dump(mode="json", exclude_none=True)


class SearchMemoryResponse(BaseModel):
    """The result of a search, best match first."""

    memories: list[MemoryEntry] = []
