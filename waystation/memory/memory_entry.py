"""One memory, and what a search finds. Not imported before somebody has one: genai's types take a second to import."""

from typing import Any

from google.genai.types import Content
from pydantic import BaseModel, field_serializer


class MemoryEntry(BaseModel):
    """Something that was said or noted once."""

    content: Content
    custom_metadata: dict[str, Any] = {}
    id: str | None = None
    """By which it can be deleted: the id of the event that it was, or one made from what it says."""
    author: str | None = None
    timestamp: str | None = None
    """When it happened, in ISO 8601. Models are shown it."""

    @field_serializer("content")
    def _without_nulls(self, content: Content) -> Any:
        """Models are shown this too, and a Part has a dozen fields that are seldom set."""
        return content.model_dump(mode="json", exclude_none=True)


class SearchMemoryResponse(BaseModel):
    """What a search found, the best first."""

    memories: list[MemoryEntry] = []
