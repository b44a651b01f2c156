"""Artifacts and memory, as tools and callbacks reach them."""

from tools.readonly_context import ReadonlyContext


class ArtifactAccess(ReadonlyContext):
    """Named files with versions."""


class MemoryAccess(ReadonlyContext):
    """What is remembered over sessions."""
