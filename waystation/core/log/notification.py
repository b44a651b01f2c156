"""Notifications to approvers: a call is waiting, it has not been answered yet, it was decided, or it expired.

Also the events that programs receive. Neither ever delays the agent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from pydantic import Field

from waystation.core.approval import Notice
from waystation.core.contract import Position
from waystation.core.log.call import CallState
from waystation.core.log.entry_ref import NotificationRef
from waystation.core.payload import Recorded

EventKind = Literal["ended", "held", "waiting"]
Occasion = Literal["asked", "reminder", "escalation", "decided", "expired"]


class NotifyInput(Position):
    """Input of the activity that notifies approvers. The activity reads the call from the log."""

    function_call_id: str
    occasion: Occasion
    number: int = 0
    """For a reminder or an escalation: its number within the current wait, starting at 1."""
    channels: tuple[str, ...]
    """Channel names from the workers' configuration. Addresses and keys never appear in a history."""
    requested_at: float | None = None
    """The time at which the call started to wait, in seconds since 1970. It is passed here because the log that
    activities read has no times."""
    deadline: float | None = None
    """The time at which the wait ends, in seconds since 1970, or None if the call is no longer waiting."""


class OutgoingEvent(Recorded):
    """An event for programs, and the input of the workflow that delivers it. It has no content of the conversation."""

    event: EventKind
    endpoints: tuple[str, ...]
    """Endpoint names from the workers' configuration. Addresses and keys never appear in a history."""
    key: str
    """Distinguishes the event from others of the invocation."""
    time: float
    """When it happened, in seconds since 1970."""
    invocation_id: str
    agent: str
    """Name of the root agent."""
    app: str
    user_id: str
    tenant: str | None = None
    session_id: str | None = None
    status: str | None = None
    """How the invocation ended: completed, failed or cancelled."""
    reason: str | None = None
    """The type of the error of a failed invocation, or why the work is held."""
    function_call_id: str | None = None
    tool: str | None = None


class NoticeReport(Recorded):
    """The result of a notification on each channel."""

    delivered: tuple[str, ...] = ()
    """Names of the channels that delivered the notification."""
    failed: dict[str, str] = Field(default_factory=dict)
    """Maps each failed channel to the type of its error."""
    mark: str = ""
    """A value that distinguishes the attempts at the same notification."""


def call_url(inbox: str, approval_id: str, token: str | None) -> str:
    """Return the URL of a call in the inbox. With a link token, the page opens without a login.

    The token follows a `#`. Browsers do not send that part of a URL to servers, so no proxy can log it.
    """
    page = f"{inbox}/approvals/{quote(approval_id, safe='')}"
    return f"{page}#link={token}" if token else page


@dataclass(frozen=True, slots=True)
class DueNotification:
    """A notification that is due to be sent."""

    function_call_id: str
    wait: int
    """Number of the wait that the notification is about. A call can wait more than once."""
    occasion: Occasion
    channels: tuple[str, ...]
    number: int = 0
    """For a reminder or an escalation: its number within the wait, starting at 1."""

    @property
    def ref(self) -> NotificationRef:
        """Reference to the notification's log entry."""
        return NotificationRef(self.function_call_id, self.wait, f"{self.occasion}{self.number or ''}")


def due_notification(
    call: CallState, occasion: Occasion, usual: tuple[str, ...], notice: Notice | None = None
) -> DueNotification | None:
    """Return the notification for a call, or None if there is no channel to notify.

    Args:
        call: The call.
        occasion: The reason for the notification.
        usual: Channels to notify if neither the notice nor the policy sets them. An empty list notifies nobody.
        notice: The reminder or escalation in the policy, if the notification is one.
    """
    named = (notice.notify if notice else None, call.policy.notify if call.policy else None, usual)
    channels = next(names for names in named if names is not None)
    return DueNotification(call.id, call.waits, occasion, channels, call.noticed if notice else 0) if channels else None


def latest_notifications(due_now: Sequence[DueNotification]) -> list[DueNotification]:
    """Return the notifications to send when several are due at once, keeping only the latest for each call.

    If no worker was running for a while, reminders can be due for calls whose deadline has already passed. A call that
    was closed before its first notification is not reported at all.
    """
    last = {notification.function_call_id: notification for notification in due_now}
    begun = {notification.function_call_id for notification in due_now if notification.occasion == "asked"}
    # If a call was closed before approvers were notified of it, there is nothing left to report.
    return [
        notification
        for notification in last.values()
        if not (notification.function_call_id in begun and notification.occasion in ("decided", "expired"))
    ]
