"""Record the metrics of invocations with the meter of Temporal's SDK, whose exporter also exports the SDK's metrics."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import structlog
from cachetools import LRUCache
from temporalio.common import MetricCounter, MetricHistogramFloat, MetricMeter
from temporalio.runtime import Runtime
from temporalio.worker import Interceptor, WorkflowInterceptorClassInput

from waystation.core.budget import Price
from waystation.core.log import Log
from waystation.models.known_models import known_models
from waystation.worker.export_thread import ExportThread
from waystation.worker.metrics import FROM_LOG, QUOTA_SECONDS, REFUSED, Measurement, Metric, measure, when_requested
from waystation.workflows.ports import COUNT_REFUSED, MEASURE

log = structlog.get_logger("waystation.worker")

MAX_RUNS = 10_000
"""Maximum number of runs for which the export remembers how many entries it has counted. An entry of another run may be
counted again if its workflow task is repeated."""
MAX_VALUES = 500
"""Maximum number of values of each label in one process. Further values count as `other`."""
MAX_BOUND = 5_000
"""Maximum number of instruments that the export keeps with the values of their labels, which take most of the time of a
measurement."""
OTHER = "other"
MAX_CHARS = 100
"""Maximum length of a label's value. The rest is cut off."""
BUCKETS: Mapping[str, Sequence[float]] = {
    metric.name: metric.buckets for metric in (*FROM_LOG, QUOTA_SECONDS) if metric.buckets
}
"""Buckets of the histograms, for `PrometheusConfig(histogram_bucket_overrides=...)`."""


class _MetricTask(NamedTuple):
    """A workflow task that was run, and what the export needs of the state that later tasks may change."""

    run_id: str
    log: Log
    length: int
    is_replaying: bool
    requested_at: Mapping[str, float]


class MetricExport(Interceptor):
    """An interceptor for workers that counts what happens to the invocations whose workflows they run."""

    def __init__(self, meter: MetricMeter | None = None, *, tenants: bool = False) -> None:
        """Configure the export.

        Args:
            meter: Records the metrics. By default, the meter of the default `Runtime`, which needs `metrics` in its
                `TelemetryConfig`.
            tenants: Whether metrics with the label `agent` also have the label `tenant`.
        """
        meter = meter or Runtime.default().metric_meter
        self._tenants = tenants
        # The exporter appends `_total`.
        self._instruments = {
            metric: meter.create_histogram_float(metric.name, metric.description)
            if metric.buckets
            else meter.create_counter(metric.name.removesuffix("_total"), metric.description)
            for metric in FROM_LOG
        }
        self._find = lru_cache(MAX_BOUND)(self._bind)
        self._counted: LRUCache[str, int] = LRUCache(MAX_RUNS)
        """Number of counted entries of each run, including those before a snapshot."""
        self._values: dict[str, set[str]] = {}
        # Appending to them, and removing from them, is atomic.
        self._tasks = deque[_MetricTask]()
        self._refused = deque[str]()
        self._thread = ExportThread("waystation-metrics", self._export)

    def receive(self, run_id: str, log: Log, is_replaying: bool) -> None:
        """Count the entries of a run that have not been counted. Called in the threads of workflow tasks."""
        requested_at = {} if is_replaying else when_requested(log)
        self._tasks.append(_MetricTask(run_id, log, log.length, is_replaying, requested_at))

    def close(self) -> None:
        """Count what has not been counted, which otherwise takes up to two seconds."""
        self._thread.close()

    def _export(self) -> None:
        while self._refused:
            self._record(Measurement(REFUSED, 1, {"reason": self._refused.popleft()}), None)
        while self._tasks:
            task = self._tasks.popleft()
            try:
                self._count(task)
            except Exception:  # the entries of the other runs must be counted
                log.exception("metrics.not_recorded", run_id=task.run_id)

    def _count(self, task: _MetricTask) -> None:
        start = max(self._counted.get(task.run_id, 0), task.log.entries_before)
        self._counted[task.run_id] = max(start, task.length)
        if not task.is_replaying and start < task.length:
            entries, started = task.log.since(start)[: task.length - start], task.log.state.input
            for measurement in measure(task.log, entries, task.requested_at, _find_price):
                self._record(measurement, started.tenant if started else None)

    def _record(self, measurement: Measurement, tenant: str | None) -> None:
        """Record a measurement. Values of labels are replaced if there would be too many."""
        match self._find(measurement.metric, tuple(measurement.labels.items()), tenant):
            case MetricHistogramFloat() as histogram:
                histogram.record(measurement.value)
            case counter:
                counter.add(int(measurement.value))

    def _bind(
        self, metric: Metric, labels: tuple[tuple[str, str], ...], tenant: str | None
    ) -> MetricHistogramFloat | MetricCounter:
        if self._tenants and "agent" in metric.labels:
            labels = (*labels, ("tenant", tenant or ""))
        attributes = {name: self._limit(name, value) for name, value in labels}
        return self._instruments[metric].with_additional_attributes(attributes)

    def _limit(self, name: str, value: str) -> str:
        value = value[:MAX_CHARS]
        values = self._values.setdefault(name, set())
        if value not in values and len(values) >= MAX_VALUES:
            return OTHER
        values.add(value)
        return value

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:
        """Let workflows pass their logs to the export, and the reasons for which updates are refused."""
        self._thread.start()
        input.unsafe_extern_functions.update({MEASURE: self.receive, COUNT_REFUSED: self._refused.append})


def _find_price(model: str) -> Price | None:
    known = known_models().find(model)
    return known.price if known else None
