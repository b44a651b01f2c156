"""Read operations and schemas from an OpenAPI specification. Naming and parameter flattening match ADK."""

import json
import keyword
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import yaml
from openapi_pydantic.v3 import v3_1
from pydantic import ValidationError

from waystation.core.errors import InvalidTool
from waystation.core.payload import JsonObject
from waystation.tools import validation_mistakes
from waystation.tools.outcome import has_more_values

MAX_PARTS = 5_000
"""Maximum number of parts in an operation's schemas with references inlined. Larger schemas keep their references."""

# OpenAPI's own keywords, and those whose schemas are inlined or moved to the top.
_NOT_JSON_SCHEMA = frozenset({"discriminator", "xml", "externalDocs", "$defs", "definitions"})
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), dict),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "required", "enum"), list),
    **dict.fromkeys(("additionalProperties", "contains", "else", "if", "items", "not"), (dict, bool)),
    **dict.fromkeys(("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"), (dict, bool)),
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"), (int, float)),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), (int, float)),
}
"""The types of the values of keywords. Keywords that are not listed contain no schemas, and are copied."""
_UNUSED = frozenset(
    {"info", "tags", "externalDocs", "webhooks", "callbacks", "responses", "links", "headers", "variables", "summary"}
    | {"description", "example", "examples", "schema", "schemas"}
)
_VALUES = frozenset({"default", "const", "example"})
_ANNOTATIONS = frozenset({"title", "description", "default", "deprecated", "example", "examples"})
# A body with one of these keywords cannot be split into its properties.
_COMPOSED = frozenset({"anyOf", "oneOf", "not", "if", "patternProperties", "$defs", "definitions"})
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
MAX_NAME_CHARS = 60
"""Maximum length of an operation's name, as in ADK."""
MAX_YAML_VALUES = 500_000
_MEDIA_TYPES = (
    "application/json",
    r".+\+json|text/json|(application|\*)/\*",
    "application/x-www-form-urlencoded|multipart/form-data",
    r"(?!.*[/+]xml$).*",
    ".*",
)
"""Media types of bodies, from the best to the worst: JSON, forms, texts and files, XML."""
_FORM = 2
METHODS = ("get", "post", "put", "delete", "patch", "head", "options", "trace")
# Ignore these header parameters. OpenAPI requires this for the first three; the others could manipulate the request.
_NO_PARAMETERS = frozenset({"accept", "content-type", "authorization", "host", "cookie", "content-length"})
HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""Matches a name that a header can have."""
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
    allow_reserved: bool = False
    allow_empty: bool = False
    content_type: str = ""
    """Media type of the value, if the specification gives one instead of a schema and a style."""
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
    body_required: bool = False
    encoding: JsonObject = field(default_factory=dict)
    """The Encoding objects of a form by the names of their properties."""
    security: tuple[Mapping[str, JsonObject], ...] = ()
    """The sets of security schemes by name. One set is enough, and all of its schemes are needed. Empty if no
    authentication is required."""

    @property
    def schema(self) -> JsonObject:
        """The JSON schema of the arguments."""
        schema: JsonObject = {
            "properties": {parameter.argument: parameter.schema for parameter in self.parameters},
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
    text = spec.removeprefix("\ufeff")  # a byte order mark
    try:
        loaded: Any = json.loads(text) if kind == "json" else yaml.load(text, _YamlLoader)
    except (ValueError, yaml.YAMLError) as error:
        other = "; pass `spec_str_type='yaml'` if it is YAML" if kind == "json" else ""
        raise InvalidTool("OpenAPIToolset", f"the specification is not valid {kind.upper()}: {error}{other}.") from None
    if kind == "yaml" and has_more_values(loaded, MAX_YAML_VALUES):
        raise InvalidTool(
            "OpenAPIToolset",
            f"the specification is not valid YAML: it has over {MAX_YAML_VALUES:,} values after expanding aliases.",
        )
    if not isinstance(loaded, dict):
        raise InvalidTool("OpenAPIToolset", "the specification must be an object.")
    return dict(to_plain(loaded))


class _YamlLoader(yaml.SafeLoader):
    """A loader for the core schema of YAML 1.2, with the merge keys of YAML 1.1. Keys are always strings.

    In YAML 1.2, `no` and `2024-01-02` are strings. PyYAML parses YAML 1.1.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # as PyYAML declares it

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        pairs = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
            # Keep a key once, because mappings that are merged from merged mappings would grow exponentially.
            pairs[key.value if isinstance(key, yaml.ScalarNode) else id(key)] = (key, value)
        node.value = list(pairs.values())


