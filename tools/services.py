"""What a worker offers to tools besides their arguments: where artifacts, memories and credentials are kept."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """The services of one worker process; None for one that it does not have."""

    artifacts: Any = None
    memory: Any = None
    credentials: Any = None


NO_SERVICES = Services()
