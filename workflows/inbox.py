"""Handle the signals and updates sent to an invocation, and refuse invalid ones."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

from waystation.core import ids
from waystation.core.approval import parse_answer
from waystation.core.errors import AnswerRefused, InvalidAnswer, InvalidInput, SessionRefused
from waystation.core.log import (
    NOT_FOUND,
    AnswerCounted,
    AnswerVerified,
    MessageRef,
    SignalClock,
    VerificationRequested,
    decision,
    intake,
    is_repeated,
)
from waystation.core.payload import JsonObject, decode
from waystation.core.projection import Carried
from waystation.workflows.engine_activity import is_cached, settings, signal_times
from waystation.workflows.log_writer import LogWriter
from waystation.workflows.ports import (
    count_refused,
    data_of,
    hand_over,
    now,
    observe,
    result_of,
    signal_data,
    target_result_of,
    why_missing,
)
from waystation.workflows.scheduler import Scheduler

FIND_PROGRESS = "no_op"
"""Type of the local activity that returns which of a session's invocations have done more than the session knows. It
did nothing when it was named."""
NEXT_TASK_S = 0.001
Refusal = TypeVar("Refusal", AnswerRefused, SessionRefused, InvalidInput)


class Inbox:
    """Turns the signals and updates sent to an invocation into log entries."""

    def __init__(self, writer: LogWriter, scheduler: Scheduler, carried: Carried | None) -> None:
        self._writer, self._scheduler = writer, scheduler
        self.signals, self.updates = (carried.signals, carried.updates) if carried else (0, 0)
        self._clock = SignalClock()
        self._before = self.signals
        self._times: list[float] = []
        """When the signals of this run arrived, as far as this worker has fetched the times."""

    def take_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """Record a signal with any name. Signals that do not count are recorded as ignored."""
        with self._writer.guard():
            self.signals += 1
            log = self._writer.log
            time = self._clock.advance(log, self.signals, now(), self._observe_arrival, log.advance)
            data = signal_data(values, self.signals)
            body = NOT_FOUND if data is None else intake.decide_signal(log, name, data, time)
            message = MessageRef("s", self.signals)
            ref = decision.ref_with_verdict(message, body)
            log.append(ref, now(), body)
            hand_over(ref, body, sum(map(len, data or ())))
            if isinstance(body, VerificationRequested):
                self._scheduler.verify(message)

    def _observe_arrival(self, mark: str, deadline: float, late: bool) -> bool:
        def arrived() -> bool:
            index = self.signals - self._before - 1
            if index >= len(self._times):
                self._times = signal_times()
            is_late = index >= len(self._times) or self._times[index] >= deadline
            return is_late is late

        return observe(mark, arrived)

    async def take_answer(self, params: RawValue) -> JsonObject:
        """Record the answer from an accepted update and return the receipt.

        Raises:
            ApplicationError: The answer was refused when it was verified.
            ResultElsewhere: The answer is not in this worker's store, although the worker that accepted it had found
                it.
        """
        answer = parse_answer(result_of(params.payload))
        call = self._writer.log.state.calls[ids.requesting_call(answer.function_call_id)]
        with self._writer.guard():
            self.updates += 1
            self._writer.note_command()
            message = MessageRef("u", self.updates)
            body = decision.decide_update(call, answer)
            if not isinstance(body, VerificationRequested):
                if isinstance(body, AnswerCounted):
                    message = replace(message, digest=answer.content_digest[:16])
                message = decision.ref_with_verdict(message, body)
                self._writer.record(message, body)
                hand_over(message, body, len(params.payload.data))
                return decision.receipt(call, answer)
            self._writer.record(decision.ref_with_verdict(message, body), body)
        # Shield the task, so that verification continues even if no client is waiting for the result anymore.
        verified = await asyncio.shield(self._scheduler.verify(message))
        if (
            isinstance(verified, AnswerVerified)
            and verified.refused
            and not is_repeated(call, answer, verified.review.who)
        ):
            raise typed(decision.refusal_from_name(verified.refused.reason, verified.refused.message))
        return decision.receipt(call, answer)

    def check_answer(self, params: RawValue) -> None:
        """Check that an update's answer counts. This is the validator of the update.

        Raises:
            ApplicationError: The answer does not count, so the server rejects the update. The error's type names the
                reason.
        """
        try:
            answer = parse_answer(sent_data(params, InvalidAnswer))
            decision.accept_update(self._writer.log, answer, now())
        except AnswerRefused as refused:
            count_refused(type(refused).__name__)
            raise typed(refused) from None


def typed(error: AnswerRefused | SessionRefused | InvalidInput) -> ApplicationError:
    """Return the error to raise from an update, so that the client receives the type of `error`."""
    return ApplicationError(str(error), type=type(error).__name__, non_retryable=True)


class Arrivals:
    """Waits until everything that arrived together in a workflow task has been applied.

    A worker that has the workflow in memory learns that an invocation has ended before it receives the next message. A
    worker that does not have the workflow in memory may receive both in one task, with the message first, and a replay
    may receive them separately again.

    The session may also learn that an invocation has ended long after its client does. So look at the histories of the
    invocations in the meantime.
    """

    def __init__(self) -> None:
        self._pauses = 0
        self._pause: asyncio.Task[Sequence[int]] | None = None

    async def applied(self, known: Callable[[], Mapping[int, int]]) -> Sequence[int]:
        """Wait until everything that arrived with the current workflow task has been applied.

        `known` returns the number of log entries that the session knows of each open invocation. Return the invocations
        that have ended, or wait for an answer, with more entries than that.
        """
        if self._pause is None or self._pause.done():
            self._pauses += 1
            self._pause = asyncio.create_task(_pause(self._pauses, known))
        return await asyncio.shield(self._pause)


async def _pause(number: int, known: Callable[[], Mapping[int, int]]) -> Sequence[int]:
    """Run the local activity. The SDK delivers its result after everything that arrived before.

    Start a timer instead if the activity fails, or if the worker does not cache workflows: local activities then stall
    until the workflow task has timed out. A timer delays the message, because servers fire timers up to a second late.
    Afterward, return all invocations, because any of them may have made progress.
    """
    if not observe(ids.uncached(number), lambda: not is_cached()):
        try:
            result = await workflow.execute_local_activity(
                FIND_PROGRESS,
                list(known().items()),
                result_type=RawValue,
                schedule_to_close_timeout=settings().tool.quick,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except FailureError:  # a replay raises the cause of the `ActivityError` that was raised at first
            pass
        else:
            return decode(target_result_of(result)) or ()  # earlier versions recorded null
    await workflow.sleep(NEXT_TASK_S, summary="yield")
    return list(known()) if observe(ids.unseen(number), lambda: True) else ()


def sent_data(params: RawValue, refusal: type[Refusal]) -> bytes:
    """Return the JSON in an update's argument. Raise `refusal` if this worker lacks its store or its key."""
    if problem := why_missing(params.payload):
        raise refusal(f"The message {problem}")
    return data_of(params.payload)
