"""How a server is reached. Source: adk-semantics 10; names and defaults are ADK's."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from httpx2 import AsyncClient
from mcp import StdioServerParameters
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import BaseModel, ConfigDict, Field

from waystation.core.naming import a

DEFAULT_TIMEOUT_S = 5.0


class _Parameters(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)


class StdioConnectionParams(_Parameters):
    """A server that is a program: it is started on the worker's machine, and ended with the worker."""

    server_params: StdioServerParameters
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds that starting the program and agreeing on a protocol may take."""


class SseConnectionParams(_Parameters):
    """A server behind the transport that streamable HTTP replaced."""

    url: str
    # Not shown: they often carry credentials.
    headers: dict[str, Any] | None = Field(default=None, repr=False)
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds that connecting may take."""
    sse_read_timeout: float = 300.0
    """Seconds that the server may be silent."""
    httpx_client_factory: Callable[..., AsyncClient] = create_mcp_http_client


class StreamableHTTPConnectionParams(SseConnectionParams):
    """A server behind a URL."""

    terminate_on_close: bool = True
    """Whether the server is told when the session ends."""


ConnectionParams: TypeAlias = (
    StdioServerParameters | StdioConnectionParams | SseConnectionParams | StreamableHTTPConnectionParams
)


def timeout_of(parameters: ConnectionParams) -> float:
    """Return how many seconds connecting may take."""
    return DEFAULT_TIMEOUT_S if isinstance(parameters, StdioServerParameters) else parameters.timeout


def place_of(parameters: ConnectionParams) -> str:
    """Return how a server is told from others: its program, or its host. Paths and arguments may hold credentials."""
    if isinstance(parameters, StdioConnectionParams):
        parameters = parameters.server_params
    if isinstance(parameters, StdioServerParameters):
        return repr(parameters.command)
    return f"at {urlsplit(parameters.url).netloc.rpartition('@')[2]}"


def parameter_problems(parameters: object) -> Iterator[str]:
    """Yield why a server cannot be reached, one sentence each, as far as can be said without trying."""
    if isinstance(parameters, StdioConnectionParams):
        yield from _timeout_problems(timeout=parameters.timeout)
        parameters = parameters.server_params
    if isinstance(parameters, StdioServerParameters):
        if not _found(parameters):
            yield (
                f"there is no program {parameters.command!r} that could be its server; "
                "install it on the worker's machine, or give its path as `command`."
            )
    elif isinstance(parameters, SseConnectionParams):
        yield from _timeout_problems(timeout=parameters.timeout, sse_read_timeout=parameters.sse_read_timeout)
        if not _is_url(parameters.url):
            yield f"`url` is {parameters.url!r}; use one such as 'http://127.0.0.1:8000/mcp'."
    else:
        yield (
            f"`connection_params` is {a(parameters)}; use StreamableHTTPConnectionParams, SseConnectionParams or "
            "StdioConnectionParams."
        )


def _found(parameters: StdioServerParameters) -> bool:
    """Whether the program is there, where the operating system will look for it."""
    command = parameters.command
    if os.sep in command:
        command = str(Path(parameters.cwd or ".") / command)
    return shutil.which(command, path=(parameters.env or {}).get("PATH")) is not None


def _is_url(url: str) -> bool:
    try:
        found = urlsplit(url)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and bool(found.hostname)


def _timeout_problems(**given: float) -> Iterator[str]:
    for name, seconds in given.items():
        if not seconds > 0:
            yield f"`{name}` is {seconds:g}; use a number of seconds above 0."
