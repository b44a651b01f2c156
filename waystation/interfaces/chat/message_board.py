"""Keep the messages of a chat like the pending calls, however long the chat or this process was away.

Each round compares the pending calls with the stored messages, so nothing depends on an event that could be missed. A
process that is lost after it has posted a message, and before it has stored it, posts the call again. A click on the
first message makes it known again.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Protocol

import structlog
from temporalio.service import RPCError

from waystation.client import AgentClient
from waystation.core.approval import PendingCall
from waystation.core.errors import StoreFailed
from waystation.core.payload import digest
from waystation.interfaces.chat.chat_store import ChatStore, Message
from waystation.web.call_answers import CallView, view_call
from waystation.web.http_responses import RequestRefused
from waystation.web.pending_list import READ_LIMIT

log = structlog.get_logger("waystation.interfaces")

MESSAGE = "message"
ROUND_S = 1.0
PAUSE_S = 10.0
"""How long to leave a channel, or the Temporal server, alone after a failure. A chat may ask for longer."""


class ChatFailed(Exception):
    """The chat did not do what it was asked to. The message does not contain a secret."""

    def __init__(self, reason: str, *, retry_after_s: float = 0.0, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        """How long the chat wants to receive no more requests."""
        self.is_gone = is_gone
        """Whether the message no longer exists."""


class Messenger(Protocol):
    """Posts messages in a chat. All methods raise ChatFailed."""

    async def post(self, channel: str, view: CallView) -> str:
        """Post a message about a call, and return the message's ID."""

    async def update(self, channel: str, message: str, view: CallView) -> None:
        """Show the call in a message as it is now."""

    async def remind(self, channel: str, message: str) -> None:
        """Point people to a message again."""


@dataclass(frozen=True, kw_only=True)
class ChannelRoutes:
    """Which channels show a call. The names are those that policies use in `notify`."""

    channels: Mapping[str, str]
    """The ID of each channel in the chat."""
    default: Sequence[str] = ()
    operators: Sequence[str] = ()

    def find(self, call: PendingCall) -> list[str]:
        """Return the IDs of a call's channels, including those of its past escalations."""
        policy, usual = call.policy, self.default
        if call.kind == "unknown":
            usual = self.operators or self.default
            named = usual  # its policy names the channels of the workers' file
        else:
            named = usual if policy is None or policy.notify is None else policy.notify
        past = [notice for notice in policy.notices() if notice.escalates][: call.level] if policy else []
        names = [*named, *(name for notice in past for name in notice.notify or ())]
        return list(dict.fromkeys(self.channels[name] for name in names if name in self.channels))


class MessageBoard:
    """The messages about pending calls."""

    def __init__(
        self,
        client: AgentClient,
        store: ChatStore,
        messenger: Messenger,
        routes: ChannelRoutes,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._store, self._messenger, self._routes = client, store, messenger, routes
        self._clock, self._lock = clock, asyncio.Lock()
        self._paused: dict[str, float] = {}
        """Until when channels get no requests."""

    async def run(self) -> None:
        """Keep the messages current until the task is cancelled. Failures end a round, and later rounds catch up."""
        while True:
            try:
                await self.sync()
                pause_s = ROUND_S
            except (RPCError, StoreFailed) as error:
                pause_s = PAUSE_S
                log.warning("messages.late", error_type=type(error).__name__, problem=str(error))
            await asyncio.sleep(pause_s)

    async def sync(self) -> None:
        """Post the calls that have no message, and update the messages whose call has changed.

        A channel that fails gets no further requests for a while.

        Raises:
            RPCError: The Temporal server is not available.
            StoreFailed: The store is not available.
        """
        async with self._lock:
            pages = [await self._client.approvals.list(limit=READ_LIMIT, unknown=unknown) for unknown in (False, True)]
            calls = {call.approval_id: call for page in pages for call in page.calls}
            messages = await self._store.find_all(MESSAGE, Message)
            shown = {(message.approval_id, message.channel) for message in messages}
            for call in sorted(calls.values(), key=lambda call: call.requested_at):
                channels = (channel for channel in self._routes.find(call) if (call.approval_id, channel) not in shown)
                missing = [channel for channel in channels if not self._is_paused(channel)]
                # Visibility may still list a call that was just answered.
                if missing and (view := await self._view(call.approval_id)) and view.standing == "open":
                    for channel in missing:
                        await self._post(channel, view)
            for message in messages:
                pending = calls.get(message.approval_id)
                if self._is_paused(message.channel):
                    continue
                if pending is None or message.version != make_version(pending):
                    await self._refresh(message)
                elif self._due(pending) > message.reminders:
                    await self._remind(message, pending)

    async def refresh(self, approval_id: str, *, clicked: Message | None = None) -> None:
        """Update the messages about a call now, and the one that somebody clicked, even if it was never stored.

        Raises:
            StoreFailed: The store is not available.
        """
        async with self._lock:
            messages = {message.id: message for message in await self._store.find_all(MESSAGE, Message)}
            if clicked is not None and clicked.id not in messages:
                await self._save(clicked)
                messages[clicked.id] = clicked
            for message in messages.values():
                if message.approval_id == approval_id:
                    await self._refresh(message)

    async def _view(self, approval_id: str) -> CallView | None:
        try:
            return await view_call(self._client, approval_id)
        except RequestRefused as refused:
            log.warning("call.not_read", approval_id=approval_id, kind=refused.kind)
            return None

    async def _post(self, channel: str, view: CallView) -> None:
        with self._pausing(channel):
            message = Message(
                approval_id=view.id,
                channel=channel,
                message=await self._messenger.post(channel, view),
                version=make_version(view.pending),
                reminders=self._due(view.pending),
            )
            await self._save(message)

    async def _refresh(self, message: Message) -> None:
        view = await self._view(message.approval_id)
        if view is None:
            return
        version = make_version(view.pending)
        is_open = view.standing == "open"
        with self._pausing(message.channel):
            try:
                if message.version != version or not is_open:
                    await self._messenger.update(message.channel, message.message, view)
            except ChatFailed as error:
                if not error.is_gone:
                    raise
                is_open = False  # forget the message, so that an open call is posted again
            if is_open:
                await self._save(message.model_copy(update={"version": version}))
            else:
                await self._store.take(MESSAGE, message.id, Message)

    async def _remind(self, message: Message, call: PendingCall) -> None:
        with self._pausing(message.channel):
            await self._messenger.remind(message.channel, message.message)
            await self._save(message.model_copy(update={"reminders": self._due(call)}))

    def _is_paused(self, channel: str) -> bool:
        return self._paused.get(channel, 0.0) > self._clock()

    @contextmanager
    def _pausing(self, channel: str) -> Iterator[None]:
        """Pause a channel if the chat fails."""
        try:
            yield
        except ChatFailed as error:
            log.warning("channel.paused", channel=channel, problem=str(error))
            self._paused[channel] = self._clock() + max(error.retry_after_s, PAUSE_S)

    async def _save(self, message: Message) -> None:
        await self._store.put(MESSAGE, message.id, message, until=inf)

    def _due(self, call: PendingCall) -> int:
        """Return how many of the policy's reminders are due. After an outage, people are reminded once."""
        now, reminders = self._clock(), call.policy.reminders if call.policy else ()
        return sum(call.requested_at + after.total_seconds() <= now for after in reminders)


def make_version(call: PendingCall) -> str:
    """Return a digest of what a message shows of a call and what can change while it is pending."""
    parts = call.digest, call.question, list(call.approved_by), call.claimed_by, call.level, call.deadline
    return digest(list(parts))
