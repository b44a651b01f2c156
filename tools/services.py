"""The services that a worker provides to tools: artifacts, memory and credentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.artifacts import BaseArtifactService
    from waystation.auth import BaseCredentialService
    from waystation.memory import BaseMemoryService


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """The services of one worker process. A service that is not configured is None."""

    artifacts: BaseArtifactService | None = None
    memory: BaseMemoryService | None = None
    credentials: BaseCredentialService | None = None


NO_SERVICES = Services()
