"""The services that a worker provides to tools: artifacts, memory, credentials and resources."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from waystation.tools.resources import Lifespan, Lifespans, Resources

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
    lifespans: Lifespans | None = None
    """Opens the resources of the worker's apps. If None, the worker opens them itself."""
    resources: Resources = field(default_factory=Resources)
    """The resources of one app."""

    def for_app(self, lifespan: Lifespan | None) -> Services:
        """Return the services with the resources that an app's lifespan has opened."""
        if lifespan is None or self.lifespans is None:
            return self
        return replace(self, resources=self.lifespans.find(lifespan))


NO_SERVICES = Services()
