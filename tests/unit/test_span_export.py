"""The export of spans derives the spans of ended runs together, and sends them at the latest when it is closed."""

from collections.abc import MutableMapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.core.story import log_of, replied, said
from waystation.core import Ended, Log
from waystation.worker import SpanExport


def ended_log() -> Log:
    """Return the log of an invocation that has ended."""
    return log_of(said("hello"), replied("done"), Ended("completed"))


class BrokenOnce(SimpleSpanProcessor):
    """Fails at the first span."""

    failed = False

    def on_end(self, span: ReadableSpan) -> None:
        if not self.failed:
            self.failed = True
            raise OSError("no space left")
        super().on_end(span)


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    """Return the names of spans."""
    return [span.name for span in spans]


async def test_spans_that_were_collected_are_sent_when_the_export_is_closed() -> None:
    """A second close has nothing to send."""
    sent = InMemorySpanExporter()
    export = SpanExport(SimpleSpanProcessor(sent))
    export.receive("run-1", ended_log(), 2_000.0, over=True)
    assert names(sent.get_finished_spans()) == []
    export.close()
    export.close()
    assert names(sent.get_finished_spans()) == ["invoke_agent ag"]


async def test_a_run_whose_spans_cannot_be_exported_does_not_stop_the_others(
    logs: list[MutableMapping[str, Any]],
) -> None:
    """The failure is logged."""
    sent = InMemorySpanExporter()
    export = SpanExport(BrokenOnce(sent))
    export.receive("run-1", ended_log(), 2_000.0, over=True)
    export.receive("run-2", ended_log(), 2_000.0, over=True)
    export.close()
    assert [(entry["event"], entry["run_id"]) for entry in logs] == [("spans.not_exported", "run-1")]
    assert names(sent.get_finished_spans()) == ["invoke_agent ag"]
