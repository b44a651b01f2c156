"""Logs are events with flat fields: for people in a terminal, as JSON lines elsewhere."""

import logging
import os
import sys
from contextlib import suppress
from typing import Literal, TextIO, cast

import structlog

from waystation.core import HIDDEN, Secret


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
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Unread(sys.stderr))),
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


class _Unread:
    """A stream that may lose its reader: what is logged of a call must not make it fail, and so be repeated."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def without_secrets(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace parts of credentials among the fields of an event; renderers would write them out as text."""
    return {name: HIDDEN if isinstance(value, Secret) else value for name, value in event.items()}


def open_standard_streams() -> None:
    """Open those that are closed on nothing. Python has None in their place, which nobody reckons with."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the program runs
