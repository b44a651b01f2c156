"""Schedule the engine's activities from the table in `core.projection.engine_activities`."""

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput
from temporalio.workflow import ActivityCancellationType

from waystation.core.contract import ActivityOptions, Retries, WorkflowSettings
from waystation.core.log import Body, EntryRef, Failure
from waystation.core.payload import Recorded
from waystation.core.projection import EngineActivity, kind_of
from waystation.workflows.ports import failure_of, raw, result_of

SETTINGS = "waystation.settings"
"""Name of the external function that returns the worker's settings."""
SEARCHABLE = "waystation.searchable"
"""Name of the external function that returns whether the namespace has the search attributes at the moment."""
IS_CACHED = "waystation.is_cached"
"""Name of the external function that returns whether the worker caches workflows."""
SIGNAL_TIMES = "waystation.signal_times"
"""Name of the external function that returns when the signals of a run arrived at the server, given its workflow ID and
run ID."""
_DEFAULTS = WorkflowSettings()


def settings() -> WorkflowSettings:
    """Return the worker's settings, or the defaults if the worker does not pass any."""
    passed = workflow.extern_functions().get(SETTINGS)
    return passed() if passed else _DEFAULTS


def searchable(tenant: str | None) -> bool:
    """Return whether the namespace has the search attributes that an invocation needs. `tenant` is None if it has none.

    The result reflects what this worker currently knows, so it may differ on replay.
    """
    passed = workflow.extern_functions().get(SEARCHABLE)
    return passed(tenant) if passed else True


def signal_times() -> list[float]:
    """Return when the signals of this run arrived at the server, as far as this worker knows. May differ on replay."""
    passed, info = workflow.extern_functions().get(SIGNAL_TIMES), workflow.info()
    return passed(info.workflow_id, info.run_id) if passed else []


def is_cached() -> bool:
    """Return whether this worker keeps workflows in memory between workflow tasks. May differ on replay."""
    passed = workflow.extern_functions().get(IS_CACHED)
    return passed() if passed else False


class SettingsInterceptor(Interceptor):
    """Gives workflows access to the worker's settings and to the server's current state."""

    def __init__(
        self,
        settings: WorkflowSettings,
        searchable: Callable[[str | None], bool] = lambda _tenant: True,
        signal_times: Callable[[str, str], list[float]] = lambda _workflow_id, _run_id: [],
        *,
        is_cached: bool = False,
    ) -> None:
        self._settings, self._searchable, self._signal_times = settings, searchable, signal_times
        self._is_cached = is_cached

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions[SETTINGS] = lambda: self._settings
        input.unsafe_extern_functions[SEARCHABLE] = self._searchable
        input.unsafe_extern_functions[SIGNAL_TIMES] = self._signal_times
        input.unsafe_extern_functions[IS_CACHED] = lambda: self._is_cached
        return None


def retry_policy(retries: Retries) -> RetryPolicy:
    """Return the settings as Temporal's retry policy."""
    return RetryPolicy(
        initial_interval=retries.initial_interval,
        backoff_coefficient=retries.backoff_coefficient,
        maximum_interval=retries.maximum_interval,
        maximum_attempts=retries.maximum_attempts,
    )


async def execute_engine_activity(
    activity: EngineActivity[Any],
    params: Recorded,
    *,
    summary: str | None,
    activity_id: str | None = None,
    options: ActivityOptions | None = None,
) -> bytes:
    """Run an activity and return its result as JSON. If `options` is given, it replaces the worker's settings for it.

    Raises:
        ActivityError: The activity failed, timed out or was canceled.
        ResultElsewhere: The result is not in this worker's store.
    """
    options = options or getattr(settings(), activity.settings)
    result = await workflow.execute_activity(
        activity.name,
        raw(params.encode()),
        activity_id=activity_id,
        result_type=RawValue,
        start_to_close_timeout=options.start_to_close,
        schedule_to_close_timeout=options.schedule_to_close,
        heartbeat_timeout=options.heartbeat,
        retry_policy=retry_policy(options.retries),
        cancellation_type=(
            ActivityCancellationType.ABANDON if activity.abandoned else ActivityCancellationType.TRY_CANCEL
        ),
        summary=summary,
    )
    return result_of(result.payload)


async def entry_of(
    activity: EngineActivity[Any],
    ref: EntryRef,
    params: Recorded,
    *,
    summary: str | None,
    options: ActivityOptions | None = None,
) -> Body:
    """Run an activity and return the log entry for its result or failure."""
    try:
        result: bytes | Failure = await execute_engine_activity(
            activity, params, activity_id=str(ref), summary=summary, options=options
        )
    except ActivityError as error:
        result = failure_of(error)
    return kind_of(ref).to_entry(ref, result)
