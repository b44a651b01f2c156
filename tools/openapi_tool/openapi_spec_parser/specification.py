"""From a specification to operations. Source: adk-semantics 10; names and flattening are ADK's."""

import json
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ValidationError

from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools.openapi_tool.openapi_spec_parser.parameter_schema import (
    UnknownReference,
    resolved,
    standing_alone,
    with_known_types,
)

MAX_NAME_CHARS = 60
"""ADK's limit for names."""
METHODS = ("get", "post", "put", "delete", "patch", "head", "options", "trace")
# What the specification says is ignored, and what would send the request elsewhere.
_NO_PARAMETERS = frozenset({"accept", "content-type", "authorization", "host", "cookie", "content-length"})
_UNNAMED = {"body": "body", "query": "query_param", "path": "path_param", "header": "header_param"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One value that an operation takes."""

    name: str
    """As the service calls it."""
    argument: str
    """As the model calls it."""
    location: Literal["path", "query", "header", "cookie", "body"]
    schema: Any
    required: bool = False
    explode: bool = True
    style: str = ""
    as_json: bool = False
    """Whether the value is sent as a JSON text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One thing that a service can be asked to do."""

    name: str
    operation_id: str
    description: str
    method: str
    path: str
    server: str
    """The URL that the path is appended to; empty or relative when the specification does not say more."""
    parameters: tuple[Parameter, ...] = ()
    defs: JsonObject = field(default_factory=dict)
    media_type: str | None = None
    """How the body is sent; None without a body."""
    whole_body: bool = False
    """Whether one argument is the body, instead of each being a field of it."""
    security: JsonObject | None = None
    """The security scheme that the operation requires."""

    @property
    def schema(self) -> JsonObject:
        """What a model is told to give, as one JSON schema."""
        properties = {parameter.argument: parameter.schema for parameter in self.parameters}
        written: JsonObject = {
            "properties": properties,
            "required": [parameter.argument for parameter in self.parameters if parameter.required],
            "title": f"{self.operation_id}_Arguments",
            "type": "object",
        }
        return {**written, "$defs": self.defs} if self.defs else written


def load(spec: str, kind: str) -> JsonObject:
    """Return a specification that was given as text.

    Raises:
        ValueError: The kind is neither `json` nor `yaml`.
        InvalidTool: The text is not of that kind, or no object.
    """
    if kind not in ("json", "yaml"):
        raise ValueError(f"Unsupported spec type: {kind}")
    try:
        loaded: Any = json.loads(spec) if kind == "json" else _yaml(spec)
    except ValueError as error:
        other = "; give `spec_str_type='yaml'` if it is YAML" if kind == "json" else ""
        text = f"the specification is not {kind.upper()}: {error}{other}."
        raise InvalidTool("OpenAPIToolset", text) from None
    if not isinstance(loaded, dict):
        raise InvalidTool("OpenAPIToolset", "the specification must be an object.")
    return loaded


def _yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Leaves dates as they are written: JSON has none."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return _with_texts_as_keys(yaml.load(text, Loader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _with_texts_as_keys(value: Any) -> Any:
    """Return YAML as JSON has it, where the key `200` of a response is a text."""
    if isinstance(value, dict):
        return {str(key): _with_texts_as_keys(item) for key, item in value.items()}
    return [_with_texts_as_keys(item) for item in value] if isinstance(value, list) else value


def operations_of(document: JsonObject, *, server: str | None = None, preserve_names: bool = False) -> list[Operation]:
    """Return every operation, in the document's order, each with a name of its own.

    `server` is used instead of those in the document.

    Raises:
        InvalidTool: The document is not one of OpenAPI 3.0 or 3.1; the message says where.
    """
    document = with_known_types(document)
    check(document)
    operations: list[Operation] = []
    names: set[str] = set()
    for path, item in (document.get("paths") or {}).items():
        where = f"{path}"
        try:
            shared = resolved(document, item) or {}
            for method in METHODS:
                if isinstance(shared.get(method), dict):
                    where = f"{method.upper()} {path}"
                    operation = _Reader(document, path, method, shared, server, preserve_names).operation(names)
                    names.add(operation.name)
                    operations.append(operation)
        except UnknownReference as error:
            raise InvalidTool("OpenAPIToolset", f"in {where}: {error}") from None
    return operations


def check(document: JsonObject) -> None:
    """Check that a document is a specification of OpenAPI 3.

    Raises:
        InvalidTool: It is not; the message says where.
    """
    version = str(document.get("openapi") or document.get("swagger") or "")
    if not version.startswith(("3.0", "3.1")):
        raise InvalidTool(
            "OpenAPIToolset",
            f"the specification is of version {version or 'unknown'!r}; give one of OpenAPI 3.0 or 3.1.",
        )
    try:
        from openapi_pydantic.v3.v3_0 import OpenAPI as OpenAPI30
        from openapi_pydantic.v3.v3_1 import OpenAPI as OpenAPI31
    except ModuleNotFoundError as error:
        raise ImportError(
            f"OpenAPIToolset needs the package `{(error.name or '').partition('.')[0]}`; install `waystation[openapi]`."
        ) from error

    old = version.startswith("3.0")
    # Left out by many, and nothing is read from them.
    filled = {"info": {"title": "", "version": ""}, "paths": {}, **document, "openapi": "3.0.3" if old else "3.1.0"}
    filled["paths"] = {path: _with_responses(item) for path, item in (filled["paths"] or {}).items()}
    try:
        (OpenAPI30 if old else OpenAPI31).model_validate(filled)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidTool("OpenAPIToolset", f"the specification is wrong at `{where}`: {first['msg']}.") from None


def _with_responses(item: Any) -> Any:
    if not isinstance(item, dict):
        return item or {}
    return {
        key: {"responses": {"default": {"description": ""}}, **value}
        if key in METHODS and isinstance(value, dict)
        else value
        for key, value in item.items()
    }


class _Reader:
    """Reads one operation."""

    def __init__(
        self, document: JsonObject, path: str, method: str, item: JsonObject, server: str | None, preserve_names: bool
    ) -> None:
        self._document, self._path, self._method, self._item = document, path, method, item
        self._raw: JsonObject = item[method]
        self._server, self._preserve_names = server, preserve_names

    def operation(self, names: set[str]) -> Operation:
        raw = self._raw
        operation_id = raw.get("operationId") or snake_case(f"{self._path}_{self._method}")
        media_type, body = self._body()
        given = [*self._parameters(), *self._of_body(media_type, body)]
        arguments = _numbered([argument for argument, _ in given])
        schemas, defs = standing_alone(
            self._document, {argument: told["schema"] for argument, (_, told) in zip(arguments, given, strict=True)}
        )
        return Operation(
            name=_unique(snake_case(operation_id)[:MAX_NAME_CHARS], names),
            operation_id=operation_id,
            description=raw.get("description") or raw.get("summary") or "",
            method=self._method.upper(),
            path=self._path,
            server=self._base(),
            parameters=tuple(
                _parameter(argument, told, schemas[argument])
                for argument, (_, told) in zip(arguments, given, strict=True)
            ),
            defs=defs,
            media_type=media_type,
            whole_body=bool(body) and not self._has_fields(body),
            security=self._security(),
        )

    def _parameters(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield the argument name and the rest of each parameter; the operation's own replace those of its path."""
        found: dict[tuple[str, str], JsonObject] = {}
        for item in [*(self._raw.get("parameters") or []), *(self._item.get("parameters") or [])]:
            parameter = resolved(self._document, item)
            found.setdefault((parameter["name"], parameter["in"]), parameter)
        for (name, location), parameter in found.items():
            if location == "header" and name.lower() in _NO_PARAMETERS:
                continue
            content: JsonObject = parameter.get("content") or {}
            holder: JsonObject = next(iter(content.values())) if content else parameter
            style = parameter.get("style") or ("form" if location in ("query", "cookie") else "simple")
            told = {
                "name": name,
                "location": location,
                "schema": holder.get("schema", {}),
                "required": location == "path" or bool(parameter.get("required")),
                "style": style,
                "explode": parameter.get("explode", style == "form"),
                "as_json": bool(content),
                "about": parameter.get("description") or "",
            }
            yield self._argument(name, location), told

    def _argument(self, name: str, location: str) -> str:
        return argument_name(name, location, preserve=self._preserve_names)

    def _body(self) -> tuple[str | None, Any]:
        """Return how the body is sent, and its schema: the first media type, as in ADK."""
        body = resolved(self._document, self._raw.get("requestBody")) or {}
        for media_type, content in (body.get("content") or {}).items():
            return media_type, content.get("schema", {})
        return None, None

    def _has_fields(self, body: Any) -> bool:
        schema = resolved(self._document, body)
        return isinstance(schema, dict) and schema.get("type") == "object"

    def _of_body(self, media_type: str | None, body: Any) -> Iterator[tuple[str, JsonObject]]:
        if media_type is None:
            return
        schema = resolved(self._document, body)
        if self._has_fields(body):
            required = set(schema.get("required") or ())
            for name, part in (schema.get("properties") or {}).items():
                told = {"name": name, "location": "body", "schema": part, "required": name in required}
                yield self._argument(name, "body"), told
            return
        about = (resolved(self._document, self._raw.get("requestBody")) or {}).get("description") or ""
        kind = schema.get("type") if isinstance(schema, dict) else None
        name = "array" if kind == "array" else "body"
        yield name, {"name": name, "location": "body", "schema": body, "about": about}

    def _base(self) -> str:
        if self._server is not None:
            return self._server
        for holder in (self._raw, self._item, self._document):
            for server in holder.get("servers") or ():
                return server_url(server)
        return ""

    def _security(self) -> JsonObject | None:
        """Return the first scheme that is required; an empty requirement makes authentication optional."""
        required = self._raw.get("security", self._document.get("security")) or []
        if not all(required):
            return None
        schemes = (self._document.get("components") or {}).get("securitySchemes") or {}
        for requirement in required:
            for name in requirement:
                scheme: JsonObject | None = resolved(self._document, schemes.get(name))
                return scheme
        return None


def servers_of(document: JsonObject) -> Iterator[str]:
    """Yield the URLs of all servers in a specification."""
    holders = [document]
    for item in (document.get("paths") or {}).values():
        shared = resolved(document, item) or {}
        holders += [shared, *(shared[method] for method in METHODS if isinstance(shared.get(method), dict))]
    for holder in holders:
        for server in holder.get("servers") or ():
            yield server_url(server)


def server_url(server: JsonObject) -> str:
    """Return a server's URL with the defaults of its variables."""
    variables = server.get("variables") or {}
    return re.sub(
        r"\{([^{}]*)\}",
        lambda found: str((variables.get(found[1]) or {}).get("default", found[0])),
        server.get("url", ""),
    )


def joined(server: str, path: str) -> str:
    """Return the URL of a path below a server."""
    return server.rstrip("/") + path


def is_absolute(url: str) -> bool:
    """Whether requests can be sent to a URL."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def argument_name(name: str, location: str, *, preserve: bool = False) -> str:
    """Return what a model calls a parameter. Source: ADK 2.13."""
    found = name if preserve else snake_case(name)
    return f"param_{found}" if keyword.iskeyword(found) else found or _UNNAMED.get(location, "value")


def snake_case(text: str) -> str:
    """Return a name as ADK writes it: `petID v2` becomes `pet_id_v2`."""
    text = re.sub(r"[^a-zA-Z0-9]+", "_", text)
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    text = re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return re.sub(r"_+", "_", text.lower()).strip("_")


def _numbered(names: list[str]) -> list[str]:
    """Return names of which none is there twice: `id`, `id_0`, `id_1`. Source: ADK 2.13."""
    found: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in found or (number and unique in names):
            unique, number = f"{name}_{number}", number + 1
        found.append(unique)
    return found


def _unique(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name[: MAX_NAME_CHARS - len(f'_{number}')]}_{number}"
    return found


def _parameter(argument: str, told: JsonObject, schema: Any) -> Parameter:
    about = told.pop("about", "")
    if isinstance(schema, dict) and about and not schema.get("description"):
        schema = {**schema, "description": about}
    return Parameter(argument=argument, **{**told, "schema": schema})
