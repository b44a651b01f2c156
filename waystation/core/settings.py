"""Settings of a worker: its stores, and the timeouts and limits of workflows and activities.

One frozen value, passed explicitly, so that tests can pass another one.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often and how soon the server repeats an activity that failed."""

    initial_interval: timedelta = _SECOND
    backoff_coefficient: float = 2.0
    maximum_interval: timedelta | None = None
    """None: 100 times the initial interval."""
    maximum_attempts: int = 0
    """0: no limit."""


@dataclass(frozen=True, kw_only=True)
class ActivityOptions:
    """Timeouts and retries of one kind of activity."""

    start_to_close: timedelta
    """Limit of one attempt."""
    schedule_to_close: timedelta | None = None
    """Limit of all attempts together."""
    heartbeat: timedelta | None = None
    """A worker without a heartbeat for this long counts as lost."""
    retries: Retries = field(default_factory=Retries)


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Timeouts and retries of tool calls that do not set their own."""

    timeout: timedelta = timedelta(minutes=10)
    """Enforced inside the activity: if Temporal timed the activity out, it would repeat the side effect."""
    grace: timedelta = timedelta(seconds=30)
    """Added to the server's timeout for each try, so that it fires only when the worker is lost."""
    heartbeat: timedelta = timedelta(seconds=30)
    lost_worker_attempts: int = 3
    """Attempts at a repeatable call after its worker was lost. Limited, because the tool may crash the worker."""
    schedule_to_start: timedelta = timedelta(days=7)
    """Limit of the wait for a worker of the task queue."""


@dataclass(frozen=True, kw_only=True)
class WorkflowSettings:
    """Timeouts and retries of the activities that workflows schedule."""

    model: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(minutes=10),
        heartbeat=timedelta(seconds=30),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=8),
    )
    tool: ToolOptions = ToolOptions()
    deliver_scopes: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE,
        heartbeat=timedelta(seconds=10),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=30),
    )
    """Retried for a quarter of an hour or more; a scope applies a repeated delivery once."""
    child_outcome: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(seconds=30),
        retries=Retries(backoff_coefficient=1.5, maximum_interval=timedelta(seconds=15)),
    )
    """Polls a called agent that an earlier run started. The server repeats the poll without an event in the history and
    without occupying a worker."""
    stopped_child_outcome: ActivityOptions = ActivityOptions(
        start_to_close=timedelta(seconds=30),
        retries=Retries(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=2)),
    )
    review: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE,
        # An identity provider may be down for some minutes.
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
    take_over: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=5)
    )
    archive: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=3)
    )
    collect: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE,
        # The session starts no message until it knows whether the worker is lost.
        heartbeat=timedelta(seconds=10),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=20),
    )
    """Retried for about ten minutes. After that the transcript has the message, but not the events after it."""
    archive_session: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=3)
    )
    """The session starts no message during this; a transcript that cannot be stored stays in this run's history."""


@dataclass(frozen=True, kw_only=True)
class ActivitySettings:
    """Limits inside activities for callbacks and toolsets of authors."""

    callback_timeout: timedelta = timedelta(minutes=2)
    """Limit of one callback, and of one summary of older events."""
    toolset_timeout: timedelta = timedelta(minutes=1)
    """Limit of listing the tools of one toolset."""
    toolset_retry: timedelta = timedelta(seconds=8)
    """How long a tool call waits for its failing toolset to recover."""


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Stores for data that is kept outside histories."""

    payloads: str | Path | None = None
    """Large payloads and archived logs: a folder, or a URL such as `s3://bucket/prefix`. Clients need the same one.
    None: the variable WAYSTATION_STORE, or `.waystation/payloads`."""
    offload_over: int = 256 * 1024
    """Payloads of at least this many bytes are offloaded."""
    artifacts: str | Path = Path(".waystation", "artifacts")
    """A folder, or a URL."""
    memory: Path = Path(".waystation", "memory.db")
    credentials: str | Path = Path(".waystation", "credentials")
    """An encrypted file, `keyring:NAME`, or `python:MODULE:NAME`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a worker except the agents that it serves."""

    stores: Stores = Stores()
    workflow: WorkflowSettings = WorkflowSettings()
    activity: ActivitySettings = ActivitySettings()
    concurrent_activities: int = 100
    """Limit of concurrent activities, and the number of threads, because each sync tool occupies one."""
    drain: timedelta = timedelta(seconds=30)
    """How long running tools may continue after SIGTERM."""
    allow_overrides: bool = False
    """Whether forks may replace instruction and model; for development."""
