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
        events = []
        async for event in self.follow(invocation):
            events.append(event)
        return events

    async def follow(self, invocation: Invocation) -> AsyncIterator[Event]:
        """Yield the invocation's events, answering in between."""
        answered, told, unanswered, seen = set[str](), set[str](), set[str](), 0
        # Not its events alone: a call may begin to wait in silence.
        async for log in invocation.follow():
            events = log.state.events[seen:]
            seen = len(log.state.events)
            for event in events:
                yield event
            for call in await invocation.pending():
                # The answer after a progress is given once the progress is recorded.
                waits = call.function_call_id not in told or events
                if call.function_call_id in answered or not waits:
                    continue
                if self._answers:
                    fields: dict[str, Any] = dict(self._answers.pop(0))
                    (told if fields["action"] == "progress" else answered).add(call.function_call_id)
                    self.asked.append(call)
                    action = fields.pop("action")
                    self.receipts.append(await invocation.answer(action, call.function_call_id, **fields))
                elif call.function_call_id not in unanswered:  # a test that waits for ever shows it
                    unanswered.add(call.function_call_id)
                    about = {"invocation_id": invocation.id, "function_call_id": call.function_call_id}
                    _log.warning("scripted_human.has_no_further_answer", **about, tool=call.tool)
