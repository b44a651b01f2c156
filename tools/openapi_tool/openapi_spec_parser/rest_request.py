"""From the arguments of a call to a request.

Arguments come from a model, and a model repeats what it read anywhere: no argument may change where the request goes,
or add a header, a cookie or a parameter of its own.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from waystation.core.payload import JsonObject
from waystation.tools.authorization import Authorization
from waystation.tools.openapi_tool.openapi_spec_parser.specification import Operation, Parameter, joined

_COOKIE_CHARS = "!#$&'()*+-./:<=>?@[]^_`{|}~"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class ArgumentRefused(ValueError):
    """An argument cannot be sent; the message is told to the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is sent."""

    method: str
    url: str
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """One of `json`, `data`, `files` and `content`, as httpx takes them."""


def request_for(
    operation: Operation, args: JsonObject, *, authorization: Authorization, headers: Mapping[str, str]
) -> Request:
    """Return the request for a call; unknown arguments are left out.

    Headers of the author win over arguments, and those of the credential over both.

    Raises:
        ArgumentRefused: An argument is missing or cannot be sent.
    """
    given = _given(operation, args)
    body, content_type = _body(operation, given)
    sent = {**_headers(operation, given)}
    if content_type is not None:
        _set(sent, "Content-Type", content_type)
    for name, value in (*headers.items(), *authorization.headers.items()):
        _set(sent, name, value)
    cookies = [pair for parameter, value in _at("cookie", operation, given) for pair in _pairs(parameter, value)]
    crumbs = [f"{name}={quote(value, safe=_COOKIE_CHARS)}" for name, value in cookies]
    crumbs += [f"{name}={value}" for name, value in authorization.cookies.items()]
    if crumbs:
        _set(sent, "Cookie", "; ".join(crumbs))
    url, written = _url(operation, given)
    query = [pair for parameter, value in _at("query", operation, given) for pair in _pairs(parameter, value)]
    secret = set(authorization.query)
    query = [pair for pair in (*written, *query) if pair[0] not in secret]
    return Request(
        method=operation.method,
        url=url,
        query=(*query, *authorization.query.items()),
        headers=sent,
        body=body,
    )


def _given(operation: Operation, args: JsonObject) -> JsonObject:
    """Return the arguments that the operation knows, with the defaults of those that it requires."""
    given = {}
    for parameter in operation.parameters:
        default = parameter.schema.get("default") if isinstance(parameter.schema, dict) else None
        if parameter.argument in args:
            given[parameter.argument] = args[parameter.argument]
        elif parameter.required and default is not None:
            given[parameter.argument] = default
    return given


def _at(location: str, operation: Operation, given: JsonObject) -> Iterator[tuple[Parameter, Any]]:
    for parameter in operation.parameters:
        if parameter.location == location and given.get(parameter.argument) is not None:
            yield parameter, given[parameter.argument]


def _url(operation: Operation, given: JsonObject) -> tuple[str, list[tuple[str, str]]]:
    """Return the URL without query, and what the path itself says of the query."""
    values = {parameter.name: _segment(parameter, value) for parameter, value in _at("path", operation, given)}
    path, _, query = operation.path.partition("?")

    def filled(found: re.Match[str]) -> str:
        if found[1] not in values:
            argument = next((p.argument for p in operation.parameters if p.name == found[1]), found[1])
            raise ArgumentRefused(f"Missing required path parameter '{argument}'.")
        return values[found[1]]

    url = joined(operation.server, re.sub(r"\{([^{}]*)\}", filled, path))
    before, after = urlsplit(operation.server), urlsplit(url)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise ArgumentRefused("The path does not begin with '/', so the request would go to another host.")
    written = [tuple(part.partition("=")[::2]) for part in query.split("&") if part]
    return url, [(name, value) for name, value in written]


def _segment(parameter: Parameter, value: Any) -> str:
    """Return a path parameter that stays within its segment."""
    text = _text(parameter, value)
    parts = text.replace("\\", "/").split("/")
    if any(part in (".", "..") for part in parts):
        # ADK's wire literal. Quoting leaves dots as they are, and a server may take `%2F` for a slash.
        raise ArgumentRefused(
            f"Path parameter {parameter.name!r} must not contain current-directory or parent-directory segments."
        )
    if not text:
        raise ArgumentRefused(f"Path parameter {parameter.name!r} must not be empty: another path would be meant.")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ArgumentRefused(f"Path parameter {parameter.name!r} is not valid Unicode.") from None


def _headers(operation: Operation, given: JsonObject) -> dict[str, str]:
    headers = {}
    for parameter, value in _at("header", operation, given):
        text = _text(parameter, value)
        if not text.isascii() or not text.isprintable():
            raise ArgumentRefused(f"Header parameter {parameter.name!r} must be printable ASCII, on one line.")
        headers[parameter.name] = text
    return headers


def _set(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header, whatever the case in which another set it."""
    for other in [other for other in headers if other.lower() == name.lower()]:
        del headers[other]
    headers[name] = value


