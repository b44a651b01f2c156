"""Read operations and schemas from an OpenAPI specification. Naming and parameter flattening match ADK."""

import json
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from openapi_pydantic.v3 import v3_0, v3_1
from pydantic import ValidationError

from waystation.core import InvalidTool, JsonObject
from waystation.dataclass import dataclass
from waystation.tools import validation_mistakes

MAX_PARTS = 5_000
"""Maximum number of parts in an operation's schemas with references inlined. Larger schemas keep their references."""

_NOT_JSON_SCHEMA = frozenset({"discriminator", "xml", "externalDocs"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
MAX_NAME_CHARS = 60
"""Maximum length of an operation's name, as in ADK."""
MAX_YAML_VALUES = 500_000
METHODS = ("get", "post", "put", "delete", "patch", "head", "options", "trace")
# Ignore these header parameters. OpenAPI requires this for the first three; the others could manipulate the request.
_NO_PARAMETERS = frozenset({"accept", "content-type", "authorization", "host", "cookie", "content-length"})
_UNNAMED = {"body": "body", "query": "query_param", "path": "path_param", "header": "header_param"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    """The parameter's name in the service."""
    argument: str
    """The parameter's name as the model sees it."""
    location: Literal["path", "query", "header", "cookie", "body"]
    schema: Any
    required: bool = False
    explode: bool = True
    style: str = ""
    as_json: bool = False
    """Whether to send the value encoded as JSON."""
    description: str = ""
    """The parameter's own description, which is separate from its schema's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation of a service."""

    name: str
    operation_id: str
    description: str
    method: str
    path: str
    server: str
    """Base URL for the path. Empty or relative if the specification does not give an absolute one."""
    parameters: tuple[Parameter, ...] = ()
    defs: JsonObject = field(default_factory=dict)
    media_type: str | None = None
    """Media type of the body, or None if the operation does not have a body."""
    whole_body: bool = False
    """Whether a single argument contains the whole body, rather than one argument per field."""
    security: JsonObject | None = None
    """The security scheme that the operation requires."""

    @property
    def schema(self) -> JsonObject:
        """The JSON schema of the arguments."""
        properties = {parameter.argument: parameter.schema for parameter in self.parameters}
        schema: JsonObject = {
            "properties": properties,
            "required": [parameter.argument for parameter in self.parameters if parameter.required],
            "title": f"{self.operation_id}_Arguments",
            "type": "object",
        }
        return {**schema, "$defs": self.defs} if self.defs else schema


def load(spec: str, kind: str) -> JsonObject:
    """Parse a specification from JSON or YAML text.

    Raises:
        ValueError: `kind` is neither `json` nor `yaml`.
        InvalidTool: The text cannot be parsed, or does not contain an object.
    """
    if kind not in ("json", "yaml"):
        raise ValueError(f"Unsupported spec type: {kind}")
    try:
        loaded: Any = json.loads(spec) if kind == "json" else _yaml(spec)
    except ValueError as error:
        other = "; pass `spec_str_type='yaml'` if it is YAML" if kind == "json" else ""
        raise InvalidTool("OpenAPIToolset", f"the specification is not valid {kind.upper()}: {error}{other}.") from None
    if not isinstance(loaded, dict):
        raise InvalidTool("OpenAPIToolset", "the specification must be an object.")
    return loaded


def _yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """A YAML loader that keeps dates as strings, because JSON does not have dates."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return _convert_keys_to_text(yaml.load(text, Loader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _convert_keys_to_text(value: Any) -> Any:
    """Convert all keys to strings, such as the status code 200 of a response.

    Raises:
        ValueError: There are too many values. By using YAML aliases, a short document can expand to a huge number.
    """
    remaining = MAX_YAML_VALUES

    def convert(value: Any) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise ValueError(f"it has more than {MAX_YAML_VALUES:,} values after expanding aliases")
        if isinstance(value, dict):
            return {str(key): convert(item) for key, item in value.items()}
        return [convert(item) for item in value] if isinstance(value, list) else value

    return convert(value)


def operations_of(document: JsonObject, *, server: str | None = None, preserve_names: bool = False) -> list[Operation]:
    """Return all operations in document order, with unique names.

    If given, `server` is used instead of the servers in the document.

    Raises:
        InvalidTool: The document is not valid OpenAPI 3.0 or 3.1. The message says where the problem is.
    """
    document = with_known_types(document)
    check(document)
    operations: list[Operation] = []
    names: set[str] = set()
    for path, item in (document.get("paths") or {}).items():
        where = path
        try:
            shared = dereference(document, item) or {}
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
    """Check that a document is a valid OpenAPI 3.0 or 3.1 specification.

    Raises:
        InvalidTool: The document is invalid. The message says where the problem is.
    """
    version = str(document.get("openapi") or document.get("swagger") or "")
    if not version.startswith(("3.0", "3.1")):
        raise InvalidTool(
            "OpenAPIToolset",
            f"the specification has version {version or 'unknown'!r}; use OpenAPI 3.0 or 3.1.",
        )
    old = version.startswith("3.0")
    # Fill in required fields that many documents omit and that we do not use.
    filled = {"info": {"title": "", "version": ""}, "paths": {}, **document, "openapi": "3.0.3" if old else "3.1.0"}
    filled["paths"] = {path: _add_responses(item) for path, item in (filled["paths"] or {}).items()}
    try:
        (v3_0 if old else v3_1).OpenAPI.model_validate(filled)
    except ValidationError as error:
        path, reason = validation_mistakes(error)[0]
        raise InvalidTool("OpenAPIToolset", f"the specification is invalid at `{path}`: {reason}.") from None


def _add_responses(item: Any) -> Any:
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
        media_type, fields, whole_body = self._body()
        parameters = [*self._parameters(), *fields]
        arguments = _number_duplicates([parameter.argument for parameter in parameters])
        schemas, defs = make_self_contained(
            self._document, dict(zip(arguments, (parameter.schema for parameter in parameters), strict=True))
        )
        return Operation(
            name=_make_unique(snake_case(operation_id)[:MAX_NAME_CHARS], names),
            operation_id=operation_id,
            description=raw.get("description") or raw.get("summary") or "",
            method=self._method.upper(),
            path=self._path,
            server=self._base(),
            parameters=tuple(
                replace(parameter, argument=argument, schema=_add_description(schemas[argument], parameter.description))
                for argument, parameter in zip(arguments, parameters, strict=True)
            ),
            defs=defs,
            media_type=media_type,
            whole_body=whole_body,
            security=self._security(),
        )

    def _parameters(self) -> Iterator[Parameter]:
        """Yield the parameters that are not in the body. An operation's parameters override those of its path."""
        raw: dict[tuple[str, Any], JsonObject] = {}
        for item in [*(self._raw.get("parameters") or []), *(self._item.get("parameters") or [])]:
            parameter = dereference(self._document, item)
            raw.setdefault((parameter["name"], parameter["in"]), parameter)
        for (name, location), parameter in raw.items():
            if location == "header" and name.lower() in _NO_PARAMETERS:
                continue
            content: JsonObject = parameter.get("content") or {}
            holder: JsonObject = next(iter(content.values())) if content else parameter
            style = parameter.get("style") or ("form" if location in ("query", "cookie") else "simple")
            yield Parameter(
                name=name,
                argument=self._argument(name, location),
                location=location,
                schema=holder.get("schema", {}),
                required=location == "path" or bool(parameter.get("required")),
                style=style,
                explode=parameter.get("explode", style == "form"),
                as_json=bool(content),
                description=parameter.get("description") or "",
            )

    def _body(self) -> tuple[str | None, list[Parameter], bool]:
        """Return the body's media type and parameters, and whether a single parameter is the whole body.

        As in ADK, only the first media type is considered.
        """
        body = dereference(self._document, self._raw.get("requestBody")) or {}
        content: JsonObject = body.get("content") or {}
        if not content:
            return None, [], False
        media_type, holder = next(iter(content.items()))
        schema = dereference(self._document, holder.get("schema", {}))
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind == "object":
            fields = [
                Parameter(
                    name=name,
                    argument=self._argument(name, "body"),
                    location="body",
                    schema=part,
                    required=name in (schema.get("required") or ()),
                )
                for name, part in (schema.get("properties") or {}).items()
            ]
            return media_type, fields, False
        name = "array" if kind == "array" else "body"
        whole = Parameter(
            name=name,
            argument=name,
            location="body",
            schema=holder.get("schema", {}),
            description=body.get("description") or "",
        )
        return media_type, [whole], True

    def _argument(self, name: str, location: str) -> str:
        """Return the name that the model sees for a parameter, chosen as in ADK 2.13."""
        argument = name if self._preserve_names else snake_case(name)
        return f"param_{argument}" if keyword.iskeyword(argument) else argument or _UNNAMED.get(location, "value")

    def _base(self) -> str:
        if self._server is not None:
            return self._server
        servers = next(
            filter(None, (holder.get("servers") for holder in (self._raw, self._item, self._document))), None
        )
        return server_url(servers[0]) if servers else ""

    def _security(self) -> JsonObject | None:
        """Return the first required security scheme, or None if authentication is not required.

        An empty security requirement in the list makes authentication optional.
        """
        required = self._raw.get("security", self._document.get("security")) or []
        if not all(required):
            return None
        schemes = (self._document.get("components") or {}).get("securitySchemes") or {}
        name = next((name for requirement in required for name in requirement), None)
        scheme: JsonObject | None = dereference(self._document, schemes.get(name))
        return scheme


def servers_of(document: JsonObject) -> Iterator[str]:
    """Yield the URL of every server in a specification."""
    holders = [document]
    for item in (document.get("paths") or {}).values():
        shared = dereference(document, item) or {}
        holders += [shared, *(shared[method] for method in METHODS if isinstance(shared.get(method), dict))]
    for holder in holders:
        for server in holder.get("servers") or ():
            yield server_url(server)


def server_url(server: JsonObject) -> str:
    """Return a server's URL, with variables replaced by their default values."""
    variables = server.get("variables") or {}
    return re.sub(
        r"\{([^{}]*)\}",
        lambda match: str((variables.get(match[1]) or {}).get("default", match[0])),
        server.get("url", ""),
    )


def is_absolute(url: str) -> bool:
    """Return whether a URL is absolute and uses http or https."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def snake_case(text: str) -> str:
    """Convert a name to snake case by ADK's rules. For example, `petID v2` becomes `pet_id_v2`."""
    text = re.sub(r"[^a-zA-Z0-9]+", "_", text)
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    text = re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return re.sub(r"_+", "_", text.lower()).strip("_")


def _number_duplicates(names: list[str]) -> list[str]:
    """Make names unique by numbering duplicates as in ADK 2.13: `id`, `id_0`, `id_1`."""
    uniques: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in uniques or (number and unique in names):
            unique, number = f"{name}_{number}", number + 1
        uniques.append(unique)
    return uniques


def _make_unique(name: str, taken: set[str]) -> str:
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name[: MAX_NAME_CHARS - len(f'_{number}')]}_{number}"
    return unique


def _add_description(schema: Any, description: str) -> Any:
    if isinstance(schema, dict) and description and not schema.get("description"):
        return {**schema, "description": description}
    return schema


# The rest of this module converts a specification's schemas to self-contained JSON schemas.


class UnknownReference(ValueError):
    """A `$ref` points to something that is not in the document."""

    def __init__(self, ref: str) -> None:
        self.ref = ref
        super().__init__(f"`$ref` {ref!r} does not exist in the document; use only references within the document.")


class _SchemaTooLarge(Exception):
    pass


def dereference(document: JsonObject, value: Any) -> Any:
    """Return the target if a value is a reference, otherwise return the value unchanged.

    Raises:
        UnknownReference: The target is not in the document, or the reference leads back to itself.
    """
    seen: set[str] = set()
    while isinstance(value, dict) and isinstance(value.get("$ref"), str):
        ref = value["$ref"]
        if ref in seen:
            raise UnknownReference(ref)
        seen.add(ref)
        value = _target(document, ref)
    return value


def _target(document: JsonObject, ref: str) -> Any:
    if not ref.startswith("#/"):
        raise UnknownReference(ref)
    target: Any = document
    for part in unquote(ref[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        elif isinstance(target, dict) and key in target:
            target = target[key]
        else:
            raise UnknownReference(ref)
    return target


def make_self_contained(document: JsonObject, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas under the same keys, and the `$defs` that they refer to.

    As in ADK, references are inlined. Recursive schemas are moved to `$defs`. If inlining makes the schemas too large,
    all referenced schemas are moved to `$defs`, because ten levels of references can expand to a million schemas.

    Raises:
        UnknownReference: A reference points to something that is not in the document.
    """
    try:
        return _SchemaConverter(document, inline=True).convert_all(schemas)
    except _SchemaTooLarge:
        return _SchemaConverter(document, inline=False).convert_all(schemas)


class _SchemaConverter:
    def __init__(self, document: JsonObject, *, inline: bool) -> None:
        self._document, self._inline = document, inline
        self._names: dict[str, str] = {}
        self._defs: dict[str, Any] = {}
        self._parts = 0
        # OpenAPI 3.0 schemas are not JSON schemas and need converting.
        self._is_openapi_30 = str(document.get("openapi", "")).startswith("3.0")

    def convert_all(self, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        converted = {key: self.convert(schema, ()) for key, schema in schemas.items()}
        while len(self._defs) < len(self._names):  # converting a schema may add more
            ref, name = list(self._names.items())[len(self._defs)]
            self._defs[name] = self.convert(_target(self._document, ref), (ref,))
        return converted, self._defs

    def convert(self, schema: Any, above: tuple[str, ...]) -> Any:
        """Convert a schema. `above` contains the references that were followed to get to it."""
        self._parts += 1
        if self._inline and self._parts > MAX_PARTS:
            raise _SchemaTooLarge
        if not isinstance(schema, dict):
            return schema  # True and False are schemas
        ref = schema.get("$ref")
        if isinstance(ref, str):
            return self._convert_reference(ref, schema, above)
        written: JsonObject = {}
        for key, value in schema.items():
            if key in _NOT_JSON_SCHEMA:
                continue
            if key in _OF_SCHEMAS and isinstance(value, dict):
                written[key] = {name: self.convert(item, above) for name, item in value.items()}
            elif isinstance(value, dict) and key not in ("default", "example", "const"):
                written[key] = self.convert(value, above)
            elif isinstance(value, list) and key in ("allOf", "anyOf", "oneOf", "prefixItems"):
                written[key] = [self.convert(item, above) for item in value]
            else:
                written[key] = value
        return _convert_openapi_30(written) if self._is_openapi_30 else written

    def _convert_reference(self, ref: str, schema: JsonObject, above: tuple[str, ...]) -> Any:
        target = _target(self._document, ref)
        beside = {key: value for key, value in schema.items() if key in ("description", "default", "title")}
        if self._inline and ref not in above:
            inlined = self.convert(target, (*above, ref))
            return {**inlined, **beside} if isinstance(inlined, dict) else inlined
        if ref not in self._names:
            name = ref.rsplit("/", 1)[1]
            taken = set(self._names.values())
            self._names[ref] = name if name not in taken else f"{name}_{len(taken)}"
        return {"$ref": f"#/$defs/{self._names[ref]}", **beside}


def with_known_types(value: Any, *, in_schema: bool = False) -> Any:
    """Return a copy of the document whose schemas use only the types that JSON Schema defines, as in ADK 2.13.

    Some generators write types such as `STRING`, which becomes `string`, or `Any`, which is removed.
    """
    if isinstance(value, list):
        return [with_known_types(item, in_schema=in_schema) for item in value]
    if not isinstance(value, dict):
        return value
    written = {
        key: with_known_types(item, in_schema=in_schema or key in ("schema", "schemas")) for key, item in value.items()
    }
    kind = written.get("type")
    # If `type` is not a string, it is the schema of a property that happens to be named `type`.
    if in_schema and isinstance(kind, str):
        if kind.lower() in _TYPES:
            written["type"] = kind.lower()
        else:
            del written["type"]
    return written


def _convert_openapi_30(schema: JsonObject) -> JsonObject:
    """Convert an OpenAPI 3.0 schema to JSON Schema, in place."""
    if schema.pop("nullable", False) is True:
        kind = schema.get("type")
        if isinstance(kind, str):
            schema["type"] = [kind, "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(bound), bool):
            exclusive = schema.pop(bound)
            if exclusive and limit in schema:
                schema[bound] = schema.pop(limit)
    return schema