_YAML_KINDS = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("float", r"^[-+]?(?:(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$", "-+0123456789."),
    ("float", r"^\.(?:nan|NaN|NAN)$", "."),
    ("merge", r"^<<$", "<"),
)
"""How plain scalars are resolved (YAML 1.2, section 10.3.2): the kind, its pattern and its first characters."""


for _kind_name, _pattern, _first in _YAML_KINDS:
    _YamlLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind_name}", re.compile(_pattern), list(_first))
# PyYAML takes 010 for an octal number.
_YamlLoader.add_constructor(
    "tag:yaml.org,2002:int", lambda _, node: int(node.value, 0 if node.value[1:2] in ("o", "x") else 10)
)


def to_plain(value: Any) -> Any:
    """Return a copy that can be recorded as JSON: keys become strings, and so do dates of other YAML parsers."""
    match value:
        case dict():
            return {str(key): to_plain(item) for key, item in value.items()}
        case list() | tuple():
            return [to_plain(item) for item in value]
        case int() if abs(value) >= 2**63:
            return to_plain(float(str(value)))
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float():
            return value
    return str(value).encode(errors="replace").decode()


def operations_of(document: JsonObject, *, server: str | None = None, preserve_names: bool = False) -> list[Operation]:
    """Return all operations in document order, with unique names.

    If given, `server` is used instead of the servers in the document.

    Raises:
        InvalidTool: The document is not valid OpenAPI 3.0 or 3.1. The message says where the problem is.
    """
    check(document)
    operations: list[Operation] = []
    for path, item in (document.get("paths") or {}).items():
        where = path
        try:
            shared = path_item(document, item)
            for method in METHODS:
                if isinstance(shared.get(method), dict):
                    where = f"{method.upper()} {path}"
                    operations.append(_Reader(document, path, method, shared, server, preserve_names).operation())
        except (UnknownReference, InvalidSchema) as error:
            raise InvalidTool("OpenAPIToolset", f"in {where}: {error}") from None
    names = _number_duplicates([operation.name for operation in operations], first=2, limit=MAX_NAME_CHARS)
    return [replace(operation, name=name) for operation, name in zip(operations, names, strict=True)]


def check(document: JsonObject) -> None:
    """Check the version and the outermost parts of a specification.

    Raises:
        InvalidTool: The document is invalid. The message says where the problem is.
    """
    version = str(document.get("openapi") or document.get("swagger") or "")
    if not version.startswith(("3.0", "3.1")):
        remedy = " `npx swagger2openapi FILE` converts Swagger 2.0." if version.startswith("2") else ""
        raise InvalidTool(
            "OpenAPIToolset",
            f"the specification has version {version or 'unknown'!r}; use OpenAPI 3.0 or 3.1.{remedy}",
        )
    used = {"info": {"title": "", "version": ""}, "paths": {}, **_used(document), "openapi": "3.1.0"}
    try:
        v3_1.OpenAPI.model_validate(used)
    except ValidationError as error:
        path, reason = validation_mistakes(error)[0]
        raise InvalidTool("OpenAPIToolset", f"the specification is invalid at `{path}`: {reason}.") from None


