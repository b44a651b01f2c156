"""Read operations and schemas from an OpenAPI specification. Naming and parameter flattening match ADK."""

import json
import keyword
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from openapi_pydantic.v3 import v3_1
from pydantic import ValidationError

from waystation.core import InvalidTool, JsonObject
from waystation.dataclass import dataclass
from waystation.tools import validation_mistakes

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
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
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

    @property
    def as_json(self) -> bool:
        """Whether to send the value encoded as JSON."""
        return is_json(self.content_type)


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
    text = spec.removeprefix("\ufeff")  # a byte order mark
    try:
        loaded: Any = to_plain(json.loads(text)) if kind == "json" else to_plain(_yaml(text), MAX_YAML_VALUES)
    except ValueError as error:
        other = "; pass `spec_str_type='yaml'` if it is YAML" if kind == "json" else ""
        raise InvalidTool("OpenAPIToolset", f"the specification is not valid {kind.upper()}: {error}{other}.") from None
    if not isinstance(loaded, dict):
        raise InvalidTool("OpenAPIToolset", "the specification must be an object.")
    return loaded


def _yaml(text: str) -> Any:
    """Parse YAML 1.2, in which `no` and `2024-01-02` are strings. PyYAML parses YAML 1.1."""
    import yaml

    class Loader(yaml.SafeLoader):
        """A loader for the core schema of YAML 1.2, with the merge keys of YAML 1.1. Keys are always strings."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # as PyYAML declares it

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            super().flatten_mapping(node)
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    key.tag = "tag:yaml.org,2002:str"

    for kind, pattern, first in _YAML_KINDS:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), list(first))
    # PyYAML takes 010 for an octal number.
    integer = "tag:yaml.org,2002:int"
    Loader.add_constructor(integer, lambda _, node: int(node.value, 0 if node.value[1:2] in ("o", "x") else 10))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_YAML_KINDS = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("float", r"^[-+]?(?:(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$", "-+0123456789."),
    ("float", r"^\.(?:nan|NaN|NAN)$", "."),
    ("merge", r"^<<$", "<"),
)
"""How plain scalars are resolved (YAML 1.2, section 10.3.2): the kind, its pattern and its first characters."""


def to_plain(value: Any, limit: float = math.inf) -> Any:
    """Return a copy that can be recorded as JSON: keys become strings, and so do dates of other YAML parsers.

    Raises:
        ValueError: There are too many values. By using YAML aliases, a short document can expand to a huge number.
    """
    remaining = limit

    def convert(value: Any) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise ValueError(f"it has more than {limit:,} values after expanding aliases")
        match value:
            case dict():
                return {str(key): convert(item) for key, item in value.items()}
            case list() | tuple():
                return [convert(item) for item in value]
            case int() if abs(value) >= 2**63:
                return convert(float(str(value)))
            case float() if not math.isfinite(value):
                return None
            case None | bool() | int() | float():
                return value
        return str(value).encode(errors="replace").decode()

    return convert(value)


def operations_of(document: JsonObject, *, server: str | None = None, preserve_names: bool = False) -> list[Operation]:
    """Return all operations in document order, with unique names.

    If given, `server` is used instead of the servers in the document.

    Raises:
        InvalidTool: The document is not valid OpenAPI 3.0 or 3.1. The message says where the problem is.
    """
    check(document)
    operations: list[Operation] = []
    names: set[str] = set()
    for path, item in (document.get("paths") or {}).items():
        where = path
        try:
            shared = path_item(document, item)
            for method in METHODS:
                if isinstance(shared.get(method), dict):
                    where = f"{method.upper()} {path}"
                    operation = _Reader(document, path, method, shared, server, preserve_names).operation(names)
                    names.add(operation.name)
                    operations.append(operation)
        except (UnknownReference, InvalidSchema) as error:
            raise InvalidTool("OpenAPIToolset", f"in {where}: {error}") from None
    return operations


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

    def operation(self, names: set[str]) -> Operation:
        raw = self._raw
        operation_id = raw.get("operationId") or snake_case(f"{self._path}_{self._method}")
        body = dereference(self._document, raw.get("requestBody")) or {}
        media_type, media, fields, whole_body = self._body(body)
        parameters = [*self._parameters(), *fields]
        arguments = _number_duplicates([parameter.argument for parameter in parameters])
        schemas, defs = make_self_contained(
            self._document, dict(zip(arguments, (parameter.schema for parameter in parameters), strict=True))
        )
        return Operation(
            name=_make_unique(snake_case(operation_id)[:MAX_NAME_CHARS], names),
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
            if location == "header" and (name.lower() in _NO_PARAMETERS or not _HEADER.fullmatch(name)):
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
        media_type = "application/json" if is_json(declared) and "*" in declared else declared
        holder = content[declared] or {}
        fields = self._fields(holder.get("schema", {})) if _media_rank(declared) <= _FORM else None
        if fields is not None:
            return media_type, holder, fields, False
        return media_type, holder, [self._whole_body(body, media_type, holder.get("schema", {}))], True

    def _fields(self, schema: Any) -> list[Parameter] | None:
        """Return one parameter for each property of a body, or None if the body cannot be split."""
        is_object = _kind(dereference(self._document, schema)) == "object"
        properties, required = (is_object and self._flatten(schema)) or ({}, [])
        hidden = read_only(self._document, schema) if properties else ()
        names = [name for name in properties if name not in hidden]
        return [
            Parameter(
                name=name,
                argument=self._argument(name, "body"),
                location="body",
                schema=properties[name],
                required=name in required,
            )
            for name in names
        ] or None

    def _flatten(self, schema: Any, above: tuple[int, ...] = ()) -> tuple[JsonObject, list[str]] | None:
        """Return the properties and the required names of a schema and its `allOf`, or None if it says more."""
        target = dereference(self._document, schema)
        if _kind(target) not in (None, "object") or not isinstance(target, dict) or id(target) in above:
            return None
        beside = schema.keys() - _ANNOTATIONS - {"$ref"} if target is not schema else frozenset()
        declared, maps = target.get("properties") or {}, target.get("additionalProperties") or True
        if beside or _COMPOSED & target.keys() or maps is not True or not isinstance(declared, dict):
            return None
        properties, required = dict(declared), [*(target.get("required") or ())]
        for part in target.get("allOf") or ():
            if (inner := self._flatten(part, (*above, id(target)))) is None:
                return None
            for name, value in inner[0].items():
                properties[name] = {"allOf": [properties[name], value]} if name in properties else value
            required += inner[1]
        return properties, required

    def _whole_body(self, body: JsonObject, media_type: str, schema: Any) -> Parameter:
        kind = _kind(dereference(self._document, schema))
        description = str(body.get("description") or "")
        if _media_rank(media_type) > _FORM and kind != "string":
            schema, description = {"type": "string"}, description or f"The body, as {media_type}."
        return Parameter(
            name="array" if kind == "array" else "body",
            argument="array" if kind == "array" else "body",
            location="body",
            schema=schema,
            required=bool(body.get("required")),
            description=description,
        )

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
        sets = tuple(_sendable({name: schemes[name] for name in names if name in schemes}) for names in required)
        return sets if all(sets) else ()


def _sendable(schemes: Mapping[str, JsonObject]) -> Mapping[str, JsonObject]:
    """Return the schemes whose credentials can be sent together: the first one of each place, such as a header."""
    places: dict[Any, str] = {}
    for name, scheme in schemes.items():
        if scheme.get("type") != "mutualTLS":
            places.setdefault((scheme.get("in"), scheme.get("name")), name)
    return {name: schemes[name] for name in places.values()}


def servers_of(document: JsonObject) -> Iterator[str]:
    """Yield the URL of every server in a specification."""
    holders = [document]
    for item in (document.get("paths") or {}).values():
        shared = path_item(document, item)
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
    return next(rank for rank, pattern in enumerate(_MEDIA_TYPES) if re.fullmatch(pattern, kind))


def is_absolute(url: str) -> bool:
    """Return whether a URL is absolute, uses http or https, and has no variable without a default value."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "{" not in url


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


class InvalidSchema(ValueError):
    """A schema or a parameter is invalid."""


class _SchemaTooLarge(Exception):
    pass


_NO_SCHEMAS: Mapping[str, Any] = MappingProxyType({})


def dereference(document: JsonObject, value: Any, local: Mapping[str, Any] = _NO_SCHEMAS) -> Any:
    """Return the target if a value is a reference, otherwise return the value unchanged.

    References to `$defs` are resolved in `local` first.

    Raises:
        UnknownReference: The target is not in the document, or the reference leads back to itself.
    """
    seen: set[str] = set()
    while isinstance(value, dict) and isinstance(value.get("$ref"), str):
        ref = value["$ref"]
        if ref in seen:
            raise UnknownReference(ref)
        seen.add(ref)
        value = _target(document, ref, local)
    return value


def _target(document: JsonObject, ref: str, local: Mapping[str, Any]) -> Any:
    if not ref.startswith("#/"):
        raise UnknownReference(ref)
    parent, _, name = ref.rpartition("/")
    if parent in ("#/$defs", "#/definitions") and name in local:
        return local[name]
    target: Any = document
    for part in ref[2:].split("/"):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
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


def read_only(
    document: JsonObject, schema: Any, local: Mapping[str, Any] = _NO_SCHEMAS, above: tuple[int, ...] = ()
) -> frozenset[str]:
    """Return the names of the properties that a request must not contain, including those in `allOf`."""
    target = dereference(document, schema, local)
    if not isinstance(target, dict) or id(target) in above:
        return frozenset()
    properties = target["properties"].items() if isinstance(target.get("properties"), dict) else ()
    own = ((name, dereference(document, part, local)) for name, part in properties)
    inner = (read_only(document, part, local, (*above, id(target))) for part in target.get("allOf") or ())
    return frozenset(name for name, part in own if isinstance(part, dict) and part.get("readOnly") is True).union(
        *inner
    )


class _SchemaConverter:
    def __init__(self, document: JsonObject, *, inline: bool) -> None:
        self._document, self._inline = document, inline
        self._named: dict[int, tuple[str, Any, Mapping[str, Any]]] = {}
        self._parts = 0
        # OpenAPI 3.0 ignores what is beside a reference.
        self._beside = _ANNOTATIONS if str(document.get("openapi", "")).startswith("3.0") else None

    def convert_all(self, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        converted = {key: self.convert(schema) for key, schema in schemas.items()}
        defs: dict[str, Any] = {}
        while len(defs) < len(self._named):  # converting a schema may add more
            name, target, local = list(self._named.values())[len(defs)]
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
            raise _SchemaTooLarge
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
        kept = schema.keys() - {"$ref", "nullable"} & (self._beside or schema.keys())
        beside = {key: value for key, value in schema.items() if key in kept}
        more = self.convert(beside, above, local, hidden) if beside else {}
        if not isinstance(found, dict):
            return found
        clashes = any(more[key] != found[key] for key in more.keys() & found.keys() - _ANNOTATIONS)
        merged = {"allOf": [found, more]} if clashes else {**found, **more}
        return _convert_openapi_30({**merged, "nullable": schema.get("nullable")})

    def _name(self, ref: str, target: Any, local: Mapping[str, Any]) -> str:
        name = ref.rpartition("/")[2]
        taken = {taken for taken, *_ in self._named.values()}
        unique = name if name not in taken else f"{name}_{len(taken)}"
        return self._named.setdefault(id(target), (unique, target, local))[0]


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
