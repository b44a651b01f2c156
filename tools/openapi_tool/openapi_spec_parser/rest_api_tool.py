"""One operation of a service, as a tool. Source: adk-semantics 10."""

import functools
import json
import logging
import ssl
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from waystation.agents.readonly_context import ReadonlyContext
from waystation.core.errors import InvalidTool
from waystation.core.model_call import Effect
from waystation.core.payload import JsonObject
from waystation.tools.authorization import NO_AUTHORIZATION, Authorization, authorized
from waystation.tools.base_tool import BaseTool, declaration, settled
from waystation.tools.functions import Signature, invoke, name_of
from waystation.tools.openapi_tool.openapi_spec_parser.destination import DestinationRefused, check_destination
from waystation.tools.openapi_tool.openapi_spec_parser.rest_request import (
    ArgumentRefused,
    Request,
    request_for,
    valid_header,
)
from waystation.tools.openapi_tool.openapi_spec_parser.specification import Operation, is_absolute
from waystation.tools.tool_context import ToolContext

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger(__name__)

MAX_RESPONSE_BYTES = 2_000_000
"""How much of a response is read; less than half of it can be recorded."""
MAX_ERROR_CHARS = 8_000
CONNECT_S = 10.0
READ_S = 600.0
PENDING = {"pending": True, "message": "Needs your authorization to access your data."}
"""ADK's wire literal."""

_EFFECTS: Mapping[str, Effect] = {
    "GET": "read",
    "HEAD": "read",
    "OPTIONS": "read",
    "TRACE": "read",
    "PUT": "repeatable",
    "DELETE": "repeatable",
}
"""What HTTP promises of a repetition (RFC 9110, 9.2.2); POST and PATCH promise nothing."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the operations of a toolset are called."""

    allowed: Collection[str] = ()
    """Hosts, with or without ports."""
    named: Collection[str] = ()
    """Those of them that the author named himself."""
    private: bool = False
    verify: bool | str | ssl.SSLContext = True
    header_provider: Callable[[ReadonlyContext], Any] | None = None
    client_factory: "Callable[[], httpx2.AsyncClient] | None" = None
    require_confirmation: bool | Callable[..., Any] = False
    idempotency_header: str | None = None
    effect: Effect | Mapping[str, Effect] | None = None
    default_headers: Mapping[str, str] = field(default_factory=dict)


