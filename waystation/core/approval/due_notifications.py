"""When people are told of a call: it begins to wait, nobody has answered for a while, it is decided or too late."""

from collections.abc import Sequence
from dataclasses import dataclass

from waystation.core.approval.notification import Occasion
from waystation.core.approval.policy import Notice
from waystation.core.call import CallState
from waystation.core.log.entry_ref import NotificationRef


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
        kind = f"{self.occasion}{self.number}" if self.number else self.occasion
        return NotificationRef(self.function_call_id, self.wait, kind)


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
    over = ("decided", "expired")
    # Of what began and ended before anybody could be told of it, nobody need hear.
    return [each for each in last.values() if not (each.function_call_id in begun and each.occasion in over)]
