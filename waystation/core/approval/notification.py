"""People are told that a call waits, that nobody has answered yet, and how it ended. It never delays the agent."""

from typing import Literal
from urllib.parse import quote

from pydantic import Field

from waystation.core.activity_io import Position
from waystation.core.payload import Recorded

Occasion = Literal["asked", "reminder", "escalation", "decided", "expired"]


class NotifyInput(Position):
    """Input of the activity that tells people. What there is to tell is read from the log."""

    function_call_id: str
    occasion: Occasion
    number: int = 0
    """Which it is among all reminders and escalations of the wait, from 1."""
    channels: tuple[str, ...]
    """Names, as the workers are configured: addresses and keys never enter a history."""
    requested_at: float | None = None
    """When the call began to wait, in seconds since 1970; activities read no times from the log."""
    deadline: float | None = None
    """Until when an answer counts; None when it waits no more."""


class NoticeReport(Recorded):
    """Who was told."""

    delivered: tuple[str, ...] = ()
    """Names of channels."""
    failed: dict[str, str] = Field(default_factory=dict)
    """Names of channels, and the type of the error of each."""
    mark: str = ""
    """Tells the attempts of one notice apart."""


def address(inbox: str, approval_id: str, token: str | None) -> str:
    """Return where the inbox shows a call; the token of a link opens it for strangers.

    It stands behind the `#`, which browsers send to no server: it is in no log of a proxy.
    """
    page = f"{inbox}/approvals/{quote(approval_id, safe='')}"
    return f"{page}#link={token}" if token else page
