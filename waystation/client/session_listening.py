"""Everything that is said in a session while it is said, by whichever of its invocations."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waystation.client.session_begun import Begun
from waystation.client.streams import ticks, with_pieces
from waystation.core.event import Event
from waystation.core.log import Log

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient, Invocation
    from waystation.client.session_client import Session

BACKLOG = 100
"""How much may have been heard and not taken; more is left where it is, in history."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What is new of one invocation."""

    invocation: "Invocation"
    log: Log
    """All of it; it grows."""
    events: list[Event]


async def follow(session: "Session") -> AsyncIterator[Event]:
    """Yield all events of a session; see `Session.follow`."""
    begun = Begun(session.client.temporal, session.id)
    # In this order: what the session was told by now is in the events that are read next.
    await begun.caught_up()
    told = set(begun.told)
    recorded = await session.events()
    for event in recorded:
        yield event
    async with aclosing(listen(session.client, begun, known=counted(recorded), passed_over=told)) as heard:
        async for one in heard:
            for event in one.events:
                yield event


def counted(events: list[Event]) -> Counter[str]:
    """Return how many events there are of each invocation."""
    return Counter(event.invocation_id for event in events)


async def listen(
    client: "AgentClient",
    begun: Begun,
    *,
    known: Mapping[str, int],
    passed_over: set[str],
    partial: bool = False,
) -> AsyncGenerator[Heard]:
    """Yield what is new in the invocations of a session, until it ends.

    Args:
        client: Connected.
        begun: Which invocations there are, opened.
        known: How many events of an invocation need not be told.
        passed_over: Invocations of which nothing need be told.
        partial: Whether to tell text that a model has not finished saying.
    """
    heard: asyncio.Queue[Heard | None] = asyncio.Queue(BACKLOG)

    async def hear(invocation_id: str) -> None:
        invocation = client.invocation(invocation_id)
        shown = known.get(invocation_id, 0)
        async with aclosing(ticks(invocation, partial=partial)) as coming:
            async for log, pieces in coming:
                events = list(with_pieces(log, shown, pieces))
                shown = max(shown, len(log.events))
                await heard.put(Heard(invocation, log, events))

    async def hear_all() -> None:
        taken = 0
        async with asyncio.TaskGroup() as hearing:
            more = True
            while more or taken < len(begun.order):
                for invocation_id in begun.order[taken:]:
                    taken += 1
                    if invocation_id not in passed_over:
                        hearing.create_task(hear(invocation_id))
                more = await begun.more() if more else False
        await heard.put(None)

    everything = asyncio.create_task(hear_all())
    try:
        while True:
            coming = asyncio.ensure_future(heard.get())
            await asyncio.wait((coming, everything), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                if everything.exception():
                    raise _cause(everything.exception())
                coming = asyncio.ensure_future(heard.get())
            one = await coming
            if one is None:
                return
            yield one
    finally:
        everything.cancel()
        await asyncio.gather(everything, return_exceptions=True)


def _cause(error: BaseException | None) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error
