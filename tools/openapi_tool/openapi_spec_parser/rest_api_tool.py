"""A tool that calls one operation of a service.

Models can copy untrusted text into arguments. An argument must never change where a request goes, or add a header,
cookie or parameter.
"""

import functools
import json
import logging
import re
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import structlog

from waystation.agents import ReadonlyContext
from waystation.core import Effect, InvalidTool, JsonObject
from waystation.dataclass import dataclass
from waystation.tools import (
    Authorization,
    BaseTool,
    ToolContext,
    authorize,
    cacheable,
    call_header_provider,
    declaration,
)
from waystation.tools.openapi_tool.openapi_spec_parser.destination import DestinationRefused, check_destination
from waystation.tools.openapi_tool.openapi_spec_parser.specification import Operation, Parameter, is_absolute

log = structlog.get_logger(__name__)

MAX_RESPONSE_BYTES = 2_000_000
"""Maximum size of a response. A larger response is reported to the model as an error."""
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

_COOKIE_CHARS = "!#$&'()*+-./:<=>?@[]^_`{|}~"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class ArgumentRefused(ValueError):
    """An argument cannot be sent. The message is sent to the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """An HTTP request."""

    method: str
    url: str
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The keyword argument that passes the body to httpx: `data`, `files` or `content`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
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

    def __init__(self, operation: Operation, settings: Settings) -> None:
        super().__init__(name=operation.name, description=operation.description)
        self.operation = operation
        self.auth_scheme: Any = None
        self.auth_credential: Any = None
        self.credential_key: str | None = None
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
        problems = super().setting_problems()
        if not is_absolute(self.operation.server):
            problems.append(
                f"the server URL in the specification is not absolute ({self.operation.server!r}); pass `server_url`."
            )
        if not self.operation.path.startswith("/"):
            problems.append(f"its path {self.operation.path!r} does not begin with '/'.")
        declared = {parameter.name for parameter in self.operation.parameters if parameter.location == "path"}
        variables = set(re.findall(r"\{([^{}]*)\}", self.operation.path.partition("?")[0]))
        if undeclared := sorted(variables - declared):
            names = ", ".join(map(repr, undeclared))
            problems.append(
                f"no parameter is declared for {names} in its path; add one with `in: path` to the document."
            )
        required = self._required()
        is_complete = len(required) == 1 or self._named_credentials().keys() >= required.keys()
        if not is_complete and self._settings.header_provider is None:
            names = ", ".join(f"{name!r}: …" for name in required)
            problems.append(
                f"it requires several credentials together; pass all of them, as `auth_credential={{{names}}}`."
            )
        return problems

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Call the operation and return the response.

        A response that is not JSON is returned as `{"text": ...}`. If the request is refused or fails, return
        `{"error": ...}`, so that the model can correct the call.

        Raises:
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
            return await self._answer(request, address)
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
            merged.headers.update(found.headers)
            merged.query.update(found.query)
            merged.cookies.update(found.cookies)
        return merged

    async def _headers(self, context: ToolContext) -> dict[str, str]:
        """Return the headers that do not depend on the arguments."""
        headers = {"User-Agent": f"waystation (tool: {self.name})", **self._default_headers}
        if self._settings.header_provider is not None:
            headers.update(await call_header_provider(self._settings.header_provider, context))
        if self._settings.idempotency_header and self.effect != "read":
            headers[self._settings.idempotency_header] = context.idempotency_key
        for name, value in headers.items():
            if not (_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
                raise InvalidTool(self.name, f"the header {name!r} cannot be sent; use printable ASCII on one line.")
        return headers

    async def _answer(self, request: Request, address: str | None) -> Any:
        url = httpx2.URL(request.url)
        headers = dict(request.headers)
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
                params=list(request.query),
                headers=headers,
                extensions=extensions,
                # A redirect could send the headers, including credentials, to any host.
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
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return {"text": text}

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


async def _read(response: httpx2.Response) -> bytes | None:
    """Return a response's body, or None if it is too large."""
    body = bytearray()
    async for chunk in response.aiter_bytes(65_536):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            return None
    return bytes(body)


