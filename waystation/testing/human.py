"""A scripted approver for tests."""

from collections.abc import AsyncIterator
from typing import Any

import structlog

from waystation.client import Invocation
from waystation.core.approval import PendingCall
from waystation.core.contract import Event
from waystation.core.payload import JsonObject

_log = structlog.get_logger()


class ScriptedHuman:
    """Follows an invocation and answers each pending call with the next scripted answer, except calls of machines.

    If no answer is left for a call, a warning is logged, and the call remains pending.
    """

    def __init__(self, *answers: JsonObject | str) -> None:
        """Set the answers: each an action such as `"approve"`, or an answer's fields: `{"action": "respond", …}`."""
        self._answers = [{"action": answer} if isinstance(answer, str) else answer for answer in answers]
        self.asked: list[PendingCall] = []
        """The calls that this human has answered, each as it was when it was still pending."""
        self.receipts: list[JsonObject] = []

    async def attend(self, invocation: Invocation) -> list[Event]:
        """Answer pending calls until the invocation ends, and return its events."""
        return [event async for event in self.follow(invocation)]

    async def follow(self, invocation: Invocation) -> AsyncIterator[Event]:
        """Yield the invocation's events, and answer pending calls between them."""
        answered, in_progress, unanswered, seen = set[str](), set[str](), set[str](), 0
        # Follow the log instead of the events, because a call may become pending without an event.
        async for log in invocation.follow():
            events = log.state.events[seen:]
            seen = len(log.state.events)
            for event in events:
                yield event
            for call in await invocation.pending():
                if call.machine:
                    continue
                id = call.function_call_id
                # After an answer that reports progress, wait until it is recorded before sending the next answer.
                if id in answered or (id in in_progress and not events):
                    continue
                if self._answers:
                    fields: dict[str, Any] = {"function_call_id": id, **self._answers.pop(0)}
                    (in_progress if fields["action"] == "progress" else answered).add(id)
                    self.asked.append(call)
                    self.receipts.append(await invocation.answer(**fields))
                elif id not in unanswered:  # the warning explains why a test never ends
                    unanswered.add(id)
                    _log.warning(
                        "scripted_human.answers_exhausted",
                        invocation_id=invocation.id,
                        function_call_id=id,
                        tool=call.tool,
                    )
