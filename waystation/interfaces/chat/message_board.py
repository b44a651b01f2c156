"""Keep the messages of a chat like the pending calls, however long the chat or this process was away.

Each round compares the pending calls with the stored messages, so nothing depends on an event that could be missed. A
process that is lost after it has posted a message, and before it has stored it, posts the call again.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from math import inf
from typing import Any, Protocol

import structlog

from waystation.client import AgentClient
from waystation.core.approval import PendingCall
from waystation.core.payload import digest
from waystation.interfaces.chat.chat_store import ChatStore, Message
from waystation.web.call_answers import CallView, view_call
from waystation.web.http_responses import RequestRefused
from waystation.web.pending_list import READ_LIMIT

log = structlog.get_logger("waystation.interfaces")

MESSAGE, BOARD = "message", "board"
ROUND_S = 1.0
LEASE_S = 60.0
"""After how long another process continues if this one is lost."""
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


class MessageBoard:
    """The messages about pending calls."""

    def __init__(
        self,
        client: AgentClient,
        store: ChatStore,
        messenger: Messenger,
        *,
        channels: Mapping[str, str],
        default: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the board. `channels` has the IDs of channels by the names that policies use in `notify`."""
        self._client, self._store, self._messenger = client, store, messenger
        self._channels, self._default, self._clock = channels, default, clock
        self._paused: dict[str, float] = {}
        """Until when channels get no requests."""
        self._failed: dict[str, float] = {}
        """When messages failed. Rounds begin with the others, so none of them waits for a message that always fails."""

    async def run(self) -> None:
        """Keep the messages current until the task is cancelled. Failures end a round, and later rounds catch up.

        Of several processes with the same store, one does it, and another takes over when it stops.
        """
        owner = secrets.token_hex(16)
        try:
            while True:
                pause_s = ROUND_S
                try:
                    if await self._store.claim(BOARD, BOARD, owner, until=self._clock() + LEASE_S):
                        await self.sync()
                except Exception as error:  # noqa: BLE001  # one call must not end the messages about all others
                    pause_s = PAUSE_S
                    log.warning("messages.late", error_type=type(error).__name__, problem=str(error))
                await asyncio.sleep(pause_s)
        finally:
            await self._store.claim(BOARD, BOARD, owner, until=0.0)

    async def sync(self) -> None:
        """Post the calls that have no message, and update the messages whose call has changed.

        A channel that fails gets no further requests for a while.

        Raises:
            RPCError: The Temporal server is not available.
            StoreFailed: The store is not available.
        """
        pages = [await self._client.approvals.list(limit=READ_LIMIT, unknown=unknown) for unknown in (False, True)]
        calls = {call.approval_id: call for page in pages for call in page.calls}
        messages = {message.id: message for message in await self._store.find_all(MESSAGE, Message)}
        for call in sorted(calls.values(), key=lambda call: call.requested_at):
            for channel in self._find_channels(call):
                message = Message(approval_id=call.approval_id, channel=channel)
                messages.setdefault(message.id, message)
        for message in sorted(messages.values(), key=lambda message: self._failed.get(message.id, 0.0)):
            if self._paused.get(message.channel, 0.0) > self._clock():
                continue
            try:
                await self._update(message, calls.get(message.approval_id))
            except Exception:
                self._failed[message.id] = self._clock()
                raise

    def _find_channels(self, call: PendingCall) -> list[str]:
        """Return the IDs of a call's channels, including those of its past escalations."""
        policy = call.policy
        # The policy of a call with an unknown outcome names the channels of the workers' file.
        named = policy.notify if policy and call.kind != "unknown" else None
        past = [notice for notice in policy.notices() if notice.escalates][: call.level] if policy else []
        names = list(self._default if named is None else named)
        names += [name for notice in past for name in notice.notify or ()]
        return list(dict.fromkeys(self._channels[name] for name in names if name in self._channels))

    async def _update(self, message: Message, call: PendingCall | None) -> None:
        """Show a call, which is None if it is no longer listed, in its message, and send a reminder if one is due."""
        try:
            if call is None or message.version != make_version(call):
                await self._show(message)
            elif (due := self._count_due(call)) > message.reminders:
                await self._messenger.remind(message.channel, message.message)
                await self._save(message, reminders=due)
        except ChatFailed as error:
            if error.is_gone:  # an open call is posted again
                await self._store.take(MESSAGE, message.id, Message)
                return
            self._failed[message.id] = self._clock()
            log.warning("channel.paused", channel=message.channel, problem=str(error))
            self._paused[message.channel] = self._clock() + max(error.retry_after_s, PAUSE_S)

    async def _show(self, message: Message) -> None:
        try:
            view = await view_call(self._client, message.approval_id)
        except RequestRefused as refused:
            log.warning("call.not_read", approval_id=message.approval_id, kind=refused.kind)
            if refused.status is HTTPStatus.NOT_FOUND:
                await self._store.take(MESSAGE, message.id, Message)
            return
        version, is_open = make_version(view.pending), view.standing == "open"
        posted = message.message
        if posted and (message.version != version or not is_open):
            await self._messenger.update(message.channel, posted, view)
        elif is_open and not posted:  # the list may still contain a call that was just answered
            posted = await self._messenger.post(message.channel, view)
        if is_open:
            await self._save(message, message=posted, version=version, reminders=self._count_due(view.pending))
        else:
            await self._store.take(MESSAGE, message.id, Message)

    async def _save(self, message: Message, /, **changes: Any) -> None:
        await self._store.put(MESSAGE, message.id, message.model_copy(update=changes), until=inf)

    def _count_due(self, call: PendingCall) -> int:
        """Return how many of the policy's reminders are due. After an outage, people are reminded once."""
        now, reminders = self._clock(), call.policy.reminders if call.policy else ()
        return sum(call.requested_at + after.total_seconds() <= now for after in reminders)


def make_version(call: PendingCall) -> str:
    """Return a digest of what a message shows of a call and what can change while it is pending."""
    parts = call.digest, call.question, list(call.approved_by), call.claimed_by, call.level, call.deadline
    return digest(list(parts))