@functools.lru_cache(maxsize=16)
def _create_ssl_context(verify: bool | str | ssl.SSLContext) -> ssl.SSLContext | bool:
    """Return an SSL context. The context is cached, because loading certificates takes tens of milliseconds."""
    if isinstance(verify, str):
        folder = Path(verify).is_dir()
        return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
    if verify is True:
        return ssl.create_default_context()
    return verify


class _Quiet(logging.Filter):
    """A log filter that drops httpx's log line for each request, because the URL may contain an API key."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _CALLING.get()


_CALLING: ContextVar[bool] = ContextVar("rest_api_call", default=False)
logging.getLogger("httpx2").addFilter(_Quiet())


def request_for(
    operation: Operation, args: JsonObject, *, authorization: Authorization, headers: Mapping[str, str]
) -> Request:
    """Return the request for a call, ignoring unknown arguments.

    Headers from the toolset's settings override those from arguments, and the credential's headers override both.

    Raises:
        ArgumentRefused: An argument is missing or cannot be sent.
    """
    known = _select_arguments(operation, args)
    body, content_type = _body(operation, known)
    merged = {**_headers(operation, known)}
    if content_type is not None:
        _set_header(merged, "Content-Type", content_type)
    for name, value in (*headers.items(), *authorization.headers.items()):
        _set_header(merged, name, value)
    pairs = [
        pair for parameter, value in _select_location("cookie", operation, known) for pair in _pairs(parameter, value)
    ]
    cookies = [f"{name}={quote(value, safe=_COOKIE_CHARS)}" for name, value in pairs]
    cookies += [f"{name}={value}" for name, value in authorization.cookies.items()]
    if cookies:
        _set_header(merged, "Cookie", "; ".join(cookies))
    url, path_query = _url(operation, known)
    query = [
        pair for parameter, value in _select_location("query", operation, known) for pair in _pairs(parameter, value)
    ]
    query = [pair for pair in (*path_query, *query) if pair[0] not in authorization.query]
    return Request(
        method=operation.method,
        url=url,
        query=(*query, *authorization.query.items()),
        headers=merged,
        body=body,
    )


def _select_arguments(operation: Operation, args: JsonObject) -> JsonObject:
    """Return the arguments that match the operation's parameters, filling in defaults for missing required ones."""
    known = {}
    for parameter in operation.parameters:
        default = parameter.schema.get("default") if isinstance(parameter.schema, dict) else None
        if parameter.argument in args:
            known[parameter.argument] = args[parameter.argument]
        elif parameter.required and default is not None:
            known[parameter.argument] = default
    return known


def _select_location(location: str, operation: Operation, args: JsonObject) -> Iterator[tuple[Parameter, Any]]:
    for parameter in operation.parameters:
        if parameter.location == location and args.get(parameter.argument) is not None:
            yield parameter, args[parameter.argument]


def _url(operation: Operation, args: JsonObject) -> tuple[str, list[tuple[str, str]]]:
    """Return the URL without its query, and the query parameters that the operation's path contains."""
    values = {
        parameter.name: _segment(parameter, value) for parameter, value in _select_location("path", operation, args)
    }
    path, _, query = operation.path.partition("?")

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            argument = next((p.argument for p in operation.parameters if p.name == match[1]), match[1])
            raise ArgumentRefused(f"Missing required path parameter '{argument}'.")
        return values[match[1]]

    url = operation.server.rstrip("/") + re.sub(r"\{([^{}]*)\}", fill, path)
    before, after = urlsplit(operation.server), urlsplit(url)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise ArgumentRefused("The path does not begin with '/', so the request would go to another host.")
    return url, [(name, value) for name, _, value in (part.partition("=") for part in query.split("&") if part)]


def _segment(parameter: Parameter, value: Any) -> str:
    """Return the value of a path parameter, quoted so that it stays within its path segment."""
    text = _text(parameter, value)
    parts = text.replace("\\", "/").split("/")
    if any(part in (".", "..") for part in parts):
        # The message is the same as in ADK. Quoting does not change dots, and a server may decode `%2F` to a slash.
        raise ArgumentRefused(
            f"Path parameter {parameter.name!r} must not contain current-directory or parent-directory segments."
        )
    if not text:
        raise ArgumentRefused(f"Path parameter {parameter.name!r} must not be empty: it would address another path.")
    return quote(text, safe="")


