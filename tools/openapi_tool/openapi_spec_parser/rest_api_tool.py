"""A tool that calls one operation of a service."""

import functools
import json
import logging
import mimetypes
import re
import ssl
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog

from waystation.core.contract import Effect
from waystation.core.payload import JsonObject, decode_leniently
from waystation.tools import (
    Authorization,
    BaseTool,
    ReadonlyContext,
    ToolContext,
    authorize,
    cacheable,
    call_header_provider,
    declaration,
)
from waystation.tools.openapi_tool.openapi_spec_parser.destination import DestinationRefused, check_destination
from waystation.tools.openapi_tool.openapi_spec_parser.rest_request import ArgumentRefused, RestRequest, request_for
from waystation.tools.openapi_tool.openapi_spec_parser.specification import Operation, is_absolute
from waystation.tools.outcome import FailedAfterEffect

log = structlog.get_logger(__name__)

MAX_RESPONSE_BYTES = 2_000_000
"""Maximum size of a text response. A larger response is reported to the model as an error."""
MAX_FILE_BYTES = 32_000_000
"""Maximum size of other responses, such as images, which are saved as artifacts."""
MAX_ERROR_CHARS = 8_000
CONNECT_S = 10.0
READ_S = 600.0
PENDING = {"pending": True, "message": "Needs your authorization to access your data."}
"""The same response as in ADK."""

_EFFECTS: Mapping[str, Effect] = {
    "GET": "read",
    "HEAD": "read",
    "OPTIONS": "read",
    "TRACE": "read",
    "PUT": "repeatable",
    "DELETE": "repeatable",
}
"""Effects of the idempotent HTTP methods (RFC 9110, section 9.2.2). POST and PATCH are not idempotent."""

_TEXT_ENDINGS = ("json", "xml", "javascript", "yaml", "x-www-form-urlencoded")


@dataclass(frozen=True, kw_only=True)
class RestSettings:
    """The settings that all operations in a toolset share."""

    allowed: Collection[str] = ()
    """The allowed hosts, with or without ports."""
    named: Collection[str] = ()
    """The hosts that the user listed in `allowed_hosts`. They may be in private networks."""
    private: bool = False
    verify: bool | str | ssl.SSLContext = True
    header_provider: Callable[[ReadonlyContext], Any] | None = None
    client_factory: Callable[[], httpx2.AsyncClient] | None = None
    require_confirmation: bool | Callable[..., Any] = False
    idempotency_header: str | None = None
    effect: Effect | Mapping[str, Effect] | None = None