def _used(value: Any) -> Any:
    """Return the parts of a document that are used, without schemas. Mistakes in other parts are harmless."""
    if isinstance(value, list):
        return [_used(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _used(item) for key, item in value.items() if key not in _UNUSED and item is not None}


class _Reader:
    """Reads one operation."""

    def __init__(
        self, document: JsonObject, path: str, method: str, item: JsonObject, server: str | None, preserve_names: bool
    ) -> None:
        self._document, self._path, self._method, self._item = document, path, method, item
        self._raw: JsonObject = item[method]
        self._server, self._preserve_names = server, preserve_names

    def operation(self) -> Operation:
        raw = self._raw
        operation_id = raw.get("operationId") or snake_case(f"{self._path}_{self._method}")
        body = dereference(self._document, raw.get("requestBody")) or {}
        media_type, media, fields, whole_body = self._body(body)
        parameters = [*self._parameters(), *fields]
        declared = [parameter.argument for parameter in parameters]
        arguments = _number_duplicates(declared, first=0, reserved=frozenset(declared))
        schemas, defs = make_self_contained(
            self._document, dict(zip(arguments, (parameter.schema for parameter in parameters), strict=True))
        )
        return Operation(
            name=snake_case(operation_id)[:MAX_NAME_CHARS],
            operation_id=operation_id,
            description=str(raw.get("description") or raw.get("summary") or ""),
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
            body_required=bool(body.get("required")),
            encoding={
                name: {
                    **one,
                    "headers": {
                        key: dereference(self._document, header) for key, header in (one.get("headers") or {}).items()
                    },
                }
                for name, one in (media.get("encoding") or {}).items()
                if one
            },
            security=self._security(),
        )

    def _parameters(self) -> Iterator[Parameter]:
        """Yield the parameters that are not in the body. An operation's parameters override those of its path."""
        raw: dict[tuple[str, Any], JsonObject] = {}
        for item in [*(self._raw.get("parameters") or []), *(self._item.get("parameters") or [])]:
            parameter = dereference(self._document, item)
            if not isinstance(parameter, dict) or not parameter.keys() >= {"name", "in"}:
                raise InvalidSchema(f"the parameter {item!r} has no `name` or `in`.")
            raw.setdefault((parameter["name"], parameter["in"]), parameter)
        for (name, location), parameter in raw.items():
            if location == "header" and (name.lower() in _NO_PARAMETERS or not HEADER.fullmatch(name)):
                continue
            content: JsonObject = parameter.get("content") or {}
            content_type, holder = next(iter(content.items()), ("", parameter))
            style = parameter.get("style") or ("form" if location in ("query", "cookie") else "simple")
            explode = parameter.get("explode")
            yield Parameter(
                name=name,
                argument=self._argument(name, location),
                location=location,
                schema=(holder or {}).get("schema", {}),
                required=location == "path" or bool(parameter.get("required")),
                style=style,
                explode=style == "form" if explode is None else explode,
                allow_reserved=bool(parameter.get("allowReserved")),
                allow_empty=bool(parameter.get("allowEmptyValue")),
                content_type=content_type,
                description=str(parameter.get("description") or ""),
            )

    def _body(self, body: JsonObject) -> tuple[str | None, JsonObject, list[Parameter], bool]:
        """Return the body's media type, its Media Type object and its parameters, and whether one is the whole body."""
        content: JsonObject = body.get("content") or {}
        if not content:
            return None, {}, [], False
        declared = min(content, key=_media_rank)
        rank, media = _media_rank(declared), content[declared] or {}
        media_type = "application/json" if rank < _FORM and "*" in declared else declared
        schema, description = media.get("schema", {}), str(body.get("description") or "")
        kind = _kind(dereference(self._document, schema))
        if rank <= _FORM and kind == "object" and (fields := self._fields(schema)):
            return media_type, media, fields, False
        if rank > _FORM and kind != "string":
            schema, description = {"type": "string"}, description or f"The body, as {media_type}."
        name, required = "array" if kind == "array" else "body", bool(body.get("required"))
        whole = Parameter(
            name=name, argument=name, location="body", schema=schema, required=required, description=description
        )
        return media_type, media, [whole], True

    def _fields(self, schema: Any) -> list[Parameter]:
        """Return one parameter for each property of a body and its `allOf`. Empty if the schema says more."""
        properties: JsonObject = {}
        required: list[str] = []
        for part in applied_parts(self._document, schema):
            declared = part.get("properties") or {}
            others = part.keys() - _ANNOTATIONS - {"$ref"} if "$ref" in part else _COMPOSED & part.keys()
            is_map = (part.get("additionalProperties") or True) is not True
            if others or is_map or _kind(part) not in (None, "object") or not isinstance(declared, dict):
                return []
            for name, value in declared.items():
                properties[name] = {"allOf": [properties[name], value]} if name in properties else value
            required += part.get("required") or ()
        hidden = read_only(self._document, schema)
        return [
            Parameter(
                name=name,
                argument=self._argument(name, "body"),
                location="body",
                schema=value,
                required=name in required,
            )
            for name, value in properties.items()
            if name not in hidden
        ]

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

    def _security(self) -> tuple[Mapping[str, JsonObject], ...]:
        """Return the sets of schemes. One of them is required, unless there is none.

        An empty security requirement in the list makes authentication optional. Client certificates (`mutualTLS`) are
        not credentials of a request: `ssl_verify` or the HTTP client has them.
        """
        required = self._raw.get("security", self._document.get("security")) or []
        declared = (self._document.get("components") or {}).get("securitySchemes") or {}
        schemes = {name: dereference(self._document, scheme) or {} for name, scheme in declared.items()}
        usable = schemes.keys() - {name for name, scheme in schemes.items() if scheme.get("type") == "mutualTLS"}
        sets = tuple(_sendable({name: schemes[name] for name in names if name in usable}) for names in required)
        return sets if all(sets) else ()


def _sendable(schemes: JsonObject) -> Mapping[str, JsonObject]:
    """Return the schemes whose credentials can be sent together: the first one of each place, such as a header."""
    # Reversed, so that the first one of a place remains.
    first = {(scheme.get("in"), scheme.get("name")): name for name, scheme in reversed(schemes.items())}
    return {name: scheme for name, scheme in schemes.items() if name in first.values()}


def server_url(server: JsonObject) -> str:
    """Return a server's URL, with variables replaced by their default values."""
    variables = server.get("variables") or {}
    return re.sub(
        r"\{([^{}]*)\}",
        lambda match: str((variables.get(match[1]) or {}).get("default", match[0])),
        server.get("url", ""),
    )


def path_item(document: JsonObject, item: Any) -> JsonObject:
    """Return a path item, merged with the one that it refers to."""
    merged = {**(dereference(document, item) or {}), **(item or {})}
    return {key: dereference(document, value) if key in METHODS else value for key, value in merged.items()}


def is_json(media_type: str) -> bool:
    """Return whether values of a media type are JSON, or may be."""
    return _media_rank(media_type) < _FORM


def _media_rank(media_type: str) -> int:
    """Return how well a request can be written in a media type: 0 is best."""
    kind = media_type.partition(";")[0].strip().lower()
    return next(rank for rank, pattern in enumerate(_MEDIA_TYPES) if re.fullmatch(pattern, kind, re.DOTALL))


def is_absolute(url: str) -> bool:
    """Return whether a URL is absolute, uses http or https, and has no variable without a default value."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "{" not in url
    except ValueError:  # the port or the IPv6 address is not valid
        return False


def snake_case(text: str) -> str:
    """Convert a name to snake case by ADK's rules. For example, `petID v2` becomes `pet_id_v2`."""
    text = re.sub(r"[^a-zA-Z0-9]+", "_", text)
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    text = re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return re.sub(r"_+", "_", text.lower()).strip("_")


def _number_duplicates(
    names: Sequence[str], *, first: int, reserved: Collection[str] = (), limit: int = sys.maxsize
) -> list[str]:
    """Make names unique by numbering duplicates. As in ADK 2.13, arguments are `id`, `id_0`, `id_1`."""
    uniques: dict[str, None] = {}
    numbers = dict.fromkeys(names, first)
    for name in names:
        unique = name
        while unique in uniques or (unique != name and unique in reserved):
            ending = f"_{numbers[name]}"
            unique = f"{name[: limit - len(ending)]}{ending}"
            numbers[name] += 1
        uniques[unique] = None
    return list(uniques)


def _add_description(schema: Any, description: str) -> Any:
    if isinstance(schema, dict) and description and not schema.get("description"):
        return {**schema, "description": description}
    return schema


# The rest of this module converts a specification's schemas to self-contained JSON schemas.


class UnknownReference(ValueError):
    """A `$ref` points to something that is not in the document."""

    def __init__(self, ref: str) -> None:
        super().__init__(f"`$ref` {ref!r} does not exist in the document; use only references within the document.")


class InvalidSchema(ValueError):
    """A schema or a parameter is invalid."""


_NO_SCHEMAS: Mapping[str, Any] = MappingProxyType({})


def dereference(document: JsonObject, value: Any, local: Mapping[str, Any] = _NO_SCHEMAS) -> Any:
    """Return the target if a value is a reference, otherwise return the value unchanged.

    References to `$defs` are resolved in `local` first.

    Raises:
        UnknownReference: The target is not in the document, or the reference leads back to itself.
    """
    seen: set[str] = set()
    while isinstance(value, dict) and isinstance(value.get("$ref"), str):
        if value["$ref"] in seen:
            raise UnknownReference(value["$ref"])
        seen.add(value["$ref"])
        value = _target(document, value["$ref"], local)
    return value


def _target(document: JsonObject, ref: str, local: Mapping[str, Any]) -> Any:
    if not ref.startswith("#/"):
        raise UnknownReference(ref)
    parent, _, name = ref.rpartition("/")
    if parent in ("#/$defs", "#/definitions") and name in local:
        return local[name]
    target: Any = document
    try:
        for part in ref[2:].split("/"):
            items = {str(index): item for index, item in enumerate(target)} if isinstance(target, list) else target
            target = items[unquote(part).replace("~1", "/").replace("~0", "~")]
    except (KeyError, TypeError):
        raise UnknownReference(ref) from None
    return target


def make_self_contained(document: JsonObject, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas under the same keys, and the `$defs` that they refer to.

    As in ADK, references are inlined. Recursive schemas are moved to `$defs`. If inlining makes the schemas too large
    or too deep, all referenced schemas are moved to `$defs`, because ten levels of references can expand to a million
    schemas.

    Raises:
        UnknownReference: A reference points to something that is not in the document.
    """
    try:
        return _SchemaConverter(document, inline=True).convert_all(schemas)
    except RecursionError:
        return _SchemaConverter(document, inline=False).convert_all(schemas)


def applied_parts(
    document: JsonObject,
    schema: Any,
    local: Mapping[str, Any] = _NO_SCHEMAS,
    keywords: tuple[str, ...] = ("allOf",),
) -> Iterator[JsonObject]:
    """Yield a schema and those that it applies to the same value by references or the keywords, each of them once."""
    waiting, seen = [schema], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and id(part) not in seen:
            seen.add(id(part))
            yield part
            lists = [part[key] for key in keywords if isinstance(part.get(key), list)]
            waiting += [inner for inners in reversed(lists) for inner in reversed(inners)]
            if isinstance(part.get("$ref"), str):
                waiting.append(_target(document, part["$ref"], local))


def read_only(document: JsonObject, schema: Any, local: Mapping[str, Any] = _NO_SCHEMAS) -> frozenset[str]:
    """Return the names of the properties that a request must not contain, including those in `allOf`."""
    parts = [part.get("properties") for part in applied_parts(document, schema, local)]
    declared = [item for properties in parts if isinstance(properties, dict) for item in properties.items()]
    targets = ((name, dereference(document, item, local)) for name, item in declared)
    return frozenset(name for name, item in targets if isinstance(item, dict) and item.get("readOnly") is True)


class _SchemaConverter:
    def __init__(self, document: JsonObject, *, inline: bool) -> None:
        self._document, self._inline = document, inline
        self._names: dict[int, str] = {}
        self._named: list[tuple[str, Any, Mapping[str, Any]]] = []
        self._parts = 0
        # OpenAPI 3.0 ignores what is beside a reference.
        self._ignores_siblings = str(document.get("openapi", "")).startswith("3.0")

    def convert_all(self, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        converted = {key: self.convert(schema) for key, schema in schemas.items()}
        defs: dict[str, Any] = {}
        for name, target, local in self._named:  # converting a schema may add more
            defs[name] = self.convert(target, (id(target),), local)
        return converted, defs

    def convert(
        self,
        schema: Any,
        above: tuple[int, ...] = (),
        local: Mapping[str, Any] = _NO_SCHEMAS,
        hidden: frozenset[str] = frozenset(),
    ) -> Any:
        """Convert a schema.

        Args:
            schema: The schema.
            above: The identities of the targets of references that were followed to get to it.
            local: Schemas in the `$defs` of the schemas around it.
            hidden: Names of properties that the schemas around it leave out.
        """
        self._parts += 1
        if self._inline and self._parts > MAX_PARTS:
            raise RecursionError
        if not isinstance(schema, dict):
            return schema  # True and False are schemas
        local = {**local, **(schema.get("$defs") or {}), **(schema.get("definitions") or {})}
        if isinstance(schema.get("$ref"), str):
            return self._convert_reference(schema, above, local, hidden)
        hidden |= read_only(self._document, schema, local)
        written: JsonObject = {}
        for key, value in schema.items():
            if key in _NOT_JSON_SCHEMA or (value is None and key not in _VALUES):
                continue
            kind = _KINDS.get(key, object)
            if not isinstance(value, kind):
                raise InvalidSchema(f"the schema keyword {key!r} cannot be {value!r}.")
            if kind is dict:
                parts = {name: part for name, part in value.items() if name not in hidden}
                written[key] = {name: self.convert(part, above, local) for name, part in parts.items()}
            elif key == "required":
                written[key] = [name for name in value if name not in hidden]
            elif kind is list and key != "enum":
                written[key] = [self.convert(part, above, local, hidden) for part in value]
            elif key == "type":
                written |= _convert_type(value)
            elif key in ("title", "description"):
                written[key] = str(value)
            else:
                written[key] = self.convert(value, above, local) if kind == (dict, bool) else value
        return _convert_openapi_30(written)

    def _convert_reference(
        self, schema: JsonObject, above: tuple[int, ...], local: Mapping[str, Any], hidden: frozenset[str]
    ) -> Any:
        target = _target(self._document, schema["$ref"], local)
        if self._inline and id(target) not in above:
            found = self.convert(target, (*above, id(target)), local, hidden)
        else:
            found = {"$ref": f"#/$defs/{self._name(schema['$ref'], target, local)}"}
        beside = {
            key: value
            for key, value in schema.items()
            if key not in ("$ref", "nullable") and (key in _ANNOTATIONS or not self._ignores_siblings)
        }
        more = self.convert(beside, above, local, hidden) if beside else {}
        if not isinstance(found, dict):
            return found
        clashes = any(more[key] != found[key] for key in more.keys() & found.keys() - _ANNOTATIONS)
        merged = {"allOf": [found, more]} if clashes else {**found, **more}
        return _convert_openapi_30({**merged, "nullable": schema.get("nullable")})

    def _name(self, ref: str, target: Any, local: Mapping[str, Any]) -> str:
        if id(target) not in self._names:
            name = ref.rpartition("/")[2]
            unique = f"{name}_{len(self._names)}" if name in self._names.values() else name
            self._names[id(target)] = unique
            self._named.append((unique, target, local))
        return self._names[id(target)]


def _kind(schema: Any) -> str | None:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind.lower() if isinstance(kind, str) else None


def _convert_type(kind: Any) -> JsonObject:
    """Return only types that JSON Schema defines, as in ADK 2.13.

    Some generators write types such as `STRING`, which becomes `string`, or `Any`, which is removed.
    """
    kinds = [str(one).lower() for one in (kind if isinstance(kind, list) else [kind])]
    if not _TYPES.issuperset(kinds):
        return {}
    return {"type": kinds if isinstance(kind, list) else kinds[0]}


def _convert_openapi_30(schema: JsonObject) -> JsonObject:
    """Convert a schema of OpenAPI 3.0 to JSON Schema. Documents of version 3.1 contain its keywords, too."""
    if schema.pop("nullable", False) is True:
        kind = schema.get("type")
        if isinstance(kind, str):
            schema["type"] = [kind, "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        if kind is None and schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
            schema = {"anyOf": [schema, {"type": "null"}]}
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(bound), bool):
            exclusive = schema.pop(bound)
            if exclusive and limit in schema:
                schema[bound] = schema.pop(limit)
    return schema
