"""Record the metrics of invocations with the meter of Temporal's SDK, whose exporter also exports the SDK's metrics."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock

import structlog
from cachetools import LRUCache
from temporalio.common import MetricCounter, MetricHistogramFloat, MetricMeter
from temporalio.exceptions import ApplicationError
from temporalio.runtime import Runtime
from temporalio.worker import (
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from waystation.core import ANSWER_UPDATE, Log, Price
from waystation.models.known_models import known_models
from waystation.worker.metrics import FROM_LOG, QUOTA_SECONDS, REFUSED, Measurement, Metric, measure
from waystation.workflows.ports import MEASURE

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
        self._lock = Lock()

    def receive(self, run_id: str, log: Log, is_replaying: bool) -> None:
        """Count the entries of a run that have not been counted. Called in the threads of workflow tasks."""
        with self._lock:
            start = max(self._counted.get(run_id, 0), log.entries_before)
            self._counted[run_id] = max(start, log.length)
        if not is_replaying and start < log.length:
            tenant = log.state.input.tenant if log.state.input else None
            for measurement in measure(log, start, _find_price):
                self.record(measurement, tenant)

    def record(self, measurement: Measurement, tenant: str | None) -> None:
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
        with self._lock:
            values = self._values.setdefault(name, set())
            if value not in values and len(values) >= MAX_VALUES:
                return OTHER
            values.add(value)
            return value

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """Let workflows pass their logs to the export, and count the answers that an update's validator refuses."""
        export = self

        def receive(run_id: str, invocation: Log, is_replaying: bool) -> None:
            try:
                export.receive(run_id, invocation, is_replaying)
            except Exception:  # a fault here must not fail a workflow task
                log.exception("metrics.not_recorded", run_id=run_id)

        class RefusedUpdates(WorkflowInboundInterceptor):
            def handle_update_validator(self, input: HandleUpdateInput) -> None:
                try:
                    super().handle_update_validator(input)
                except ApplicationError as error:
                    if input.update == ANSWER_UPDATE:
                        export.record(Measurement(REFUSED, 1, {"reason": error.type or ""}), None)
                    raise

        input.unsafe_extern_functions[MEASURE] = receive
        return RefusedUpdates


def _find_price(model: str) -> Price | None:
    known = known_models().find(model)
    return known.price if known else None
