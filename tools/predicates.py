"""Call the functions with which authors decide which calls wait for approval. If one fails, its call waits."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import structlog

from waystation.tools import ToolContext
from waystation.tools.functions import Signature, invoke, name_of
from waystation.tools.places import find_author_line

log = structlog.get_logger(__name__)

_failures: ContextVar[list[str] | None] = ContextVar("failures", default=None)


async def call_predicate(function: Callable[..., Any], arguments: Mapping[str, Any], context: ToolContext) -> bool:
    """Call a user-supplied predicate with the arguments it accepts, and return its decision."""
    return bool(await invoke(function, Signature(function, name_of(function)).bind_from(arguments, context)))


def report_failure(event: str, tool: str, error: Exception) -> None:
    """Log the failure of an author's function. The error's message may quote arguments, so only its type is logged."""
    kind = type(error).__name__
    log.warning(event, tool=tool, error_type=kind, place=find_author_line(error))
    if (failures := _failures.get()) is not None:
        failures.append(kind)


@contextlib.contextmanager
def collect_failures() -> Iterator[list[str]]:
    """Collect the types of the errors that are reported."""
    failures = list[str]()
    token = _failures.set(failures)
    try:
        yield failures
    finally:
        _failures.reset(token)
