"""Logs are events with flat fields: for people in a terminal, as JSON lines elsewhere."""

import logging
import sys
from typing import Literal

import structlog

from waystation.core.secrets import HIDDEN, Secret


def configure_logs(form: Literal["console", "json"] | None = None, level: int = logging.INFO) -> None:
    """Send the events of structlog and of the standard library to standard error.

    Args:
        form: `console` or `json`; by default `console` when standard error is a terminal.
        level: The least level that is shown.
    """
    terminal = sys.stderr.isatty()
    as_json = form == "json" or (form is None and not terminal)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        without_secrets,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Without the first, JSON would have the address of a traceback; the console's renderer writes one by itself.
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        # The default's traceback would show all local variables, so what people and models said, and takes seconds.
        else [structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    bridge = logging.StreamHandler(sys.stderr)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[bridge], level=logging.WARNING, force=True)


def without_secrets(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace parts of credentials among the fields of an event; renderers would write them out as text."""
    return {name: HIDDEN if isinstance(value, Secret) else value for name, value in event.items()}
