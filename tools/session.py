"""The conversation that a call belongs to, as tools see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waystation.core.event import Event


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A copy: what is changed here is not recorded; write to `tool_context.state`."""

    id: str
    app_name: str = ""
    user_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()
