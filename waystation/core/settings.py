"""Settings of a worker: where it stores data, and the timeouts and limits of what it runs.

One frozen value, passed from the program to whatever needs it.
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
    """A worker that is silent for this long counts as lost."""
    retries: Retries = field(default_factory=Retries)


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Timeouts and retries of tool calls that do not set their own."""

    timeout: timedelta = timedelta(minutes=10)
    """The activity itself enforces it: Temporal repeats an activity that timed out, and its side effect with it."""
    grace: timedelta = timedelta(seconds=30)
    """Added to the server's timeout for each try, pauses included, so that it fires only when the worker is lost."""
    heartbeat: timedelta = timedelta(seconds=30)
    lost_worker_attempts: int = 3
    """How often a repeatable call is repeated after its worker was lost; the tool may be what kills workers."""
    schedule_to_start: timedelta = timedelta(days=7)
    """How long a call may wait for a worker of its task queue."""


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
        # An identity provider that is away may come back.
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
        # No message starts while the activity's worker may be lost.
        heartbeat=timedelta(seconds=10),
        retries=Retries(maximum_interval=_MINUTE, maximum_attempts=20),
    )
    """An invocation is read for about ten minutes; then its message stays, without what followed."""
    archive_session: ActivityOptions = ActivityOptions(
        start_to_close=_MINUTE, heartbeat=timedelta(seconds=10), retries=Retries(maximum_attempts=3)
    )
    """No message starts meanwhile; a transcript that cannot be stored stays in this run's history."""


@dataclass(frozen=True, kw_only=True)
class ActivitySettings:
    """Limits inside the activities, on what authors wrote."""

    callback_timeout: timedelta = timedelta(minutes=2)
    """Of one callback, and of one summary of older events."""
    toolset_timeout: timedelta = timedelta(minutes=1)
    """Of listing the tools of one toolset."""
    toolset_retry: timedelta = timedelta(seconds=8)
    """How long a call of a tool whose toolset fails is held for the toolset to come back."""


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Where a worker stores what does not belong into histories."""

    payloads: str | Path | None = None
    """Large payloads and archived logs: a folder, or a URL such as `s3://bucket/prefix`. Clients need the same one.
    None: the variable WAYSTATION_STORE, or `.waystation/payloads`."""
    offload_over: int = 256 * 1024
    """Payloads of this many bytes and more go there."""
    artifacts: str | Path = Path(".waystation", "artifacts")
    """A folder, or a URL."""
    memory: Path = Path(".waystation", "memory.db")
    credentials: str | Path = Path(".waystation", "credentials")
    """An encrypted file, `keyring:NAME`, or `python:MODULE:NAME`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set about a worker, except what it serves."""

    stores: Stores = Stores()
    workflow: WorkflowSettings = WorkflowSettings()
    activity: ActivitySettings = ActivitySettings()
    concurrent_activities: int = 100
    """How many model and tool calls run at a time. As many threads, because each sync tool occupies one."""
    drain: timedelta = timedelta(seconds=30)
    """How long running tools may continue after SIGTERM."""
    allow_overrides: bool = False
    """Whether forks may bring an instruction and a model; for development."""