class RestApiTool(BaseTool):
    """A tool that calls one operation of a service. Created by `OpenAPIToolset`."""

    def __init__(
        self,
        operation: Operation,
        settings: RestSettings,
        auth_scheme: Any = None,
        auth_credential: Any = None,
        credential_key: str | None = None,
    ) -> None:
        super().__init__(name=operation.name, description=operation.description)
        self.operation = operation
        self.auth_scheme = auth_scheme
        self.auth_credential = auth_credential
        self.credential_key = credential_key
        self._settings = settings
        self.require_confirmation = settings.require_confirmation
        self._default_headers: Mapping[str, str] = {}
        effect = settings.effect.get(self.name) if isinstance(settings.effect, Mapping) else settings.effect
        # If calls carry an idempotency key, the service can detect a repeated call.
        default: Effect = "repeatable" if settings.idempotency_header else "once"
        self.effect = effect or _EFFECTS.get(operation.method, default)

    def configure_auth_scheme(self, auth_scheme: Any) -> None:
        """Set the service's security scheme."""
        self.auth_scheme = auth_scheme

    def configure_auth_credential(self, auth_credential: Any = None) -> None:
        """Set the credential for the service, or a mapping with one for each security scheme."""
        self.auth_credential = auth_credential

    def configure_credential_key(self, credential_key: str | None = None) -> None:
        """Set the key under which the credential service stores the user's credential."""
        self.credential_key = credential_key

    def set_default_headers(self, headers: Mapping[str, str]) -> None:
        """Set the headers to send with every request by default."""
        self._default_headers = headers

    @cacheable
    def _get_declaration(self) -> JsonObject:
        return declaration(self.name, self.description, self.operation.schema)

    def setting_problems(self) -> list[str]:
        """Return one sentence for each invalid setting."""
        operation, required = self.operation, self._required()
        declared = {parameter.name for parameter in operation.parameters if parameter.location == "path"}
        variables = set(re.findall(r"\{([^{}]*)\}", operation.path.partition("?")[0]))
        undeclared = ", ".join(map(repr, sorted(variables - declared)))
        is_complete = len(required) == 1 or self._named_credentials().keys() >= required.keys()
        names = ", ".join(f"{name!r}: …" for name in required)
        problems = (
            (
                not is_absolute(operation.server),
                f"the server URL in the specification is not absolute ({operation.server!r}); pass `server_url`.",
            ),
            (not operation.path.startswith("/"), f"its path {operation.path!r} does not begin with '/'."),
            (
                undeclared,
                f"no parameter is declared for {undeclared} in its path; add one with `in: path` to the document.",
            ),
            (
                not is_complete and self._settings.header_provider is None,
                f"it requires several credentials together; pass all of them, as `auth_credential={{{names}}}`.",
            ),
        )
        return [*super().setting_problems(), *(text for is_problem, text in problems if is_problem)]

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the operation and return the response.

        A response that is not JSON is returned as `{"text": ...}`. A binary response is saved as an artifact. If the
        request is refused or fails, return `{"error": ...}`, so that the model can correct the call.

        Raises:
            FailedAfterEffect: The service's binary response cannot be saved.
            httpx2.TransportError: The service is unreachable, or the connection was lost.
        """
        authorization = await self._authorize(tool_context)
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
        calling = _CALLING.set(True)
        try:
            return await self._answer(request, address, tool_context)
        except httpx2.TimeoutException as error:
            return self._error(f"Request timed out ({type(error).__name__}).")
        finally:
            _CALLING.reset(calling)

    def _required(self) -> Mapping[str, Any]:
        """Return the security schemes of a request by name.

        If the operation can be called in several ways, the first one that the given credentials fit is used.
        """
        if self.auth_scheme is not None or not self.operation.security:
            return {"": self.auth_scheme}
        named, given = self._named_credentials(), self.auth_credential
        fields = given if isinstance(given, Mapping) else {"auth_type": getattr(given, "auth_type", None)}
        kind = fields.get("auth_type") or fields.get("authType")
        return min(
            self.operation.security,
            key=lambda schemes: (
                not named.keys() >= schemes.keys(),
                len(schemes),
                kind not in [scheme.get("type") for scheme in schemes.values()],
            ),
        )

    def _named_credentials(self) -> Mapping[str, Any]:
        """Return the credentials by the names of their schemes. Empty if one credential, or none, was given for all."""
        given = self.auth_credential
        is_named = isinstance(given, Mapping) and not given.keys() & {"auth_type", "authType"}
        return given if is_named else {}

    async def _authorize(self, context: ToolContext) -> Authorization | None:
        """Return everything that the operation requires, or None if the user is asked for a credential."""
        schemes, named, merged = self._required(), self._named_credentials(), Authorization()
        # One credential belongs to one scheme. `header_provider` sends the others.
        for name, scheme in list(schemes.items())[: None if named else 1]:
            key = f"{self.credential_key}_{name}" if self.credential_key and len(schemes) > 1 else self.credential_key
            credential = named.get(name) if named else self.auth_credential
            found = await authorize(self.name, scheme, credential, key, context, ask=True)
            if found is None:
                return None
            merged = Authorization(
                headers={**merged.headers, **found.headers},
                query={**merged.query, **found.query},
                cookies={**merged.cookies, **found.cookies},
            )
        return merged

    async def _headers(self, context: ToolContext) -> dict[str, str]:
        """Return the headers that do not depend on the arguments."""
        # Services that also write XML or HTML choose by this header.
        headers = {"User-Agent": f"waystation (tool: {self.name})", "Accept": "application/json, */*;q=0.5"}
        headers.update(self._default_headers)
        if self._settings.header_provider is not None:
            headers.update(await call_header_provider(self._settings.header_provider, context))
        if self._settings.idempotency_header and self.effect != "read":
            headers[self._settings.idempotency_header] = context.idempotency_key
        return headers

    async def _answer(self, request: RestRequest, address: str | None, context: ToolContext) -> Any:
        url = httpx2.URL(request.url).copy_with(query=request.query.encode() or None)
        headers = request.headers.copy()
        extensions: dict[str, Any] = {}
        if address is not None and self._settings.client_factory is None:
            # Connect to the address that was checked, but keep the host name in the Host header and for TLS.
            headers["Host"] = url.netloc.decode("ascii")
            extensions["sni_hostname"] = url.raw_host.decode("ascii")
            url = url.copy_with(host=address)
        async with (
            self._client() as client,
            client.stream(
                request.method,
                url,
                headers=headers,
                extensions=extensions,
                # A redirect could send the headers, including credentials, to any host.
                follow_redirects=False,
                **request.body,
            ) as response,
        ):
            limit = MAX_RESPONSE_BYTES if _is_text(response) else MAX_FILE_BYTES
            body = await _read(response, limit)
        if body is None:
            return self._error(f"The response is over {limit} bytes.")
        is_binary = _is_binary(response, body)
        text = f"{len(body):,} bytes of {_media_type(response)}" if is_binary else _decode(response, body)
        if not response.is_success:
            log.warning("rest_api.refused", tool=self.name, method=request.method, status=response.status_code)
            return self._error(f"Status Code: {response.status_code}, {text[:MAX_ERROR_CHARS]}")
        if is_binary:
            return await self._save(_media_type(response), body, context)
        try:
            return decode_leniently(text)
        except ValueError:
            return {"text": text}

    async def _save(self, media_type: str, body: bytes, context: ToolContext) -> JsonObject:
        """Save a binary response as an artifact. The name is unique for each call, and not chosen by the service."""
        name = f"{self.name}-{context.function_call_id}{mimetypes.guess_extension(media_type) or '.bin'}"
        saved = {"artifact": name, "mime_type": media_type, "bytes": len(body)}
        try:
            await context.save_artifact(name, {"inline_data": {"mime_type": media_type, "data": body}})
        except Exception as error:
            raise FailedAfterEffect(error, {**saved, "artifact": None}) from error
        return saved

    def _client(self) -> httpx2.AsyncClient:
        if self._settings.client_factory is not None:
            return self._settings.client_factory()
        timeout = httpx2.Timeout(READ_S, connect=CONNECT_S, pool=CONNECT_S)
        # Ignore proxies from the environment (`trust_env`): a proxy could connect to an address that was not checked.
        return httpx2.AsyncClient(timeout=timeout, verify=_create_ssl_context(self._settings.verify), trust_env=False)

    def _error(self, text: str) -> JsonObject:
        # The wording is the same as in ADK.
        return {
            "error": f"Tool {self.name} execution failed. Analyze this execution error and your inputs. Retry with "
            f"adjustments if applicable. But make sure don't retry more than 3 times. Execution Error: {text}"
        }


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """Return a response's body, or None if it is too large."""
    body = bytearray()
    async for chunk in response.aiter_bytes(65_536):
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def _media_type(response: httpx2.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower() or "application/octet-stream"


def _is_text(response: httpx2.Response) -> bool:
    """Return whether the headers of a response say that it is text."""
    media_type = _media_type(response)
    return response.charset_encoding is not None or media_type.startswith("text/") or media_type.endswith(_TEXT_ENDINGS)


def _is_binary(response: httpx2.Response, body: bytes) -> bool:
    if _is_text(response):
        return False
    is_media = _media_type(response).startswith(("image/", "audio/", "video/", "font/"))
    return is_media or len(body) > MAX_RESPONSE_BYTES or not {"\0", "\ufffd"}.isdisjoint(body.decode(errors="replace"))


def _decode(response: httpx2.Response, body: bytes) -> str:
    """Return a response's text. If no charset is declared, detect the encoding as for JSON, which is usually UTF-8."""
    encoding = json.detect_encoding(body) if response.charset_encoding is None else response.encoding
    return body.decode(encoding or "utf-8", "replace").removeprefix("\ufeff")


@functools.lru_cache(maxsize=16)
def _create_ssl_context(verify: bool | str | ssl.SSLContext) -> ssl.SSLContext | bool:
    """Return an SSL context. The context is cached, because loading certificates takes tens of milliseconds."""
    if not isinstance(verify, str):
        return ssl.create_default_context() if verify is True else verify
    folder = Path(verify).is_dir()
    return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)


_CALLING: ContextVar[bool] = ContextVar("rest_api_call", default=False)
# Drop httpx's log line for each request, because the URL may contain an API key.
logging.getLogger("httpx2").addFilter(lambda _: not _CALLING.get())
