"""Schedule an activity of the engine itself: one call form, with timeouts from the worker's settings."""

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.workflow import ActivityCancellationType

from waystation.core.settings import ActivityOptions, Retries, WorkflowSettings
from waystation.workflows.ports import raw, result_of

SETTINGS = "waystation.settings"
"""The external function under which the worker's workflow runner passes its settings."""
_DEFAULTS = WorkflowSettings()


def settings() -> WorkflowSettings:
    """Return the worker's settings; the defaults where the runner passes none, as when a history is replayed."""
    passed = workflow.extern_functions().get(SETTINGS)
    return passed() if passed else _DEFAULTS


def retry_policy(retries: Retries) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=retries.initial_interval,
        backoff_coefficient=retries.backoff_coefficient,
        maximum_interval=retries.maximum_interval,
        maximum_attempts=retries.maximum_attempts,
    )


async def execute_engine_activity(
    name: str,
    params: bytes,
    options: ActivityOptions,
    *,
    summary: str,
    activity_id: str | None = None,
    cancellation: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL,
) -> bytes:
    """Return the activity's result as JSON.

    Raises:
        ActivityError: It failed for good, was lost, or was cancelled.
    """
    result = await workflow.execute_activity(
        name,
        raw(params),
        activity_id=activity_id,
        result_type=RawValue,
        start_to_close_timeout=options.start_to_close,
        schedule_to_close_timeout=options.schedule_to_close,
        heartbeat_timeout=options.heartbeat,
        retry_policy=retry_policy(options.retries),
        cancellation_type=cancellation,
        summary=summary,
    )
    return result_of(result.payload)
