"""Activities on behalf of people: looking into what they answer, telling them what waits."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

from waystation.core import approval, ids, results
from waystation.core.entry import AnswerReviewed, Notified
from waystation.core.log import Log
from waystation.core.model_call import Position
from waystation.core.notice import NOTIFY_ACTIVITY, NotifyInput
from waystation.core.occasions import Due
from waystation.core.review import REVIEW_ACTIVITY, ReviewInput
from waystation.workflows.engine_activity import execute_engine_activity, settings
from waystation.workflows.ports import failure_of, now

LAST_NOTICES = "last-notices"
LAST_NOTICES_LIMIT = timedelta(seconds=3)
"""How long an end waits for people to be told of what caused it."""


async def review_answer(log: Log, ref: str, position: Position) -> AnswerReviewed:
    """Have a submitted answer looked into; return its entry."""
    answer = log.submitted[ref]
    call_id = ids.requesting_call(answer.function_call_id)
    given = ReviewInput(ref=ref, call=call_id, root=log.root, at=position.at, new=position.new)
    try:
        result = await execute_engine_activity(
            REVIEW_ACTIVITY,
            given.encode(),
            settings().review,
            activity_id=ids.review(ref),
            summary=f"looks into: {answer.action} {call_id}",
        )
        review = results.review(result)
    except ActivityError as error:
        review = results.review_lost(failure_of(error))
    log.advance(now())
    return approval.judge(log, ref, review, now())


async def notify(log: Log, due: Due, position: Position) -> Notified:
    """Have people told; return the entry."""
    call = log.calls[due.function_call_id]
    given = NotifyInput(
        at=position.at,
        new=position.new,
        function_call_id=due.function_call_id,
        occasion=due.occasion,
        number=due.number,
        channels=due.channels,
        requested_at=call.requested_at,
        deadline=call.deadline,
    )
    try:
        report = await execute_engine_activity(
            NOTIFY_ACTIVITY,
            given.encode(),
            settings().notify,
            activity_id=due.id,
            # It continues after the invocation ends: approvers should learn of the end, too.
            cancellation=ActivityCancellationType.ABANDON,
            summary=f"tells {', '.join(due.channels)}: {due.occasion} {due.function_call_id}",
        )
    except ActivityError as error:
        return results.notice_lost(due.id, failure_of(error))
    return results.notified(due.id, report)


async def begun(since: int, beside: Iterable[str]) -> bool:
    """Let people be told of what this very workflow task tells, and say whether that took any time.

    The server drops activities that begin together with the end of their workflow.

    Args:
        since: The length of the history when the newest notice began.
        beside: Ids of activities under way, kept up to date.
    """
    if workflow.info().get_current_history_length() != since or not workflow.patched(LAST_NOTICES):
        return False
    with suppress(TimeoutError):
        await workflow.wait_condition(lambda: not any(map(ids.is_notification, beside)), timeout=LAST_NOTICES_LIMIT)
    return True
