"""Settings of a worker: its stores, and the timeouts and limits of workflows and activities.

The settings are one frozen value that is passed explicitly, so tests can pass a different one.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.core.budget import Quotas

_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)
MIN_HEARTBEAT_INTERVAL = timedelta(seconds=0.05)
"""Minimum interval between the heartbeats of an activity. Each takes about as long to reach the server and return."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How many times and how soon the server retries a failed activity."""

    initial_interval: timedelta = _SECOND
    backoff_coefficient: float = 2.0
    maximum_interval: timedelta | None = None
    """Maximum delay between attempts. None means 100 times the initial interval."""
    maximum_attempts: int = 0
    """Maximum number of attempts. 0 means no limit."""


@dataclass(frozen=True, kw_only=True)
class ActivityOptions:
    """Timeouts and retries of one kind of activity."""

    start_to_close: timedelta
    """Time limit for a single attempt."""
    schedule_to_close: timedelta | None = None
    """Time limit for all attempts together, or None for no limit."""
    heartbeat: timedelta | None = None
    """A worker that sends no heartbeat for this long is considered lost. None means that no heartbeats are expected.
    The worker sends one each third of it."""
    retries: Retries = field(default_factory=Retries)


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Timeouts and retries for tools that do not configure their own."""

    timeout: timedelta = timedelta(minutes=10)
    """Time limit for one try of the tool. The activity enforces it, because Temporal would run the tool again after a
    timeout of its own."""
    grace: timedelta = timedelta(seconds=30)
    """Time by which the server's timeout for a try exceeds `timeout`, so that the server's timeout fires only if the
    worker is lost."""
    heartbeat: timedelta = timedelta(seconds=30)
    lost_worker_attempts: int = 3
    """Maximum number of additional attempts at a repeatable call whose worker was lost. There is a limit because the
    tool itself may crash the worker."""
    schedule_to_start: timedelta = timedelta(days=7)
    """How long a call may wait for a worker on its task queue before the call fails."""
    quick: timedelta = timedelta(seconds=1)
    """How long a quick tool may run inside a workflow task. After that, it runs again as an ordinary activity. The
    workflow handles nothing else in the meantime, so this must be well below the workflow task timeout."""


@dataclass(frozen=True, kw_only=True)
class HoldOptions:
    """How long and how often workers retry a held call. The attempts add no events to the history."""

    limit: timedelta = timedelta(days=7)
    retries: Retries = Retries(maximum_interval=_MINUTE)


@dataclass(frozen=True, kw_only=True)
class WorkflowSettings:
    """Timeouts and retries for the activities that workflows schedule."""

    model: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(minutes=10),
        heartbeat=timedelta(seconds=30),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=8),
    )
    """For model calls. `start_to_close` must exceed `ActivitySettings.model_timeout`: it also covers callbacks."""
    tool: ToolOptions = ToolOptions()
    hold: HoldOptions = HoldOptions()
    deliver_scopes: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE,
        heartbeat=timedelta(seconds=10),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=30),
    )
    """Delivers writes to `user:` and `app:` state. Retried for at least 20 minutes. A scope applies a repeated delivery
    only once."""
    child_outcome: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(seconds=30),
        retries=Retries(backoff_coefficient=1.5, maximum_interval=timedelta(seconds=15)),
    )
    """Polls a called agent that an earlier run of the caller started. Each poll is an attempt of the same activity, so
    repeating it adds no events to the history and occupies no worker between attempts."""
    stopped_child_outcome: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(seconds=30),
        retries=Retries(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=2)),
    )
    review: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE,
        # An identity provider may be unavailable for several minutes.
        schedule_to_close=timedelta(minutes=15),
        heartbeat=timedelta(seconds=15),
        retries=Retries(maximum_interval=_MINUTE),
    )
    notify: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(minutes=2),
        schedule_to_close=timedelta(hours=1),
        heartbeat=timedelta(seconds=15),
        retries=Retries(maximum_interval=_MINUTE),
    )
    deliver_event: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(seconds=30),
        schedule_to_close=timedelta(days=3),
        retries=Retries(initial_interval=timedelta(seconds=5), maximum_interval=timedelta(hours=1)),
    )
    """Delivers an event to one endpoint."""
    push: ActivityOptions = ActivityOptions(start_to_close=_MINUTE, retries=Retries(maximum_attempts=3))
    """Sends the state of a task to its push configurations. The workflow repeats it."""
    take_over: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=5)
    )
    archive: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=3)
    )
    collect: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE,
        # Short, because a session cannot begin its next invocation while a lost worker has not been noticed.
        heartbeat=timedelta(seconds=10),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=20),
    )
    """Reads an invocation's events for its session. Retried for at least ten minutes. If all attempts fail, the
    transcript has the invocation's message but not its other events."""
    archive_session: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=3)
    )
    """Stores a session's transcript before the session continues as new. The session does not begin an
    invocation in the meantime. If the transcript cannot be stored, the session stays in its current run."""


