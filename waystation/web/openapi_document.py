"""The OpenAPI document of the JSON API, from the typed routes of the route table."""

import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from waystation.core.payload import JsonObject
from waystation.web.http_responses import PROBLEM, ProblemDocument, render_page
from waystation.web.list_query import MAX_FILTER_CHARS, ListQuery
from waystation.web.paths import API_V1, root
from waystation.web.route_table import RouteRow
from waystation.web.typed_routes import EVENTS, JSON, KEY_HEADER, KEY_PATTERN, MAX_KEY_CHARS, Query, TypedRoute

PAGE, DOCUMENT = API_V1, f"{API_V1}/openapi.json"
REF = "#/components/schemas/{model}"
ANY_TEXT = {"type": "string"}
QUOTABLE = r"""^[^'"\\\x00-\x1f\x7f]*$"""
"""The filters that the server searches for cannot contain quotation marks, backslashes or control characters."""


def make_document(table: Sequence[RouteRow]) -> JsonObject:
    """Return the document that describes the typed routes of a table."""
    routes = [(row, row.handler) for row in table if isinstance(row.handler, TypedRoute)]
    inputs: list[Any] = [(ProblemDocument, "serialization", TypeAdapter(ProblemDocument))]
    for _, route in routes:
        inputs += [(route, "validation", TypeAdapter(route.body))] if route.body else []
        inputs += [(route, "serialization", reply)] if (reply := route.reply or route.data) else []
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=REF)
    paths: dict[str, JsonObject] = {}
    for row, route in routes:
        operation = _describe(row, route)
        if route.body:
            content = {JSON: {"schema": schemas[route, "validation"]}}
            operation["requestBody"] = {"required": True, "content": content}
        schema = schemas.get((route, "serialization"))
        good = {route.media: _describe_stream(schema) if route.media == EVENTS else {"schema": schema or ANY_TEXT}}
        bad = {PROBLEM: {"schema": schemas[ProblemDocument, "serialization"]}}
        operation["responses"] = {
            **{f"{code.value}": {"description": code.phrase, "content": good} for code in route.codes},
            "default": {"description": "The request was refused, or failed.", "content": bad},
        }
        paths.setdefault(row.path, {})[row.method.lower()] = operation
    schemes = {
        "token": {"type": "http", "scheme": "bearer"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "waystation"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Waystation", "version": "1"},
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {}), "securitySchemes": schemes},
        "security": [{name: []} for name in schemes],
    }


def _describe_stream(data: JsonObject | None) -> JsonObject:
    """Return what OpenAPI 3.2 has for streams. Tools that only know 3.1 ignore it."""
    content = {"contentMediaType": JSON} | ({"contentSchema": data} if data else {})
    fields = {"event": ANY_TEXT, "id": ANY_TEXT, "data": {**ANY_TEXT, **content}}
    return {"itemSchema": {"type": "object", "properties": fields, "required": ["data"]}}


def make_document_rows(table: Sequence[RouteRow]) -> list[RouteRow]:
    """Return the rows for the document about a table, and for the page on which people try its routes."""
    # Made when it is first read, because that takes ten times as long as the rest of the application.
    make = functools.cache(lambda: make_document(table))

    async def serve_document(_: Request) -> Response:
        return JSONResponse({**make(), "servers": [{"url": root() or "/"}]})

    async def serve_page(request: Request) -> Response:
        return render_page("api.html", login=request.state.login, document=make(), address=DOCUMENT)

    return [RouteRow("GET", PAGE, serve_page, "login"), RouteRow("GET", DOCUMENT, serve_document, "login")]


def _describe(row: RouteRow, route: TypedRoute) -> JsonObject:
    summary, _, description = (inspect.getdoc(route.handle) or "").partition("\n\n")
    name = getattr(route.handle, "__name__", "")
    return {
        "operationId": name,
        "summary": " ".join(summary.split()),
        "description": " ".join(description.partition("Raises:")[0].split()),
        "tags": [row.path.split("/")[3]],
        "parameters": list(_list_parameters(row, route)),
        "x-role": row.role,
    }


def _list_parameters(row: RouteRow, route: TypedRoute) -> Iterator[JsonObject]:
    for name in [part[1:-1] for part in row.path.split("/") if part.startswith("{")]:
        about = {"description": "Write `/` as `%2F`.", "example": "payer-1/fc-1"}
        yield {"name": name, "in": "path", "required": True, "schema": ANY_TEXT, **about}
    if route.query is not None:
        for name, schema in _list_fields(route.query):
            yield {"name": name, "in": "query", "required": False, "schema": schema}
    if route.is_keyed:
        text = "The same request with the same key has an effect only once, and gets the same response."
        schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": KEY_PATTERN}
        yield {"name": KEY_HEADER, "in": "header", "required": False, "schema": schema, "description": text}


def _list_fields(kind: type[Query] | type[ListQuery]) -> Iterator[tuple[str, JsonObject]]:
    if not issubclass(kind, ListQuery):
        yield from TypeAdapter(kind).json_schema().get("properties", {}).items()
        return
    for field in fields(kind):
        if field.name == "page":
            yield field.name, {"type": "integer", "minimum": 1, "maximum": 999_999, "default": 1}
        elif choices := kind.choices.get(field.name):
            values = list(dict.fromkeys([*choices, field.default]))
            yield field.name, {"type": "string", "enum": values, "default": field.default}
        else:
            pattern = {"pattern": QUOTABLE} if field.name in kind.quoted else {}
            yield field.name, {"type": "string", "maxLength": MAX_FILTER_CHARS, "default": field.default, **pattern}
