"""Export the spans of invocations with OpenTelemetry.

Spans are derived from the log that a workflow keeps in memory, once its run ends or after it has waited for a while.
Activities only carry the ID of their span, so that spans and requests of tools become its children.
"""

import os
import threading
import time
from functools import lru_cache
from typing import NamedTuple

import structlog
from cachetools import LRUCache
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, Interceptor, WorkflowInterceptorClassInput

from waystation.activities import current_log
from waystation.core.log import CallRef, Log, ModelReplyRef, parse_ref
from waystation.version import waystation_version
from waystation.worker.export_thread import ExportThread
from waystation.worker.spans import LONG_WAIT_S, Span, Trace, build_spans, call_key, find_trace
from waystation.workflows.ports import TRACE

SLACK_S = 5.0
"""How long after `LONG_WAIT_S` the spans before a wait are exported. By then, an answer that ended the wait earlier has
reached the workflow."""
MAX_RUNS = 2_000
"""Maximum number of runs whose exported spans are remembered. The spans of other runs may be exported again if a
workflow task is repeated or a wait ends."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_parse_ref = lru_cache(maxsize=1_000)(parse_ref)

log = structlog.get_logger("waystation.worker")


class _ExportedRun(NamedTuple):
    """A run, with the data that its spans are derived from."""

    id: str
    log: Log
    now: float
    over: bool
    due: float = 0.0
    """When to export the spans, by the monotonic clock."""


class _HashedOnce(Resource):
    """A resource that computes its hash once. The exporter hashes the resource of every span."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = hash(resource)

    def __hash__(self) -> int:
        return self._hash


class SpanExport(Interceptor):
    """An interceptor for workers that exports the spans of the invocations whose workflows they run."""

    def __init__(
        self, processor: SpanProcessor | None = None, *, content: bool = False, long_wait_s: float = LONG_WAIT_S
    ) -> None:
        """Configure the export. The standard `OTEL_` environment variables configure the exporter and the sampler.

        Args:
            processor: Receives the spans. By default, they are sent over OTLP.
            content: Whether spans contain messages, arguments and results.
            long_wait_s: How long an invocation waits until the spans before the wait are exported.
        """
        self.processor = processor or BatchSpanProcessor(OTLPSpanExporter())
        resource = _HashedOnce(Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "waystation")}))
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        """Provider for the spans that tools create."""
        self.provider.add_span_processor(self.processor)
        self._scope = InstrumentationScope("waystation", waystation_version())
        self._content, self._long_wait_s = content, long_wait_s
        self._sent: LRUCache[str, set[int]] = LRUCache(MAX_RUNS)
        """IDs of the exported spans of each run."""
        self._ended: list[_ExportedRun] = []
        self._waiting: dict[str, _ExportedRun] = {}
        """The runs that wait, in the order in which they are due."""
        self._lock = threading.Lock()  # of the two
        self._thread = ExportThread("waystation-spans", self._export)

    def receive(self, run_id: str, log: Log, now: float, over: bool) -> None:
        """Export the spans of a run that has ended, or of a run that waits, if it still waits after `long_wait_s`.

        Called in the threads of workflow tasks.
        """
        delay = self._long_wait_s + SLACK_S
        with self._lock:
            self._waiting.pop(run_id, None)
            if over:
                self._ended.append(_ExportedRun(run_id, log, now, over))
            else:
                self._waiting[run_id] = _ExportedRun(run_id, log, now + delay, over, time.monotonic() + delay)

    def _take(self) -> list[_ExportedRun]:
        """Return the runs that have ended or are due, and forget them."""
        now = time.monotonic()
        with self._lock:
            runs, self._ended = self._ended, []
            while self._waiting and (run := next(iter(self._waiting.values()))).due <= now:
                runs.append(self._waiting.pop(run.id))
        return runs

    def _export(self) -> None:
        for run in self._take():
            try:
                self._export_run(run)
            except Exception:  # the spans of the other runs must not be lost, and nobody else reports it
                log.exception("spans.not_exported", run_id=run.id)

    def _export_run(self, run: _ExportedRun) -> None:
        started = run.log.state.input
        trace = find_trace(run.log.invocation_id, started)
        if not (trace.sampled if started and started.traceparent else self._is_sampled(trace)):
            return
        sent = self._sent.setdefault(run.id, set())
        for span in build_spans(
            run.log, now=run.now, over=run.over, content=self._content, long_wait_s=self._long_wait_s
        ):
            if span.id not in sent:
                sent.add(span.id)
                self.processor.on_end(self._convert(trace, span))

    def _is_sampled(self, trace: Trace) -> bool:
        return self.provider.sampler.should_sample(None, trace.id, "invoke_agent").decision is not Decision.DROP

    def _convert(self, trace: Trace, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(trace, span.id),
            parent=None if span.parent is None else _context(trace, span.parent),
            resource=self.provider.resource,
            attributes=span.attributes,
            links=() if span.link is None else (Link(_context(trace, span.link)),),
            kind=SpanKind.CLIENT if span.name.startswith("chat") else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=round(span.begin * 1e9),
            end_time=round(span.end * 1e9),
            instrumentation_scope=self._scope,
        )

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:
        """Let workflows pass their logs to the export."""
        self._thread.start()
        input.unsafe_extern_functions[TRACE] = self.receive

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Make an activity's span the current one, so that spans and requests of tools become its children.

        The SDK calls this in the task of the activity. The span remains the current one until the end of that task.
        """
        otel_context.attach(otel.set_span_in_context(_ActivitySpan(activity.info().activity_id)))
        return next

    def close(self) -> None:
        """Send the spans that have not been sent. Spans before waits are sent when another worker continues."""
        self._thread.close()
        self.processor.force_flush()


def _context(trace: Trace, span_id: int) -> SpanContext:
    return SpanContext(trace.id, span_id, is_remote=False, trace_flags=_SAMPLED)


class _ActivitySpan(NonRecordingSpan):
    """The span of an activity. Its context is known once the activity has read its log."""

    def __init__(self, activity_id: str) -> None:
        super().__init__(otel.INVALID_SPAN_CONTEXT)
        self._activity_id = activity_id
        self._found = otel.INVALID_SPAN_CONTEXT

    def get_span_context(self) -> SpanContext:
        if not self._found.is_valid:
            self._found = self._find_context()  # once: every log event of the activity asks for it
        return self._found

    def _find_context(self) -> SpanContext:
        log, id = current_log.get(), self._activity_id
        if log is None or log.state.input is None:
            return otel.INVALID_SPAN_CONTEXT
        match _parse_ref(id):
            case ModelReplyRef():
                key = log.invocation_id, id
            case CallRef(function_call_id, run) if call := log.state.calls.get(function_call_id):
                key = call_key(log.invocation_id, call, run)
            case _:
                return otel.INVALID_SPAN_CONTEXT
        trace = find_trace(log.invocation_id, log.state.input)
        return _context(trace, trace.span_id(*key))