def _headers(operation: Operation, args: JsonObject) -> dict[str, str]:
    headers = {}
    for parameter, value in _select_location("header", operation, args):
        text = _text(parameter, value)
        if not text.isascii() or not text.isprintable():
            raise ArgumentRefused(f"Header parameter {parameter.name!r} must be printable ASCII, on one line.")
        headers[parameter.name] = text
    return headers


def _set_header(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header, replacing any header whose name differs only in case."""
    for other in [other for other in headers if other.lower() == name.lower()]:
        del headers[other]
    headers[name] = value


def _pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Return the name-value pairs for a query or cookie parameter, in OpenAPI's `form` or `deepObject` style."""
    name = parameter.name
    if isinstance(value, dict) and not parameter.as_json:
        fields = {key: _text(parameter, item) for key, item in value.items() if item is not None}
        if parameter.style == "deepObject":
            return [(f"{name}[{key}]", item) for key, item in fields.items()]
        # Each key becomes a parameter, so undeclared keys would let the model set arbitrary parameters.
        declared = parameter.schema.get("properties", {}) if isinstance(parameter.schema, dict) else {}
        if parameter.explode and set(fields) <= set(declared):
            return list(fields.items())
        return [(name, ",".join(f"{key},{item}" for key, item in fields.items()))]
    if isinstance(value, list) and parameter.explode and not parameter.as_json:
        return [(name, _text(parameter, item)) for item in value if item is not None]
    return [(name, _text(parameter, value))]


def _text(parameter: Parameter, value: Any) -> str:
    """Return a value serialized in OpenAPI's `simple` style, or as JSON if the parameter requires it."""
    text = json.dumps(value, ensure_ascii=False) if parameter.as_json else _simple(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentRefused(f"Parameter {parameter.name!r} is not valid Unicode.") from None
    return text


def _simple(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_simple(item) for item in value if item is not None)
    if isinstance(value, dict):
        return ",".join(f"{key},{_simple(item)}" for key, item in value.items() if item is not None)
    return str(value)


def _body(operation: Operation, args: JsonObject) -> tuple[JsonObject, str | None]:
    """Return httpx's keyword argument for the body, and the Content-Type, or None if httpx sets that header."""
    media_type = operation.media_type
    if media_type is None:
        return {}, None
    parameters = [parameter for parameter in operation.parameters if parameter.location == "body"]
    value: Any
    if operation.whole_body:
        value = args.get(parameters[0].argument) if parameters else None
    else:
        value = {p.name: args[p.argument] for p in parameters if p.argument in args}
    if value is None:
        return {}, None
    kind = media_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return {"content": _json(value)}, media_type
    if kind == "application/x-www-form-urlencoded" and isinstance(value, dict):
        fields = {name: _form(item) for name, item in value.items() if item is not None}
        return {"data": fields}, media_type
    if kind == "multipart/form-data" and isinstance(value, dict):
        parts = [(p, value[p.name]) for p in parameters if value.get(p.name) is not None]
        # httpx sets the Content-Type header, because it chooses the boundary.
        return {"files": [(p.name, _create_part(p, item)) for p, item in parts]}, None
    return {"content": value.encode() if isinstance(value, str) else _json(value)}, media_type


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ArgumentRefused(f"The body cannot be encoded as JSON: {type(error).__name__}.") from None


def _form(value: Any) -> Any:
    return [_form(item) for item in value] if isinstance(value, list) else _field(value)


def _field(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else _simple(value)


def _create_part(parameter: Parameter, value: Any) -> tuple[str | None, bytes]:
    """Return one part of a multipart form. It is sent as a file only if the specification declares a file."""
    schema = parameter.schema if isinstance(parameter.schema, dict) else {}
    is_file = schema.get("format") == "binary" or "contentMediaType" in schema
    return (parameter.name if is_file else None), _field(value).encode()
