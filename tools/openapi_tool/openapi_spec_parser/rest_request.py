"""Prepare the request for a call of an operation.

Models can copy untrusted text into arguments. An argument must never change where a request goes, or add a header,
cookie or parameter that the specification does not have.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlsplit

from waystation.core import JsonObject
from waystation.dataclass import dataclass
from waystation.tools import Authorization
from waystation.tools.openapi_tool.openapi_spec_parser.specification import Operation, Parameter, is_json

# How OpenAPI's styles join the parts of a value, as in RFC 6570 (`simple`, `label` and `matrix` are for paths).
_SEPARATORS = {"spaceDelimited": " ", "pipeDelimited": "|"}
"""The separators of query styles, if not a comma."""
_PATH_STYLES = {"simple": ("", ","), "label": (".", "."), "matrix": (";", ";")}
"""The prefix of an expression, and the separator of its exploded parts."""

_COOKIE_CHARS = "!#$&'()*+-./:<=>?@[]^_`{|}~"
_TOKEN_CHARS = "!#$&'*+-.^_`|~"
_RESERVED_CHARS = ":/?@!$'()*,="
"""Reserved characters that cannot end a query parameter, and that no service decodes to something else."""
_MAX_SCHEMA_DEPTH = 5


class ArgumentRefused(ValueError):
    """An argument cannot be sent. The message is sent to the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """An HTTP request."""

    method: str
    url: str
    query: str = field(default="", repr=False)
    """The query, percent-encoded."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The keyword argument that passes the body to httpx: `files` or `content`."""


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
    cookies = [pair for pair in _pairs_in("cookie", operation, known) if pair[0] not in authorization.cookies]
    if cookies or authorization.cookies:
        pairs = (*cookies, *authorization.cookies.items())
        _set_header(merged, "Cookie", "; ".join(f"{name}={value}" for name, value in pairs))
    url, path_query = _url(operation, known)
    query = _pairs_in("query", operation, known)
    replaced = {name for name, _ in query}
    query = [pair for pair in path_query if pair[0] not in replaced] + query
    secret = [(quote(name, safe=""), quote(value, safe="")) for name, value in authorization.query.items()]
    query = [pair for pair in query if pair[0] not in dict(secret)] + secret
    return Request(
        method=operation.method,
        url=url,
        query="&".join(f"{name}={value}" for name, value in query),
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
        if parameter.location == location and parameter.argument in args:
            value = args[parameter.argument]
            if value is not None or parameter.allow_empty:
                yield parameter, "" if value is None else value


def _url(operation: Operation, args: JsonObject) -> tuple[str, list[tuple[str, str]]]:
    """Return the URL without its query, and the query parameters that the operation's path contains."""
    values = {
        parameter.name: _segment(parameter, value) for parameter, value in _select_location("path", operation, args)
    }

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            argument = next((p.argument for p in operation.parameters if p.name == match[1]), match[1])
            raise ArgumentRefused(f"Missing required path parameter '{argument}'.")
        return values[match[1]]

    path, _, query = operation.path.partition("#")[0].partition("?")
    url = operation.server.rstrip("/") + re.sub(r"\{([^{}]*)\}", fill, path)
    before, after = urlsplit(operation.server), urlsplit(url)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise ArgumentRefused("The path does not begin with '/', so the request would go to another host.")
    return url, [(name, value) for name, _, value in (part.partition("=") for part in query.split("&") if part)]


def _segment(parameter: Parameter, value: Any) -> str:
    """Return the value of a path parameter, quoted so that it stays within its path segment."""
    texts = [text.replace("\\", "/") for _, parts in _expand(parameter, value) for text in parts]
    segment = _join(parameter, value, lambda text: quote(text, safe=""))
    # Quoting does not change dots, and a server may decode `%2F` to a slash.
    if any(part in (".", "..") for text in (segment, *texts) for part in text.split("/")):
        # The message is the same as in ADK.
        raise ArgumentRefused(
            f"Path parameter {parameter.name!r} must not contain current-directory or parent-directory segments."
        )
    if not any(texts):
        raise ArgumentRefused(f"Path parameter {parameter.name!r} must not be empty: it would address another path.")
    return segment


def _headers(operation: Operation, args: JsonObject) -> dict[str, str]:
    headers = {}
    for parameter, value in _select_location("header", operation, args):
        text = _join(parameter, value, str)
        if not text.isascii() or not text.isprintable():
            raise ArgumentRefused(f"Header parameter {parameter.name!r} must be printable ASCII, on one line.")
        if value not in ([], {}):
            headers[parameter.name] = text
    return headers


def _set_header(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header, replacing any header whose name differs only in case."""
    for other in [other for other in headers if other.lower() == name.lower()]:
        del headers[other]
    headers[name] = value


def _pairs_in(location: str, operation: Operation, args: JsonObject) -> list[tuple[str, str]]:
    """Return the encoded names and values of the parameters in the query or in cookies."""
    return [
        pair
        for parameter, value in _select_location(location, operation, args)
        for pair in _pairs(operation, parameter, value)
    ]


def _pairs(operation: Operation, parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Return the encoded names and values for a parameter of a query, or for a field of a form."""
    is_cookie = parameter.location == "cookie"
    safe = _COOKIE_CHARS if is_cookie else _RESERVED_CHARS if parameter.allow_reserved else ""
    separator = quote(_SEPARATORS.get(parameter.style, ","), safe="" if is_cookie else ",")
    return [
        (
            quote(name, safe=_TOKEN_CHARS if is_cookie else ""),
            separator.join(quote(text, safe=safe) for text in texts),
        )
        for name, texts in _expand(_limit(operation, parameter, value), value)
    ]


def _limit(operation: Operation, parameter: Parameter, value: Any) -> Parameter:
    """Return the parameter, not exploded if a key of the value must not become a parameter.

    Otherwise, a model could set parameters that the specification does not have, or that have other meanings.
    """
    schema = parameter.schema if isinstance(parameter.schema, dict) else {}
    keys = {key for key, item in value.items() if item is not None} if isinstance(value, dict) else set()
    unknown = keys - find_properties(schema, operation.defs).keys()
    is_open = schema.get("additionalProperties", False) is not False
    others = {other.name for other in operation.parameters}
    return replace(parameter, explode=False) if unknown and not (is_open and unknown.isdisjoint(others)) else parameter


def _expand(parameter: Parameter, value: Any) -> list[tuple[str, list[str]]]:
    """Return the pairs that a value consists of, each with a name and the texts to join. Nulls are left out."""
    name = parameter.name
    if parameter.as_json:
        return [(name, [_dump(name, value, ensure_ascii=parameter.location == "header")])]
    if parameter.style == "deepObject" and isinstance(value, dict | list):
        return [(key, [text]) for key, text in _nest(name, value)]
    if isinstance(value, dict):
        pairs = [(_check(name, key), _text(name, item)) for key, item in value.items() if item is not None]
        if parameter.explode:
            return [(key, [text]) for key, text in pairs]
        texts = [text for pair in pairs for text in pair]
    elif isinstance(value, list):
        texts = [_text(name, item) for item in value if item is not None]
        if parameter.explode:
            return [(name, [text]) for text in texts]
    else:
        return [(name, [_text(name, value)])]
    return [(name, texts)] if texts else []


def _nest(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs for a value in the style `deepObject`.

    OpenAPI does not define arrays and nested objects. Write them as Stripe's clients and npm's `qs` do: `a[b][0]=x`.
    """
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _nest(f"{name}[{key}]", item)
    elif value is not None:
        yield _check(name, name), _text(name, value)


def _join(parameter: Parameter, value: Any, encode: Callable[[str], str]) -> str:
    """Return a value in the style of a path or header parameter."""
    prefix, between = _PATH_STYLES.get(parameter.style, ("", ","))
    is_named = parameter.style == "matrix" or (parameter.explode and isinstance(value, dict))
    parts = []
    for name, texts in _expand(parameter, value):
        text = ",".join(map(encode, texts))
        parts.append(f"{encode(name)}={text}" if is_named else text)
    return prefix + between.join(parts)


def _text(name: str, value: Any) -> str:
    """Return the text of a value inside a parameter or a form."""
    if isinstance(value, float):  # not 1e+16, which services do not accept for integers
        return format(Decimal(repr(value)).normalize(), "f")
    return _check(name, value) if isinstance(value, str) else _dump(name, value)


def _dump(name: str, value: Any, *, ensure_ascii: bool = False) -> str:
    return _check(name, json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":")))


def _check(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentRefused(f"Parameter {name!r} is not valid Unicode.") from None
    return text


def _body(operation: Operation, args: JsonObject) -> tuple[JsonObject, str | None]:
    """Return httpx's keyword argument for the body, and the Content-Type, or None if httpx sets that header."""
    media_type = operation.media_type
    if media_type is None:
        return {}, None
    parameters = [parameter for parameter in operation.parameters if parameter.location == "body"]
    value: Any
    if operation.whole_body:
        whole = parameters[0]
        value, schemas = args.get(whole.argument), find_properties(whole.schema, operation.defs)
        if value is None and not (operation.body_required and whole.argument in args):
            return {}, None
    else:
        value = {p.name: args[p.argument] for p in parameters if p.argument in args}
        schemas = {p.name: p.schema for p in parameters}
        if not (value or operation.body_required) and operation.method in ("GET", "HEAD", "DELETE"):
            return {}, None  # some services refuse these requests if they have a body
    kind = media_type.partition(";")[0].strip().lower()
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data") and isinstance(value, dict):
        fields = [(_field(operation, name, schemas.get(name), item), item) for name, item in value.items()]
        fields = [(parameter, item) for parameter, item in fields if item is not None]
        if kind == "multipart/form-data":
            # httpx sets the Content-Type header, because it chooses the boundary.
            return {"files": [part for parameter, item in fields for part in _parts(operation, parameter, item)]}, None
        pairs = [pair for parameter, item in fields for pair in _pairs(operation, parameter, item)]
        return {"content": "&".join(f"{name}={text}" for name, text in pairs).encode()}, media_type
    if isinstance(value, str) and not is_json(media_type):
        return {"content": _check("body", value).encode()}, media_type
    return {"content": _json(value)}, media_type


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ArgumentRefused(f"The body cannot be encoded as JSON: {type(error).__name__}.") from None


def _field(operation: Operation, name: str, schema: Any, value: Any) -> Parameter:
    """Return a field of a form as a parameter. Its Encoding Object has a style, or else a content type."""
    encoding = operation.encoding.get(name) or {}
    style = encoding.get("style", "form")
    has_style = not encoding.keys().isdisjoint(("style", "explode", "allowReserved"))
    content_type = encoding.get("contentType") or ""
    default = "application/json" if isinstance(value, dict) else content_type  # objects are never written as XML
    return Parameter(
        name=name,
        argument=name,
        location="body",
        schema=schema,
        style=style,
        explode=encoding.get("explode", style == "form"),
        allow_reserved=bool(encoding.get("allowReserved")),
        content_type="" if has_style else content_type if is_json(content_type) else default,
    )


def _parts(operation: Operation, parameter: Parameter, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a field in a multipart form: name, file name, content, media type and headers.

    A part has a file name only if the specification declares a file.
    """
    schema = parameter.schema if isinstance(parameter.schema, dict) else {}
    if isinstance(value, list):
        schema = schema["items"] if isinstance(schema.get("items"), dict) else {}
    declared = parameter.content_type or schema.get("contentMediaType") or ""
    is_text = not declared or declared.startswith("text/") or is_json(declared)
    is_file = schema.get("format") == "binary" or not is_text
    items = value if isinstance(value, list) and parameter.style != "deepObject" else ()
    is_nested = any(isinstance(item, dict | list) for item in items)
    concrete = (kind.strip() for kind in declared.split(",") if kind and "*" not in kind)
    media_type = next(concrete, "application/json" if is_nested else None)
    # A model cannot pass headers of a part, so only those with a fixed value or a default are sent.
    fixed = {
        name: (header.get("schema") or {}).get("const", (header.get("schema") or {}).get("default"))
        for name, header in ((operation.encoding.get(parameter.name) or {}).get("headers") or {}).items()
    }
    headers = {name: str(text) for name, text in fixed.items() if text is not None and name.lower() != "content-type"}
    for name, texts in _expand(_limit(operation, parameter, value), value):
        text = _SEPARATORS.get(parameter.style, ",").join(texts)
        yield name, (name if is_file else None, text.encode(), media_type, headers)


def find_properties(schema: Any, defs: JsonObject, depth: int = 0) -> JsonObject:
    """Return the schemas of an object's properties, including those in `allOf`, `anyOf`, `oneOf` and references."""
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH:
        return {}
    parts = [part for key in ("allOf", "anyOf", "oneOf") for part in schema.get(key) or ()]
    parts.append(defs.get(str(schema.get("$ref")).rpartition("/")[2]))
    inherited = {name: one for part in parts for name, one in find_properties(part, defs, depth + 1).items()}
    return {**inherited, **(schema.get("properties") or {})}
