"""Spans of ended runs are exported together, at the latest when the export is closed."""

from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.core.story import log_of, model_calls, model_replied, user_message
from waystation.core.log import END, Ended, Log
from waystation.worker import SpanExport, span_export


def ended_log() -> Log:
    """Return the log of an invocation that has ended."""
    return log_of(user_message("hello"), model_replied("done"), Ended("completed"))


def waiting_log() -> Log:
    """Return the log of an invocation that waits for an answer."""
    return log_of(user_message("pay"), model_calls("pay", gated=True))


class BrokenOnce(SimpleSpanProcessor):
    """A span processor that fails at the first span."""

    failed = False

    def on_end(self, span: ReadableSpan) -> None:
        if not self.failed:
            self.failed = True
            raise OSError("no space left")
        super().on_end(span)


def names(spans: Sequence[ReadableSpan]) -> list[str]:
    """Return the names of spans."""
    return [span.name for span in spans]


def test_collected_spans_are_sent_when_the_export_is_closed() -> None:
    """A second close has nothing to send."""
    sent = InMemorySpanExporter()
    export = SpanExport(SimpleSpanProcessor(sent))
    export.receive("run-1", ended_log(), 2_000.0, over=True)
    assert names(sent.get_finished_spans()) == []
    export.close()
    export.close()
    assert names(sent.get_finished_spans()) == ["invoke_agent ag"]


def test_the_spans_before_a_wait_are_not_sent_at_once() -> None:
    """The spans before a wait are delayed, because the answer may come soon.

    If the worker stops, the next worker sends them.
    """
    sent = InMemorySpanExporter()
    export = SpanExport(SimpleSpanProcessor(sent))
    export.receive("run-1", waiting_log(), 2_000.0, over=False)
    export.close()
    assert names(sent.get_finished_spans()) == []


def test_the_spans_before_a_long_wait_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spans before a long wait are sent once, and the end of the run sends the others."""
    monkeypatch.setattr(span_export, "SLACK_S", 0.0)
    sent = InMemorySpanExporter()
    export = SpanExport(SimpleSpanProcessor(sent), long_wait_s=0.0)
    log = waiting_log()
    export.receive("run-1", log, 2_000.0, over=False)
    export.close()
    assert names(sent.get_finished_spans()) == ["invoke_agent ag"]
    log.append(END, 3_000.0, Ended("cancelled"))
    export.receive("run-1", log, 3_000.0, over=True)
    export.close()
    assert names(sent.get_finished_spans()) == ["invoke_agent ag", "wait pay", "invoke_agent ag"]


def test_a_run_whose_spans_cannot_be_exported_does_not_stop_the_others(
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