class RestApiTool(BaseTool):
    """A tool that calls one operation. It is made by `OpenAPIToolset`."""

    def __init__(self, operation: Operation, settings: Settings) -> None:
        super().__init__(name=operation.name, description=operation.description)
        self.operation = operation
        self.auth_scheme: Any = operation.security
        self.auth_credential: Any = None
        self.credential_key: str | None = None
        self._settings = settings
        self.require_confirmation = settings.require_confirmation
        self._default_headers: Mapping[str, str] = settings.default_headers
        given = settings.effect.get(self.name) if isinstance(settings.effect, Mapping) else settings.effect
        # A service that takes a key recognises a repetition.
        otherwise: Effect = "repeatable" if settings.idempotency_header else "once"
        self.effect = given or _EFFECTS.get(operation.method, otherwise)

    def configure_auth_scheme(self, auth_scheme: Any) -> None:
        """Say how the service wants to be authenticated."""
        self.auth_scheme = auth_scheme

    def configure_auth_credential(self, auth_credential: Any = None) -> None:
        """Say what it is given."""
        self.auth_credential = auth_credential

    def configure_credential_key(self, credential_key: str | None = None) -> None:
        """Say under which name the credential is kept."""
        self.credential_key = credential_key

    def set_default_headers(self, headers: Mapping[str, str]) -> None:
        """Set headers that every request carries unless something else sets them."""
        self._default_headers = headers

    @settled
    def _get_declaration(self) -> JsonObject:
        return declaration(self.name, self.description, self.operation.schema)

    def setting_problems(self) -> list[str]:
        """Return what is wrong with the settings, one sentence each."""
        problems = super().setting_problems()
        if not is_absolute(self.operation.server):
            problems.append(
                f"the specification names no absolute URL of a server ({self.operation.server!r}); give `server_url`."
            )
        if not self.operation.path.startswith("/"):
            problems.append(f"its path {self.operation.path!r} does not begin with '/'.")
        return problems

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the operation; return the response's JSON, or `{"text"}`, or `{"error"}` for what the model may mend.

        Raises:
            httpx2.TransportError: The service was not reached, or broke off.
        """
        authorization = await self._authorization(tool_context)
        if authorization is None:
            return PENDING
        try:
            request = request_for(
                self.operation, args, authorization=authorization, headers=await self._headers(tool_context)
            )
            address = await check_destination(
                request.url,
                allowed=self._settings.allowed,
                named=self._settings.named,
                private=self._settings.private,
            )
        except (ArgumentRefused, DestinationRefused) as error:
            return self._error(str(error))
        import httpx2

        calling = _CALLING.set(True)
        try:
            return await self._answer(request, address)
        except httpx2.TimeoutException as error:
            return self._error(f"Request timed out ({type(error).__name__}).")
        finally:
            _CALLING.reset(calling)

    async def _authorization(self, context: ToolContext) -> Authorization | None:
        """Return what the credential adds; None when the user has been asked for one."""
        if self.auth_scheme is None:
            return NO_AUTHORIZATION
        return await authorized(
            self.name, self.auth_scheme, self.auth_credential, self.credential_key, context, ask=True
        )

    async def _headers(self, context: ToolContext) -> dict[str, str]:
        """Return the headers that do not come from arguments."""
        headers = {"User-Agent": f"waystation (tool: {self.name})", **self._default_headers}
        if self._settings.header_provider is not None:
            provider = self._settings.header_provider
            found = await invoke(provider, Signature(provider, name_of(provider)).python.bind(context))
            headers.update(found or {})
        if self._settings.idempotency_header and self.effect != "read":
            headers[self._settings.idempotency_header] = context.idempotency_key
        for name, value in headers.items():
            if not valid_header(name, value):
                raise InvalidTool(self.name, f"the header {name!r} cannot be sent; use printable ASCII on one line.")
        return headers

    async def _answer(self, request: Request, address: str | None) -> Any:
        import httpx2

        url = httpx2.URL(request.url)
        headers = dict(request.headers)
        extensions: dict[str, Any] = {}
        if address is not None and self._settings.client_factory is None:
            # To the address that was checked, under the name that was asked for.
            headers["Host"] = url.netloc.decode("ascii")
            extensions["sni_hostname"] = url.raw_host.decode("ascii")
            url = url.copy_with(host=address)
        async with (
            self._client() as client,
            client.stream(
                request.method,
                url,
                params=list(request.query),
                headers=headers,
                extensions=extensions,
                # Never, since a redirect may lead anywhere, and takes headers along.
                follow_redirects=False,
                **request.body,
            ) as response,
        ):
            body = await _read(response)
            if body is None:
                return self._error(f"The response is over {MAX_RESPONSE_BYTES} bytes.")
            text = body.decode(response.encoding or "utf-8", "replace")
            if not response.is_success:
                log.warning("rest_api.refused", tool=self.name, method=request.method, status=response.status_code)
                return self._error(f"Status Code: {response.status_code}, {text[:MAX_ERROR_CHARS]}")
        return _decoded(text)

    def _client(self) -> "httpx2.AsyncClient":
        import httpx2

        if self._settings.client_factory is not None:
            return self._settings.client_factory()
        timeout = httpx2.Timeout(READ_S, connect=CONNECT_S, pool=CONNECT_S)
        # Proxies of the environment would decide where the request goes, after it was checked.
        return httpx2.AsyncClient(timeout=timeout, verify=_verified(self._settings.verify), trust_env=False)

    def _error(self, text: str) -> JsonObject:
        # ADK's wire literal.
        return {
            "error": f"Tool {self.name} execution failed. Analyze this execution error and your inputs. Retry with "
            f"adjustments if applicable. But make sure don't retry more than 3 times. Execution Error: {text}"
        }


async def _read(response: "httpx2.Response") -> bytes | None:
    """Return a response's body; None when it is too large."""
    body = bytearray()
    async for chunk in response.aiter_bytes(65_536):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            return None
    return bytes(body)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}


@functools.lru_cache(maxsize=16)
def _verified(verify: bool | str | ssl.SSLContext) -> ssl.SSLContext | bool:
    """Return how certificates are checked; made once, because reading all authorities takes tens of milliseconds."""
    if isinstance(verify, str):
        folder = Path(verify).is_dir()
        return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
    if verify is True:
        return ssl.create_default_context()
    return verify


class _Quiet(logging.Filter):
    """Drops the line that httpx writes for each request: it has the whole URL, and a key may be in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _CALLING.get()


_CALLING: ContextVar[bool] = ContextVar("rest_api_call", default=False)
logging.getLogger("httpx2").addFilter(_Quiet())
