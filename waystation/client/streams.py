"""Stream the events of an invocation as they are recorded, and optionally unfinished text of a model.

Events come from the server's long poll of the history, text from the heartbeats of the model's activity. So a stream
adds nothing to the history and involves no worker; while an invocation waits for an approver it costs nothing at all.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Protocol

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowHandle
from temporalio.converter import DataConverter

from waystation.core import ids
from waystation.core.entry import ModelReplied
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.partial import PartialText, PartialTexts, Piece
from waystation.core.wire import MODEL_ACTIVITY
from waystation.core.work import Work
from waystation.history import check_readable, decode_histories, log_of, read_history_file

LOOK_S = 0.1
"""How often heartbeats are read while a model generates text; workers send no more of them."""


class StreamSource(Protocol):
    """What a stream needs of an invocation."""

    handle: WorkflowHandle[Any, Any]

    @property
    def id(self) -> str:
        """Id of the invocation."""

    @property
    def converter(self) -> DataConverter:
        """Reads payloads."""

    def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever history has grown."""


async def stream_events(invocation: StreamSource, *, start: int = 0, partial: bool = False) -> AsyncGenerator[Event]:
    """Yield events from index `start` on; see `Invocation.stream`."""
    shown = start
    async with aclosing(stream_logs(invocation, partial=partial)) as coming:
        async for log, pieces in coming:
            for event in new_events(log, shown, pieces):
                yield event
            shown = max(shown, len(log.events))


async def stream_logs(invocation: StreamSource, *, partial: bool) -> "AsyncGenerator[tuple[Log, PartialTextReader]]":
    """Yield the log when it has grown, and, with `partial`, when a model has generated more text."""
    pieces = PartialTextReader(invocation)
    logs = invocation.follow()
    log: Log | None = None
    coming: asyncio.Task[Log] = asyncio.ensure_future(anext(logs))
    try:
        while True:
            growing = partial and log is not None and pieces.may_grow(log)
            done, _ = await asyncio.wait((coming,), timeout=LOOK_S if growing else None)
            if done:
                try:
                    log = coming.result()
                except StopAsyncIteration:
                    return
                coming = asyncio.ensure_future(anext(logs))
            if growing and log is not None and not done:
                await pieces.look(log)
            if log is not None and (done or pieces.new):
                yield log, pieces
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await coming


def new_events(log: Log, shown: int, pieces: "PartialTextReader") -> Iterator[Event]:
    """Yield new pieces of text, and events from index `shown` on, each after the last piece of its text."""
    yield from pieces.take()
    replies = pieces.replies(log)
    for number in pieces.lost(log):
        if number not in replies:
            yield from pieces.close(number)
    for event in log.events[shown:]:
        replied = next((n for n, content in replies.items() if content == event.content), None)
        if replied is not None:
            del replies[replied]
            yield from pieces.close(replied, replied=True)
        yield event
    for left in replies:  # of an agent that was stopped meanwhile
        yield from pieces.close(left)


class PartialTextReader:
    """Reads the unfinished text of one invocation's model calls from heartbeats."""

    def __init__(self, invocation: StreamSource) -> None:
        self._invocation = invocation
        self._texts = PartialTexts()
        self._works: dict[int, Work] = {}
        self._entries = 0
        self.new: list[Event] = []

    def may_grow(self, log: Log) -> bool:
        """Whether a model call is in flight that streams its text."""
        return bool(log.input and log.input.streaming and log.models_at_work)

    async def look(self, log: Log) -> None:
        """Add to `new` the text since the last look."""
        described = await self._invocation.handle.describe()
        at_work = log.models_at_work
        for activity in described.raw_description.pending_activities:
            if activity.activity_type.name != MODEL_ACTIVITY:
                continue
            number = _number(activity)
            # What the log does not know yet, or any more, has its turn when it is recorded.
            if number in at_work:
                self._works[number] = at_work[number]
                told = await _told(activity, self._invocation.converter)
                self._add(self._texts.look(number, max(activity.attempt, 1), told))

    def take(self) -> list[Event]:
        """Return the new events, once."""
        new, self.new = self.new, []
        return new

    def replies(self, log: Log) -> dict[int, Any]:
        """Return the contents of the replies that came since the last time, of calls of which text was shown."""
        fresh = log.entries[self._entries :] if self._texts.shown else ()
        self._entries = len(log.entries)
        replied = [entry.body for entry in fresh if isinstance(entry.body, ModelReplied)]
        return {b.number: b.reply.content for b in replied if b.reply.content and b.number in self._texts.shown}

    def close(self, number: int, *, replied: bool = False) -> list[Event]:
        """Return the last pieces of a call."""
        self._add(self._texts.close(number, replied=replied))
        return self.take()

    def lost(self, log: Log) -> list[int]:
        """Return the numbers of calls that work no more, and of which text was shown."""
        return [number for number in self._texts.shown if number not in log.models_at_work]

    def _add(self, pieces: Iterator[Piece]) -> None:
        for piece in pieces:
            work = self._works[piece.number]
            self.new.append(
                piece.event(
                    invocation_id=self._invocation.id, author=work.agent, branch=work.branch, timestamp=time.time()
                )
            )


async def stream_file(
    path: str | Path, *, start: int = 0, converter: DataConverter = DataConverter.default
) -> AsyncIterator[Event]:
    """Yield the events that a history in a file tells of, as a stream of a finished invocation would.

    Args:
        path: A file as `waystation history`, `temporal workflow show -o json` and the Web UI's download write it.
        start: How many events to pass over.
        converter: As the client's, for payloads that its codec has encoded.

    Raises:
        ForeignHistory: It is not one of ours, or it is damaged.
    """
    histories = await decode_histories((await asyncio.to_thread(read_history_file, Path(path))).histories, converter)
    check_readable(histories, repr(str(path)))
    for event in log_of(histories).events[start:]:
        yield event


def _number(activity: PendingActivityInfo) -> int:
    name = activity.activity_id.removeprefix(ids.model_replied(0)[:-1])
    return int(name) if name.isdecimal() else 0


async def _told(activity: PendingActivityInfo, converter: DataConverter) -> PartialText | None:
    if not activity.heartbeat_details.payloads:
        return None
    try:
        (details,) = await converter.decode(activity.heartbeat_details.payloads)
        return PartialText.model_validate(details)
    except Exception:  # noqa: BLE001  # another program's, or for a codec, which raises anything
        return None
