"""A person who answers whatever waits, as scripted."""

from collections.abc import AsyncIterator
from typing import Any

import structlog

from waystation.client import Invocation
from waystation.core import Event, JsonObject, PendingCall

_log = structlog.get_logger()


class ScriptedHuman:
    """Watches an invocation and answers each call that waits with the next answer of the script."""

    def __init__(self, *answers: JsonObject | str) -> None:
        """Each answer is an action such as `"approve"`, or an answer's fields: `{"action": "respond", …}`."""
        self._answers = [{"action": answer} if isinstance(answer, str) else answer for answer in answers]
        self.asked: list[PendingCall] = []
        """What waited when an answer was given."""
        self.receipts: list[JsonObject] = []

    async def attend(self, invocation: Invocation) -> list[Event]:
        """Follow the invocation to its end, answering; return its events."""
        return [event async for event in self.follow(invocation)]

    async def follow(self, invocation: Invocation) -> AsyncIterator[Event]:
        """Yield the invocation's events, answering in between."""
        answered, in_progress, unanswered, seen = set[str](), set[str](), set[str](), 0
        # Not its events alone: a call may begin to wait in silence.
        async for log in invocation.follow():
            events = log.state.events[seen:]
            seen = len(log.state.events)
            for event in events:
                yield event
            for call in await invocation.pending():
                id = call.function_call_id
                # The answer after a progress is given once the progress is recorded.
                if id in answered or (id in in_progress and not events):
                    continue
                if self._answers:
                    fields: dict[str, Any] = {"function_call_id": id, **self._answers.pop(0)}
                    (in_progress if fields["action"] == "progress" else answered).add(id)
                    self.asked.append(call)
                    self.receipts.append(await invocation.answer(**fields))
                elif id not in unanswered:  # a test that waits for ever shows it
                    unanswered.add(id)
                    _log.warning(
                        "scripted_human.has_no_further_answer",
                        invocation_id=invocation.id,
                        function_call_id=id,
                        tool=call.tool,
                    )
