"""Read the current OpenTelemetry span, if the program uses OpenTelemetry. Otherwise, nothing is imported."""

import os
import sys
from typing import Any


def current_span() -> tuple[str, str] | None:
    """Return the trace ID and the span ID of the current span in hexadecimal, or None if there is no span."""
    context = _span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context else None


def current_traceparent() -> str | None:
    """Return the current span in the format of W3C Trace Context, or None if there is no span."""
    context = _span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}" if context else None


def find_traceparent() -> str | None:
    """Return the span that triggers an invocation: the current one, or the one in the environment variable TRACEPARENT.

    Return None if there is neither.
    """
    return current_traceparent() or os.environ.get("TRACEPARENT")


def _span_context() -> Any:
    trace = sys.modules.get("opentelemetry.trace")
    context = trace.get_current_span().get_span_context() if trace else None
    return context if context and context.is_valid else None
