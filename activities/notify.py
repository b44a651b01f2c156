"""Tell people of a call: each channel once, however often the activity is tried, and none of them for another's sake.

What was delivered, or refused for good, is kept in the heartbeats, which the next attempt is given. A worker that is
lost in between may deliver a notice again: by its id a program sees that it is the same one.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from waystation.activities.channels import Channel, Channels, NotDelivered, Target
from waystation.activities.heartbeat import Heart, beating
from waystation.activities.identity import SignsLinks
from waystation.activities.notices import Notice, notice
from waystation.activities.view import Views
from waystation.core import ids
from waystation.core.call import CallState
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.log import Log
from waystation.core.notice import NoticeReport, NotifyInput, address
from waystation.core.payload import digest

events = structlog.get_logger("waystation.activities")

GIVE_UP_AFTER = timedelta(minutes=50)
"""So long, from when it was asked for, a channel that does not take a notice is tried again. The workflow waits 60."""
UNKNOWN = "UnknownChannel"


class Notifier:
    """Carries out the activity `notify`."""

    def __init__(
        self,
        views: Views,
        channels: Channels | None,
        sign: SignsLinks | None = None,
        *,
        give_up_after: timedelta = GIVE_UP_AFTER,
    ) -> None:
        self._views, self._sign, self._give_up_after = views, sign, give_up_after
        self._channels = channels or Channels({})

    async def notify(self, given: NotifyInput) -> bytes:
        """Return an encoded `NoticeReport`.

        Raises:
            ApplicationError: Some channel did not take the notice, and may yet.
        """
        info = activity.info()
        with beating() as heart:
            try:
                log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
                call = log.calls[given.function_call_id]
            except (ForeignHistory, KeyError) as error:
                raise ApplicationError(
                    "The call is not found.", type=type(error).__name__, non_retryable=True
                ) from None
            except StoreFailed as error:
                raise ApplicationError(str(error), type=type(error).__name__) from None
            told = _Told(heart, *info.heartbeat_details)
            telling = asyncio.gather(*(self._tell(name, given, log, call, told) for name in given.channels))
            try:
                failures = await asyncio.shield(telling)
            except asyncio.CancelledError:
                if not _is_over():
                    telling.cancel()
                    raise
                heart.stop()
                failures = await telling
        failed = {name: error for name, error in zip(given.channels, failures, strict=True) if error}
        again = datetime.now(UTC) - info.scheduled_time < self._give_up_after and not _is_over()
        if again and any(error.passing for error in failed.values()):
            names = ", ".join(f"{name} ({error})" for name, error in failed.items())
            raise ApplicationError(f"Not delivered to: {names}.", type="NotDelivered")
        delivered = tuple(name for name in given.channels if name not in failed)
        events.info(
            "notice.completed",
            invocation_id=log.invocation_id,
            function_call_id=call.id,
            occasion=given.occasion,
            attempt=info.attempt,
            delivered=delivered,
            failed=tuple(failed),
        )
        report = NoticeReport(
            delivered=delivered,
            failed={name: str(error) for name, error in failed.items()},
            mark=secrets.token_hex(3),
        )
        return report.encode()

    async def _tell(
        self, name: str, given: NotifyInput, log: Log, call: CallState, told: "_Told"
    ) -> NotDelivered | None:
        """Tell one channel, all of its addresses; return why one of them did not take it."""
        channel = self._channels.get(name)
        if channel is None:
            return NotDelivered(UNKNOWN, passing=False)
        info = activity.info()
        said = notice(
            log,
            call,
            given,
            namespace=info.namespace,
            link=self._link(log, call, channel),
            at=info.scheduled_time.timestamp(),
        )
        event = [info.namespace, info.workflow_id, info.activity_id, name]
        failures = await asyncio.gather(
            *(self._deliver(target, said, [*event, number], told) for number, target in enumerate(channel.targets))
        )
        # One that is worth another attempt counts most.
        return max((error for error in failures if error), key=lambda error: error.passing, default=None)

    async def _deliver(self, target: Target, said: Notice, event: list[object], told: "_Told") -> NotDelivered | None:
        id = f"msg_{digest(event)}"
        if id in told.ids:
            return None
        if id in told.refused:
            return NotDelivered(told.refused[id], passing=False)
        try:
            await target.deliver(said, id)
        except NotDelivered as error:
            if not error.passing:
                told.refuse(id, str(error))
            return error
        told.add(id)
        return None

    def _link(self, log: Log, call: CallState, channel: Channel) -> str | None:
        """Return where a call is shown: to whoever has the link, or to who logs in when no key signs links."""
        inbox = self._channels.inbox
        if inbox is None:
            return None
        approval_id = ids.approval(log.invocation_id, call.id)
        return address(inbox, approval_id, self._sign(approval_id, channel.person) if self._sign else None)


def _is_over() -> bool:
    """Whether the invocation has ended meanwhile: nothing is tried again then, but what was begun goes on."""
    details = activity.cancellation_details()
    return details is not None and details.not_found


class _Told:
    """Which addresses have taken the notice, and which refuse it for good, in this attempt and those before."""

    def __init__(self, heart: Heart, ids: Sequence[str] = (), refused: Mapping[str, str] | None = None) -> None:
        self._heart, self.ids, self.refused = heart, set(ids), dict(refused or {})
        self._tell()

    def add(self, id: str) -> None:
        """Remember one that has taken it."""
        self.ids.add(id)
        self._tell()

    def refuse(self, id: str, why: str) -> None:
        """Remember one that refuses it for good."""
        self.refused[id] = why
        self._tell()

    def _tell(self) -> None:
        if self.ids or self.refused:
            self._heart.tell(lambda: [sorted(self.ids), self.refused])
