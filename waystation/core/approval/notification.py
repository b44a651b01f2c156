"""Notifications of approvers: a call waits, nobody has answered yet, it was decided or expired.

They never delay the agent.
"""

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
    """Input of the activity that notifies approvers. It reads the call from the log."""

    function_call_id: str
    occasion: Occasion
    number: int = 0
    """Number of the reminder or escalation in the wait, from 1."""
    channels: tuple[str, ...]
    """Names in the workers' configuration; addresses and keys never enter a history."""
    requested_at: float | None = None
    """When the call began to wait, in seconds since 1970. Here because the log in activities has no times."""
    deadline: float | None = None
    """When the wait ends, in seconds since 1970; None if the call no longer waits."""


class NoticeReport(Recorded):
    """Result of a notification, by channel."""

    delivered: tuple[str, ...] = ()
    """Names of channels."""
    failed: dict[str, str] = Field(default_factory=dict)
    """Names of channels, each with the type of its error."""
    mark: str = ""
    """Distinguishes the attempts at one notification."""


def call_url(inbox: str, approval_id: str, token: str | None) -> str:
    """Return the URL of a call in the inbox. A link token opens the page without a login.

    The token follows the `#`, which browsers do not send to servers, so no proxy logs it.
    """
    page = f"{inbox}/approvals/{quote(approval_id, safe='')}"
    return f"{page}#link={token}" if token else page


@dataclass(frozen=True, slots=True)
class DueNotification:
    """A due notification."""

    function_call_id: str
    wait: int
    """Ordinal of the wait; a call can wait more than once."""
    occasion: Occasion
    channels: tuple[str, ...]
    number: int = 0
    """Number of the reminder or escalation, from 1."""

    @property
    def ref(self) -> NotificationRef:
        """Reference of the notification."""
        return NotificationRef(self.function_call_id, self.wait, f"{self.occasion}{self.number or ''}")


def due_notification(
    call: CallState, occasion: Occasion, usual: tuple[str, ...], notice: Notice | None = None
) -> DueNotification | None:
    """Return the notification of a call; None without channels.

    Args:
        call: The call.
        occasion: The reason for the notification.
        usual: Channels to notify when the policy names none.
        notice: The reminder or escalation, if it is one.
    """
    channels = (notice.notify if notice else ()) or (call.policy.notify if call.policy else ()) or usual
    return DueNotification(call.id, call.waits, occasion, channels, call.noticed if notice else 0) if channels else None


def latest_notifications(due_now: Sequence[DueNotification]) -> list[DueNotification]:
    """Return the notifications to send out of several that are due at once: only the latest of each call.

    After a time without workers, reminders can be due for calls whose deadline has passed.
    """
    last = {notification.function_call_id: notification for notification in due_now}
    begun = {notification.function_call_id for notification in due_now if notification.occasion == "asked"}
    # Nobody needs a notification of a call that began and ended before the first one was sent.
    return [
        notification
        for notification in last.values()
        if not (notification.function_call_id in begun and notification.occasion in ("decided", "expired"))
    ]
