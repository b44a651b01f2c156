"""Set up logging: events with flat fields, written as text in a terminal and as JSON lines elsewhere."""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TextIO, cast

import structlog

from waystation.core.secrets import HIDDEN, Secret
from waystation.trace_context import current_span

if TYPE_CHECKING:
    from temporalio.runtime import PrometheusConfig


core_listeners: list[Callable[[], None]] = []
"""Called for each warning of Temporal's core, in a thread of the core, if `configure_core` forwards its logs."""
_CHATTY = (
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "urllib3",
    "asyncio",
    "mcp",
    "google_genai",
    "openai",
    "anthropic",
)
"""Libraries that log every request below WARNING, with URLs and headers that may contain secrets."""


def configure_logs(
    form: Literal["console", "json"] | None = None, level: str | None = None, *, own_level: int = logging.INFO
) -> None:
    """Send log events from structlog and the standard library to standard error.

    Args:
        form: `console` or `json`. By default, `console` if standard error is a terminal, otherwise `json`.
        level: The lowest level to write, such as `info`. By default, `own_level` for structlog events and `warning`
            for the standard library.
        own_level: The default for structlog events.
    """
    terminal = sys.stderr.isatty()
    as_json = form == "json" or (form is None and not terminal)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_trace_ids,
        hide_secrets,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Without format_exc_info, the JSON would contain the traceback object's address. The console renderer formats
    # tracebacks itself.
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        # The default formatter takes seconds and shows all local variables, including the messages of users and models.
        else [structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level or own_level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _SafeStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    bridge = logging.StreamHandler(sys.stderr)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[bridge], level=level.upper() if level else logging.WARNING, force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.captureWarnings(True)  # otherwise, warnings would be text among the JSON


def configure_core(metrics: "PrometheusConfig | None" = None) -> None:
    """Send the logs of Temporal's core to the standard library's logger `temporalio.core`, and export its metrics.

    By default, the core writes its logs to standard output in a format for terminals, and exports no metrics. With
    `metrics`, clients that exist keep what was configured before.

    Raises:
        RuntimeError: The process already uses Temporal, and `metrics` is None.
    """
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    def tell(_: logging.LogRecord) -> bool:
        for listener in [*core_listeners]:
            listener()
        return True

    logger = logging.getLogger("temporalio.core")
    logger.addFilter(tell)
    forwarding = LogForwardingConfig(logger=logger)
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logs = LoggingConfig(filter=levels, forwarding=forwarding)
    telemetry = TelemetryConfig(logging=logs, metrics=metrics, attach_service_name=False)
    Runtime.set_default(Runtime(telemetry=telemetry), error_if_already_set=metrics is None)


class _SafeStream:
    """A stream that ignores errors, so that an activity does not fail because the reader closed the log pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed stream raises ValueError
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def add_trace_ids(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the IDs of the current OpenTelemetry span, if there is one."""
    if span := current_span():
        event["trace_id"], event["span_id"] = span
    return event


def hide_secrets(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace each field of an event that is a `Secret`, because renderers would write it as plain text."""
    return {name: HIDDEN if isinstance(value, Secret) else value for name, value in event.items()}


def open_standard_streams() -> None:
    """Connect closed standard streams to the null device. Python sets them to None, which most code does not expect."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # stays open until the program ends