@dataclass(frozen=True, kw_only=True)
class ActivitySettings:
    """Limits that activities enforce on models, callbacks and toolsets."""

    model_timeout: timedelta = timedelta(minutes=9)
    """Time limit for one reply of a model, streamed or not. When it expires, the call is retried."""
    callback_timeout: timedelta = timedelta(minutes=2)
    """Time limit for one callback, and for one summary of older events."""
    toolset_timeout: timedelta = timedelta(minutes=1)
    """Time limit for listing the tools of one toolset."""
    toolset_retry: timedelta = timedelta(seconds=8)
    """How long a tool call retries to list the tools of a failing toolset before the call fails."""
    store_retry: timedelta = timedelta(seconds=15)
    """How long a tool call retries to use artifacts, memories or credentials whose store is not available."""
    text_interval: timedelta = timedelta(seconds=0.5)
    """Minimum interval between pieces of streamed text, which an invocation can override. Each piece is a heartbeat,
    and so a billable action."""
    cancel_within: timedelta | None = None
    """How soon a cancellation reaches a running model call, or a tool without a `cancel_within` of its own. Activities
    ask for it by heartbeats, which are billable actions. None means a third of the heartbeat timeout."""


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Stores for data that is kept outside histories."""

    payloads: str | Path | None = None
    """Store for large payloads and archived logs: a folder, or a URL such as `s3://bucket/prefix`. Clients must use the
    same store. None means the environment variable WAYSTATION_STORE or, if it is not set, `.waystation/payloads`."""
    offload_over: int = 256 * 1024
    """Payloads of at least this many bytes are offloaded to the payload store."""
    artifacts: str | Path = Path(".waystation", "artifacts")
    """Store for artifacts: a folder or a URL."""
    memory: str | Path = Path(".waystation", "memory.db")
    """Store for memories: an SQLite file, a PostgreSQL URL, or `python:MODULE:NAME`."""
    credentials: str | Path = Path(".waystation", "credentials")
    """Store for credentials: the path of an encrypted file, a PostgreSQL URL, or `python:MODULE:NAME`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a worker, apart from the agents that it serves.

    `concurrent_activities`, `drain` and `workflow_task_limit` apply to `create_worker`. A worker of your own with a
    `WaystationPlugin` has options of its own for them.
    """

    stores: Stores = Stores()
    workflow: WorkflowSettings = WorkflowSettings()
    activity: ActivitySettings = ActivitySettings()
    quotas: "Quotas | None" = None
    """Rate limits for models, and budgets for tenants and users. All workers must have the same ones."""
    concurrent_activities: int = 100
    """Maximum number of concurrent activities."""
    drain: timedelta = timedelta(seconds=30)
    """How long running tools may continue after the worker receives SIGTERM, before they are canceled."""
    event_loop_limit: timedelta = timedelta(seconds=20)
    """How long a tool may block the event loop of a worker process before the tool is stopped and the process exits.
    The default is shorter than the default heartbeat timeout, so that the worker's other tools do not time out. Zero
    means no limit. In your own program, the limit applies only if you pass `request_exit` to the plugin."""
    max_rss: int | None = None
    """Resident memory of the process, in bytes, above which the worker logs a warning and calls `request_exit`."""
    allow_forks: bool = False
    """Whether a new invocation may be a fork, which continues from an event of another invocation."""
    workflow_task_limit: timedelta = timedelta(seconds=20)
    """How long one workflow task may take before it fails as a potential deadlock. Ten thousand signals take one to
    four seconds, depending on the machine, and three times as long on a busy one, where with the SDK's limit of 2 s the
    task would fail again and again. The limit may exceed the workflow task timeout: the server allows more time from
    the fourth attempt at a task."""
    allow_overrides: bool = False
    """Whether forks may replace an agent's instruction and model. Intended for development."""
