"""Schemas of a specification, as JSON schemas that stand by themselves."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from waystation.core.payload import JsonObject

MAX_PARTS = 5_000
"""How large the schema of one operation may become by writing references out; then it keeps them."""

_NOT_JSON_SCHEMA = frozenset({"discriminator", "xml", "externalDocs"})
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


class UnknownReference(ValueError):
    """A `$ref` names nothing in the document."""

    def __init__(self, ref: str) -> None:
        self.ref = ref
        super().__init__(f"`$ref` {ref!r} names nothing in the document; only references within it are followed.")


class _TooLarge(Exception):
    pass


def resolved(document: JsonObject, value: Any) -> Any:
    """Return what a value refers to, or the value itself.

    Raises:
        UnknownReference: It refers to nothing in the document, or to itself.
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
    found: Any = document
    for part in unquote(ref[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise UnknownReference(ref)
    return found


def standing_alone(document: JsonObject, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return schemas by the same keys, and the `$defs` that they refer to.

    References are written out, as in ADK. A schema that refers to itself goes into `$defs`, and so does all that is
    referred to when writing it out would make the schemas large: ten references can stand for a million.

    Raises:
        UnknownReference: A reference names nothing in the document.
    """
    try:
        return _Walk(document, inline=True).all(schemas)
    except _TooLarge:
        return _Walk(document, inline=False).all(schemas)


class _Walk:
    def __init__(self, document: JsonObject, *, inline: bool) -> None:
        self._document, self._inline = document, inline
        self._names: dict[str, str] = {}
        self._defs: dict[str, Any] = {}
        self._parts = 0
        # In OpenAPI 3.0 a schema is not quite a JSON schema.
        self._old = str(document.get("openapi", "")).startswith("3.0")

    def all(self, schemas: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        found = {key: self.of(schema, ()) for key, schema in schemas.items()}
        waiting = [ref for ref in self._names if self._names[ref] not in self._defs]
        while waiting:
            for ref in waiting:
                self._defs[self._names[ref]] = self.of(_target(self._document, ref), (ref,))
            waiting = [ref for ref in self._names if self._names[ref] not in self._defs]
        return found, self._defs

    def of(self, schema: Any, above: tuple[str, ...]) -> Any:
        """Return one schema; `above` are the references that led to it."""
        self._parts += 1
        if self._inline and self._parts > MAX_PARTS:
            raise _TooLarge
        if not isinstance(schema, dict):
            return schema  # True and False are schemas, too
        ref = schema.get("$ref")
        if isinstance(ref, str):
            return self._referred(ref, schema, above)
        written: JsonObject = {}
        for key, value in schema.items():
            if key in _NOT_JSON_SCHEMA:
                continue
            if key in _OF_SCHEMAS and isinstance(value, dict):
                written[key] = {name: self.of(item, above) for name, item in value.items()}
            elif isinstance(value, dict) and key not in ("default", "example", "const"):
                written[key] = self.of(value, above)
            elif isinstance(value, list) and key in ("allOf", "anyOf", "oneOf", "prefixItems"):
                written[key] = [self.of(item, above) for item in value]
            else:
                written[key] = value
        return _modern(written) if self._old else written

    def _referred(self, ref: str, schema: JsonObject, above: tuple[str, ...]) -> Any:
        target = _target(self._document, ref)
        beside = {key: value for key, value in schema.items() if key in ("description", "default", "title")}
        if self._inline and ref not in above:
            found = self.of(target, (*above, ref))
            return {**found, **beside} if isinstance(found, dict) else found
        return {"$ref": f"#/$defs/{self._name(ref)}", **beside}

    def _name(self, ref: str) -> str:
        if ref not in self._names:
            name = ref.rsplit("/", 1)[1]
            taken = set(self._names.values())
            self._names[ref] = name if name not in taken else f"{name}_{len(taken)}"
        return self._names[ref]


def with_known_types(value: Any, *, in_schema: bool = False) -> Any:
    """Return a document whose schemas have no types but those of JSON schema: some generators write `Any`, or shout.

    Source: ADK 2.13.
    """
    if isinstance(value, list):
        return [with_known_types(item, in_schema=in_schema) for item in value]
    if not isinstance(value, dict):
        return value
    written = {
        key: with_known_types(item, in_schema=in_schema or key in ("schema", "schemas")) for key, item in value.items()
    }
    kind = written.get("type")
    # A property may be called `type`; then it is a schema, and no text.
    if in_schema and isinstance(kind, str):
        if kind.lower() in _TYPES:
            written["type"] = kind.lower()
        else:
            del written["type"]
    return written


def _modern(schema: JsonObject) -> JsonObject:
    """Return a schema of OpenAPI 3.0 as JSON schema has it."""
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
