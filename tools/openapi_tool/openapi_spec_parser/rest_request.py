"""Prepare the request for a call of an operation.

Models can copy untrusted text into arguments. An argument must never change where a request goes, or add a header,
cookie or parameter that the specification does not have.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools import Authorization
from waystation.tools.openapi_tool.openapi_spec_parser.specification import (
    HEADER,
    Operation,
    Parameter,
    applied_parts,
    is_json,
)

# How OpenAPI's styles join the parts of a value, as in RFC 6570 (`simple`, `label` and `matrix` are for paths).
_SEPARATORS = {"spaceDelimited": " ", "pipeDelimited": "|"}
"""The separators of query styles, if not a comma."""
_PATH_STYLES = {"simple": ("", ","), "label": (".", "."), "matrix": (";", ";")}
"""The prefix of an expression, and the separator of its exploded parts."""

_COOKIE_CHARS = "!#$&'()*+-./:<=>?@[]^_`{|}~"
_TOKEN_CHARS = "!#$&'*+-.^_`|~"
_RESERVED_CHARS = ":/?@!$'()*,="
"""Reserved characters that cannot end a query parameter, and that no service decodes to something else."""


class ArgumentRefused(ValueError):
    """An argument cannot be sent. The message is sent to the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestRequest:
    """An HTTP request."""

    method: str
    url: str
    query: str = field(default="", repr=False)
    """The query, percent-encoded."""
    headers: httpx2.Headers = field(default_factory=httpx2.Headers, repr=False)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The keyword argument that passes the body to httpx: `files` or `content`."""


def request_for(
    operation: Operation, args: JsonObject, *, authorization: Authorization, headers: Mapping[str, str]
) -> RestRequest:
    """Return the request for a call, ignoring unknown arguments.

    Headers from the toolset's settings override those from arguments, and the credential's headers override both.

    Raises:
        ArgumentRefused: An argument is missing or cannot be sent.
        InvalidTool: A header of the settings or the credential cannot be sent. The message does not contain its value.
    """
    required = [p for p in operation.parameters if p.required and isinstance(p.schema, dict)]
    args = {**{p.argument: p.schema["default"] for p in required if p.schema.get("default") is not None}, **args}
    body, content_type = _body(operation, args)
    cookies = [pair for pair in _pairs_in("cookie", operation, args) if pair[0] not in authorization.cookies]
    cookie = "; ".join(f"{name}={value}" for name, value in (*cookies, *authorization.cookies.items()))
    own = {"Content-Type": content_type} if content_type else {}
    secret = {**authorization.headers, "Cookie": cookie} if cookie else authorization.headers
    sent = httpx2.Headers()
    for name, value in (pair for part in (_headers(operation, args), own, headers, secret) for pair in part.items()):
        if not is_header(name, value):
            raise InvalidTool(operation.name, f"the header {name!r} cannot be sent; use printable ASCII on one line.")
        sent[name] = value
    url, path_query = _url(operation, args)
    return RestRequest(
        method=operation.method,
        url=url,
        query=_query(path_query, _pairs_in("query", operation, args), authorization.query),
        headers=sent,
        body=body,
    )


def _query(in_path: list[tuple[str, str]], pairs: list[tuple[str, str]], secret: Mapping[str, str]) -> str:
    """Join parameters. Those of the credential replace arguments, which replace those in the operation's path."""
    last = [(quote(name, safe=""), quote(value, safe="")) for name, value in secret.items()]
    merged: list[tuple[str, str]] = []
    for more in (in_path, pairs, last):
        merged = [pair for pair in merged if pair[0] not in dict(more)] + more
    return "&".join(f"{name}={value}" for name, value in merged)


def is_header(name: str, value: str) -> bool:
    """Return whether a header can be sent, and cannot bring another one."""
    return bool(HEADER.fullmatch(name)) and value.isascii() and value.isprintable()


def _select_location(location: str, operation: Operation, args: JsonObject) -> Iterator[tuple[Parameter, Any]]:
    for parameter in operation.parameters:
        is_given = parameter.location == location and parameter.argument in args
        if is_given and (args[parameter.argument] is not None or parameter.allow_empty):
            yield parameter, "" if args[parameter.argument] is None else args[parameter.argument]


def _url(operation: Operation, args: JsonObject) -> tuple[str, list[tuple[str, str]]]:
    """Return the URL without its query, and the query parameters that the operation's path contains."""
    values = {
        parameter.name: _segment(parameter, value) for parameter, value in _select_location("path", operation, args)
    }
    path, _, query = operation.path.partition("#")[0].partition("?")
    arguments = {parameter.name: parameter.argument for parameter in operation.parameters}
    for name in re.findall(r"\{([^{}]*)\}", path):
        if name not in values:
            raise ArgumentRefused(f"Missing required path parameter '{arguments.get(name, name)}'.")
    url = operation.server.rstrip("/") + re.sub(r"\{([^{}]*)\}", lambda match: values[match[1]], path)
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
    headers = {
        parameter.name: _join(parameter, value, str)
        for parameter, value in _select_location("header", operation, args)
        if value not in ([], {})
    }
    for name, text in headers.items():
        if not is_header(name, text):
            raise ArgumentRefused(f"Header parameter {name!r} must be printable ASCII, on one line.")
    return headers


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
    if not isinstance(value, dict):
        return parameter
    schema = parameter.schema if isinstance(parameter.schema, dict) else {}
    unknown = {key for key, item in value.items() if item is not None} - find_properties(schema, operation.defs).keys()
    is_open = schema.get("additionalProperties", False) is not False
    is_safe = not unknown or (is_open and unknown.isdisjoint(other.name for other in operation.parameters))
    return parameter if is_safe else replace(parameter, explode=False)