def _pairs(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Return what a query or cookie parameter becomes, by OpenAPI's styles `form` and `deepObject`."""
    name = parameter.name
    if parameter.as_json:
        return [(name, _checked(parameter, json.dumps(value, ensure_ascii=False)))]
    if isinstance(value, dict):
        fields = {key: _text(parameter, item) for key, item in value.items() if item is not None}
        if parameter.style == "deepObject":
            return [(f"{name}[{key}]", item) for key, item in fields.items()]
        # An object's own keys would be parameters of any name, so the model could set what the author did not offer.
        offered = parameter.schema.get("properties", {}) if isinstance(parameter.schema, dict) else {}
        if parameter.explode and set(fields) <= set(offered):
            return list(fields.items())
        return [(name, ",".join(f"{key},{item}" for key, item in fields.items()))]
    if isinstance(value, list) and parameter.explode:
        return [(name, _text(parameter, item)) for item in value if item is not None]
    return [(name, _text(parameter, value))]


def _text(parameter: Parameter, value: Any) -> str:
    """Return a value as OpenAPI's style `simple` writes it. Source: ADK 2.13."""
    if parameter.as_json:
        return _checked(parameter, json.dumps(value, ensure_ascii=False))
    return _checked(parameter, _simple(value))


def _simple(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_simple(item) for item in value if item is not None)
    if isinstance(value, dict):
        return ",".join(f"{key},{_simple(item)}" for key, item in value.items() if item is not None)
    return str(value)


def _checked(parameter: Parameter, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentRefused(f"Parameter {parameter.name!r} is not valid Unicode.") from None
    return text


def _body(operation: Operation, given: JsonObject) -> tuple[JsonObject, str | None]:
    """Return the body as httpx takes it, and its media type when httpx does not write that itself."""
    media_type = operation.media_type
    if media_type is None:
        return {}, None
    parameters = [parameter for parameter in operation.parameters if parameter.location == "body"]
    value: Any
    if operation.whole_body:
        value = given.get(parameters[0].argument) if parameters else None
    else:
        value = {p.name: given[p.argument] for p in parameters if p.argument in given}
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
        # With a boundary that only httpx knows, so it writes the header.
        return {"files": [(p.name, _part(p, item)) for p, item in parts]}, None
    return {"content": value.encode() if isinstance(value, str) else _json(value)}, media_type


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ArgumentRefused(f"The body cannot be written as JSON: {type(error).__name__}.") from None


def _form(value: Any) -> Any:
    return [_form(item) for item in value] if isinstance(value, list) else _field(value)


def _field(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else _simple(value)


def _part(parameter: Parameter, value: Any) -> tuple[str | None, bytes]:
    """Return a part of a form: a file only where the specification has one."""
    schema = parameter.schema if isinstance(parameter.schema, dict) else {}
    is_file = schema.get("format") == "binary" or "contentMediaType" in schema
    return (parameter.name if is_file else None), _field(value).encode()


def valid_header(name: str, value: str) -> bool:
    """Whether a header can be sent."""
    return bool(_NAME.fullmatch(name)) and value.isascii() and value.isprintable()
