"""How a server is reached. Source: adk-semantics 10; names and defaults are ADK's."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from httpx2 import AsyncClient
from mcp import StdioServerParameters
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import BaseModel, ConfigDict, Field

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