def _expand(parameter: Parameter, value: Any) -> list[tuple[str, list[str]]]:
    """Return the pairs that a value consists of, each with a name and the texts to join. Nulls are left out."""
    name = parameter.name
    if is_json(parameter.content_type):
        return [(name, [_dump(name, value, ensure_ascii=parameter.location == "header")])]
    if parameter.style == "deepObject" and isinstance(value, dict | list):
        return [(key, [text]) for key, text in _nest(name, value)]
    if isinstance(value, dict):
        pairs = [(_check(name, key), _text(name, item)) for key, item in value.items() if item is not None]
        texts = [text for pair in pairs for text in pair]
    else:
        texts = [_text(name, item) for item in (value if isinstance(value, list) else [value]) if item is not None]
        pairs = [(name, text) for text in texts]
    if parameter.explode:
        return [(key, [text]) for key, text in pairs]
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
    pairs = [(encode(name), ",".join(map(encode, texts))) for name, texts in _expand(parameter, value)]
    return prefix + between.join(f"{name}={text}" if is_named else text for name, text in pairs)


def _text(name: str, value: Any) -> str:
    """Return the text of a value inside a parameter or a form."""
    if isinstance(value, float):  # not 1e+16, which services do not accept for integers
        return format(Decimal(repr(value)).normalize(), "f")
    return _check(name, value) if isinstance(value, str) else _dump(name, value)


def _dump(name: str, value: Any, **options: Any) -> str:
    try:
        text = json.dumps(value, **{"ensure_ascii": False, "allow_nan": False, "separators": (",", ":"), **options})
        text.encode()
    except (ValueError, RecursionError) as error:
        raise ArgumentRefused(f"Parameter {name!r} is not valid JSON or Unicode: {type(error).__name__}.") from None
    return text


def _check(name: str, text: str) -> str:
    _dump(name, text)  # which refuses what is not valid Unicode
    return text


def _body(operation: Operation, args: JsonObject) -> tuple[JsonObject, str | None]:
    """Return httpx's keyword argument for the body, and the Content-Type, or None if httpx sets that header."""
    media_type = operation.media_type
    if media_type is None:
        return {}, None
    parameters = [parameter for parameter in operation.parameters if parameter.location == "body"]
    if operation.whole_body:
        whole = parameters[0]
        value, schemas = args.get(whole.argument), find_properties(whole.schema, operation.defs)
        is_absent = value is None and not (operation.body_required and whole.argument in args)
    else:
        value = {p.name: args[p.argument] for p in parameters if p.argument in args}
        schemas = {p.name: p.schema for p in parameters}
        # Some services refuse these requests if they have a body.
        is_absent = not (value or operation.body_required) and operation.method in ("GET", "HEAD", "DELETE")
    if is_absent:
        return {}, None
    kind = media_type.partition(";")[0].strip().lower()
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data") and isinstance(value, dict):
        fields = [
            (_field(operation, name, schemas.get(name), item), item) for name, item in value.items() if item is not None
        ]
        if kind == "multipart/form-data":
            # httpx sets the Content-Type header, because it chooses the boundary.
            return {"files": [part for parameter, item in fields for part in _parts(operation, parameter, item)]}, None
        pairs = [pair for parameter, item in fields for pair in _pairs(operation, parameter, item)]
        return {"content": "&".join(f"{name}={text}" for name, text in pairs).encode()}, media_type
    if isinstance(value, str) and not is_json(media_type):
        return {"content": _check("body", value).encode()}, media_type
    return {"content": _dump("body", value, separators=None).encode()}, media_type


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
    kinds = (kind.strip() for kind in declared.split(",") if "*" not in kind and is_header("Content-Type", kind))
    media_type = next(filter(None, kinds), "application/json" if is_nested else None)
    # A model cannot pass headers of a part, so only those with a fixed value or a default are sent.
    fixed = {
        name: (header.get("schema") or {}).get("const", (header.get("schema") or {}).get("default"))
        for name, header in ((operation.encoding.get(parameter.name) or {}).get("headers") or {}).items()
    }
    headers = {
        name: str(text)
        for name, text in fixed.items()
        if text is not None and name.lower() != "content-type" and is_header(name, str(text))
    }
    for name, texts in _expand(_limit(operation, parameter, value), value):
        text = _SEPARATORS.get(parameter.style, ",").join(texts)
        yield name, (name if is_file else None, text.encode(), media_type, headers)


def find_properties(schema: Any, defs: JsonObject) -> JsonObject:
    """Return the schemas of an object's properties, including those in `allOf`, `anyOf`, `oneOf` and references."""
    properties: JsonObject = {}
    for part in applied_parts({}, schema, defs, ("allOf", "anyOf", "oneOf")):
        properties = {**(part.get("properties") or {}), **properties}
    return properties
