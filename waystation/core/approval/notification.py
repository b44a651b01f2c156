"""People are told that a call waits, that nobody has answered yet, and how it ended. It never delays the agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from pydantic import Field

from waystation.core.activity_io import Position
from waystation.core.approval.policy import Notice
from waystation.core.call import CallState
from waystation.core.log.entry_ref import NotificationRef
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


@dataclass(frozen=True, slots=True)
class Due:
    """People are to be told of a call."""

    function_call_id: str
    wait: int
    """Which of the times that the call waits."""
    occasion: Occasion
    channels: tuple[str, ...]
    number: int = 0
    """Which reminder or escalation, from 1."""

    @property
    def ref(self) -> NotificationRef:
        """Reference of the notification."""
        return NotificationRef(self.function_call_id, self.wait, f"{self.occasion}{self.number or ''}")


def due(call: CallState, occasion: Occasion, usual: tuple[str, ...], notice: Notice | None = None) -> Due | None:
    """Return whom to tell of a call; None when there is nobody.

    Args:
        call: The call.
        occasion: What there is to tell.
        usual: Channels that are told when the policy names none.
        notice: For a reminder or an escalation: which.
    """
    channels = (notice.notify if notice else ()) or (call.policy.notify if call.policy else ()) or usual
    return Due(call.id, call.waits, occasion, channels, call.noticed if notice else 0) if channels else None


def worth_sending(found: Sequence[Due]) -> list[Due]:
    """Return which of several that come at once people should hear of: of each call only the last word.

    After a time without workers, reminders may be due that the deadline has overtaken.
    """
    last = {each.function_call_id: each for each in found}
    begun = {each.function_call_id for each in found if each.occasion == "asked"}
    # Of what began and ended before anybody could be told of it, nobody need hear.
    return [
        each
        for each in last.values()
        if not (each.function_call_id in begun and each.occasion in ("decided", "expired"))
    ]
