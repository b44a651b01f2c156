"""From OpenAPI specifications to declarations. Source: adk-semantics 10."""

import asyncio
import json
import math
from collections.abc import Awaitable
from typing import Any

import pytest

from waystation.agents import LlmAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.agents.toolbox import list_tools
from waystation.apps.registry import authoring_problems
from waystation.core.errors import InvalidTool
from waystation.tools.base_tool import declare
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.openapi_tool import OpenAPIToolset
from waystation.tools.openapi_tool.openapi_spec_parser.specification import load

BILLION_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def spec(
    *, version: str = "3.1.0", servers: Any = None, schemas: Any = None, more: Any = None, **paths: Any
) -> dict[str, Any]:
    """Return a specification with these paths; `more` has paths that are not Python identifiers."""
    return {
        "openapi": version,
        "info": {"title": "Pets", "version": "1"},
        "servers": servers or [{"url": "https://pets.example"}],
        "paths": {f"/{name}": item for name, item in {**paths, **(more or {})}.items()},
        "components": {"schemas": schemas or {}},
    }


def operation(**fields: Any) -> dict[str, Any]:
    return {"responses": {"200": {"description": "ok"}}, **fields}


def body(schema: Any, media_type: str = "application/json", **fields: Any) -> dict[str, Any]:
    return {"content": {media_type: {"schema": schema}}, **fields}


def parameter(name: str, location: str = "query", schema: Any = None, **fields: Any) -> dict[str, Any]:
    return {"name": name, "in": location, "schema": schema or {"type": "string"}, **fields}


def declared(document: dict[str, Any], name: str, **settings: Any) -> dict[str, Any]:
    tool = OpenAPIToolset(spec_dict=document, **settings).get_tool(name)
    assert tool is not None
    declaration = declare(tool)
    assert declaration is not None
    return declaration


def arguments(document: dict[str, Any], name: str, **settings: Any) -> dict[str, Any]:
    schema: dict[str, Any] = declared(document, name, **settings)["parametersJsonSchema"]
    return schema


# Names


@pytest.mark.parametrize(
    ("operation_id", "name"),
    [
        ("getPetById", "get_pet_by_id"),
        ("GetHTTPStatus", "get_http_status"),
        ("pets/list all", "pets_list_all"),
        ("x" * 80, "x" * 60),
        (None, "pets_get"),
    ],
)
def test_a_tool_is_named_after_its_operation(operation_id: str | None, name: str) -> None:
    """The name has snake case and at most sixty characters; without an ID, it comes from path and method."""
    fields = {"operationId": operation_id} if operation_id else {}
    document = spec(pets={"get": operation(**fields)})
    assert declared(document, name)["name"] == name


async def test_operations_with_one_name_are_numbered() -> None:
    """Operations with one name are numbered in the order of the document."""
    long = "y" * 70
    document = spec(
        a={"get": operation(operationId="list"), "post": operation(operationId="List")},
        b={"get": operation(operationId=long + "1"), "post": operation(operationId=long + "2")},
    )
    tools = await OpenAPIToolset(spec_dict=document).get_tools()
    assert [tool.name for tool in tools] == ["list", "list_2", "y" * 60, "y" * 58 + "_2"]


def test_the_description_comes_from_the_operation() -> None:
    """The description falls back to the operation's summary."""
    document = spec(
        a={"get": operation(operationId="a", description="All of it.", summary="Short.")},
        b={"get": operation(operationId="b", summary="Short.")},
    )
    assert declared(document, "a")["description"] == "All of it."
    assert declared(document, "b")["description"] == "Short."


async def test_a_filter_sees_names_without_the_prefix() -> None:
    """The filter receives names without the prefix, as for every toolset."""
    document = spec(a={"get": operation(operationId="a")}, b={"get": operation(operationId="b")})
    toolset = OpenAPIToolset(spec_dict=document, tool_filter=["b"], tool_name_prefix="pets")
    assert list(await list_tools(LlmAgent(name="x", tools=[toolset]), ReadonlyContext)) == ["pets_b"]


# Arguments


def test_parameters_and_body_become_one_schema() -> None:
    """The schema equals ADK's."""
    document = spec(
        more={
            "pets/{petId}": {
                "parameters": [parameter("petId", "path", {"type": "integer"}), parameter("lang", description="old")],
                "put": operation(
                    operationId="updatePet",
                    parameters=[
                        parameter("lang", description="Of the answer."),
                        parameter("X-Trace", "header"),
                        parameter("session", "cookie", required=True),
                    ],
                    requestBody=body(
                        {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "birthYear": {"type": "integer", "minimum": 1900},
                            },
                        }
                    ),
                ),
            }
        }
    )
    assert arguments(document, "update_pet") == {
        "type": "object",
        "title": "updatePet_Arguments",
        "properties": {
            "lang": {"type": "string", "description": "Of the answer."},
            "x_trace": {"type": "string"},
            "session": {"type": "string"},
            "pet_id": {"type": "integer"},
            "name": {"type": "string"},
            "birth_year": {"type": "integer", "minimum": 1900},
        },
        "required": ["session", "pet_id", "name"],
    }


STRING: dict[str, Any] = {"type": "string"}
NAMED: dict[str, Any] = {"type": "object", "properties": {"name": STRING}, "required": ["name"]}
NODE = {"type": "object", "properties": {"n": STRING}, "allOf": [{"$ref": "#/components/schemas/Node"}]}


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "array", "items": {"type": "string"}}, "array"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "body"),
        ({"type": "string"}, "body"),
        ({}, "body"),
        ({"type": "object"}, "body"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "body"),
        ({**NAMED, "additionalProperties": {"type": "integer"}}, "body"),
        ({**NAMED, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]}, "body"),
        ({"type": "object", "oneOf": [NAMED, NAMED]}, "body"),
        ({"type": "object", "allOf": [NAMED, {"anyOf": [NAMED, NAMED]}]}, "body"),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_a_body_that_cannot_be_split_is_one_argument(schema: Any, name: str, required: bool) -> None:
    """The argument has ADK's name, and is required if the specification requires the body."""
    request_body = body(schema, description="What to add.", required=required)
    parameters = arguments(spec(a={"post": operation(operationId="a", requestBody=request_body)}), "a")
    assert parameters["properties"] == {name: {**schema, "description": "What to add."}}
    assert parameters["required"] == ([name] if required else [])


@pytest.mark.parametrize(
    ("schema", "properties", "required"),
    [
        ({**NAMED, "additionalProperties": True}, {"name": STRING}, ["name"]),
        (
            {"type": "object", "allOf": [NAMED, {"$ref": "#/components/schemas/Tagged"}], "required": ["tag"]},
            {"name": STRING, "tag": STRING},
            ["name", "tag"],
        ),
        (
            {"type": "object", "allOf": [NAMED, {"properties": {"name": {"maxLength": 9}}}]},
            {"name": {"allOf": [STRING, {"maxLength": 9}]}},
            ["name"],
        ),
        (
            {"type": "object", "allOf": [NAMED, {"properties": {"name": {**STRING, "readOnly": True}, "x": {}}}]},
            {"x": {}},
            [],
        ),
        (
            {
                "type": "object",
                "properties": {"in": {"allOf": [{"required": ["id"]}, {"$ref": "#/components/schemas/ID"}]}},
            },
            {"in": {"allOf": [{"required": []}, {"type": "object", "properties": {}}]}},
            [],
        ),
    ],
)
def test_a_body_is_split_into_its_properties(schema: Any, properties: Any, required: Any) -> None:
    """The properties include those of `allOf`, without those that only responses have."""
    schemas = {
        "Tagged": {"type": "object", "properties": {"tag": STRING}},
        "ID": {"type": "object", "properties": {"id": {"$ref": "#/components/schemas/Number"}}},
        "Number": {"type": "integer", "readOnly": True},
    }
    document = spec(schemas=schemas, a={"post": operation(operationId="a", requestBody=body(schema))})
    parameters = arguments(document, "a", preserve_property_names=True)
    assert {key.removeprefix("param_"): value for key, value in parameters["properties"].items()} == properties
    assert parameters["required"] == required


def test_a_recursive_allof_is_split_into_its_properties() -> None:
    """A recursive `allOf` is split, too, because the recursion adds no condition."""
    request_body = body({"$ref": "#/components/schemas/Node"})
    document = spec(schemas={"Node": NODE}, a={"post": operation(operationId="a", requestBody=request_body)})
    assert arguments(document, "a")["properties"] == {"n": STRING}


@pytest.mark.parametrize(
    ("media_types", "chosen", "declared"),
    [
        (["application/xml", "text/csv", "application/vnd.a+json", "Application/JSON; charset=utf-8"], 3, ["name"]),
        (["application/xml", "multipart/form-data", "application/problem+json"], 2, ["name"]),
        (["text/csv", "multipart/form-data", "application/x-www-form-urlencoded"], 1, ["name"]),
        (["application/soap+xml", "text/csv"], 1, ["body"]),
    ],
)
def test_json_is_preferred(media_types: list[str], chosen: int, declared: list[str]) -> None:
    """JSON is preferred, then forms. In any other media type, the model writes the body as a string."""
    request_body = {"content": {media_type: {"schema": NAMED} for media_type in media_types}}
    document = spec(a={"post": operation(operationId="a", requestBody=request_body)})
    tool = OpenAPIToolset(spec_dict=document).get_tool("a")
    assert tool is not None
    assert tool.operation.media_type == media_types[chosen]
    properties = arguments(document, "a")["properties"]
    assert list(properties) == declared
    assert all(schema["type"] == "string" for schema in properties.values())


def test_conflicting_names_are_numbered() -> None:
    """An `id` in path, query and body becomes three numbered arguments."""
    document = spec(
        more={
            "a/{id}": {
                "post": operation(
                    operationId="a",
                    parameters=[parameter("id", "path"), parameter("id"), parameter("id_0")],
                    requestBody=body({"type": "object", "properties": {"id": {"type": "string"}}}),
                )
            }
        }
    )
    assert list(arguments(document, "a")["properties"]) == ["id", "id_1", "id_0", "id_2"]


def test_names_are_python_identifiers() -> None:
    """Names such as `from` are changed to identifiers; an option keeps the spelling of the service."""
    document = spec(a={"get": operation(operationId="a", parameters=[parameter("from"), parameter("maxAge")])})
    assert list(arguments(document, "a")["properties"]) == ["param_from", "max_age"]
    assert list(arguments(document, "a", preserve_property_names=True)["properties"]) == ["param_from", "maxAge"]


def test_reserved_headers_are_not_arguments() -> None:
    """Reserved headers are not arguments, because a model must not choose its identity or the host."""
    names = ["Authorization", "accept", "Content-Type", "Host", "Cookie", "", "X Y", "X-Own"]
    document = spec(a={"get": operation(operationId="a", parameters=[parameter(name, "header") for name in names])})
    assert list(arguments(document, "a")["properties"]) == ["x_own"]


# References


PET = {"type": "object", "properties": {"name": {"type": "string"}, "tag": {"$ref": "#/components/schemas/Tag"}}}


def test_references_are_resolved() -> None:
    """References in schemas, parameters and bodies are resolved."""
    document = spec(
        schemas={"Pet": PET, "Tag": {"type": "string", "enum": ["a", "b"]}},
        a={
            "post": operation(
                operationId="a",
                parameters=[{"$ref": "#/components/parameters/Limit"}],
                requestBody={"$ref": "#/components/requestBodies/New"},
            )
        },
    )
    document["components"]["parameters"] = {"Limit": parameter("limit", schema={"type": "integer"})}
    document["components"]["requestBodies"] = {"New": body({"$ref": "#/components/schemas/Pet"})}
    assert arguments(document, "a")["properties"] == {
        "limit": {"type": "integer"},
        "name": {"type": "string"},
        "tag": {"type": "string", "enum": ["a", "b"]},
    }


@pytest.mark.parametrize(
    "item",
    [
        {"get": operation(operationId="b", parameters=[{"$ref": "#/paths/~1a~1%7Bid%7D/get/parameters/0"}])},
        {"$ref": "#/paths/~1a~1{id}", "get": operation(operationId="b", parameters=[parameter("id", "path")])},
        {"$ref": "#/components/pathItems/B"},
        {"get": {"$ref": "#/components/pathItems/B/get"}},
    ],
)
def test_parameters_and_paths_may_be_references(item: Any) -> None:
    """Parameters and paths may refer to others. Fields next to the reference of a path override its target."""
    first = {"get": operation(operationId="a", parameters=[parameter("id", "path")])}
    document = spec(more={"a/{id}": first, "b/{id}": item})
    second = {"get": {**first["get"], "operationId": "b"}}
    document["components"]["pathItems"] = {"B": second}
    assert arguments(document, "b")["required"] == ["id"]


def test_a_recursive_schema_is_kept_whole() -> None:
    """A recursive schema is under `$defs`, as for functions."""
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/components/schemas/Node"}, "value": {"type": "integer"}},
    }
    document = spec(
        schemas={"Node": node},
        a={"post": operation(operationId="a", requestBody=body({"$ref": "#/components/schemas/Node"}))},
    )
    inner = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {"type": "integer"}}}
    assert arguments(document, "a") == {
        "type": "object",
        "title": "a_Arguments",
        "properties": {"next": inner, "value": {"type": "integer"}},
        "required": [],
        "$defs": {"Node": inner},
    }


def test_references_that_would_multiply_are_kept() -> None:
    """References stay references if resolving them would multiply: here, twenty schemas become a million."""
    schemas = {
        f"S{i}": {"type": "object", "properties": {side: {"$ref": f"#/components/schemas/S{i + 1}"} for side in "lr"}}
        for i in range(20)
    }
    schemas["S20"] = {"type": "string"}
    document = spec(
        schemas=schemas, a={"post": operation(operationId="a", requestBody=body({"$ref": "#/components/schemas/S0"}))}
    )
    parameters = arguments(document, "a")
    assert len(json.dumps(parameters)) < 10_000
    assert parameters["properties"]["l"] == {"$ref": "#/$defs/S1"}
    assert set(parameters["$defs"]) == {f"S{i}" for i in range(1, 21)}


@pytest.mark.parametrize("ref", ["#/components/schemas/Gone", "https://elsewhere.example/pet.json", "other.yaml#/Pet"])
def test_a_dangling_reference_is_named(ref: str) -> None:
    """The error names a dangling reference, and nothing is fetched."""
    document = spec(a={"post": operation(operationId="a", requestBody=body({"$ref": ref}))})
    with pytest.raises(InvalidTool) as raised:
        OpenAPIToolset(spec_dict=document)
    assert str(raised.value) == (
        f"Tool 'OpenAPIToolset': in POST /a: `$ref` {ref!r} does not exist in the document; use only references "
        "within the document."
    )


def test_a_parameter_that_refers_to_itself_is_named() -> None:
    """The error names the parameter, whose reference is not followed forever."""
    document = spec(a={"get": operation(operationId="a", parameters=[{"$ref": "#/components/parameters/A"}])})
    document["components"]["parameters"] = {"A": {"$ref": "#/components/parameters/A"}}
    with pytest.raises(InvalidTool, match="does not exist in the document"):
        OpenAPIToolset(spec_dict=document)


# Versions of OpenAPI


POINT = {"type": "Point", "nullable": True, "$ref": "#/x"}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "declared"),
    [
        (
            {"type": "integer", "nullable": True, "minimum": 0, "exclusiveMinimum": True, "xml": {"name": "n"}},
            {"type": ["integer", "null"], "exclusiveMinimum": 0},
        ),
        ({"nullable": True, "allOf": [STRING]}, {"anyOf": [{"allOf": [STRING]}, NULL]}),
        ({"nullable": True, "$ref": "#/components/schemas/Text"}, {"type": ["string", "null"], "maxLength": 9}),
        ({"type": ["string", "null"], "format": None}, {"type": ["string", "null"]}),
        ({"const": None, "title": 7}, {"const": None, "title": "7"}),
        ({"default": POINT, "enum": [POINT], "const": POINT}, {"default": POINT, "enum": [POINT], "const": POINT}),
        ({"examples": [POINT], "x-own": POINT}, {"examples": [POINT], "x-own": POINT}),
        ({"properties": {"type": STRING, "enum": STRING}}, {"properties": {"type": STRING, "enum": STRING}}),
        (
            {"$ref": "#/components/schemas/Text", "minLength": 1, "description": "D."},
            {"type": "string", "maxLength": 9, "minLength": 1, "description": "D."},
        ),
        (
            {"$ref": "#/components/schemas/Text", "maxLength": 5},
            {"allOf": [{"type": "string", "maxLength": 9}, {"maxLength": 5}]},
        ),
        ({"$defs": {"T": STRING}, "items": {"$ref": "#/$defs/T"}}, {"items": STRING}),
        (
            {"$defs": {"T": STRING}, "properties": {"t": {"$ref": "#/$defs/T"}}, "allOf": [{"$ref": "#/$defs/T"}]},
            {"properties": {"t": STRING}, "allOf": [STRING]},
        ),
        ({"$ref": "#/components/schemas/Text/$defs/Part"}, {"type": "integer"}),
        ({"maximum": 2**64, "enum": [math.nan, 10**400]}, {"maximum": 2.0**64, "enum": [None, None]}),
    ],
)
def test_schemas_become_json_schemas(schema: Any, declared: Any) -> None:
    """Only schemas are converted. Values in them stay the same, except numbers that JSON does not have."""
    text = {"type": "string", "maxLength": 9, "$defs": {"Part": {"type": "integer"}}}
    document = spec(
        schemas={"Text": text}, a={"get": operation(operationId="a", parameters=[parameter("n", schema=schema)])}
    )
    assert arguments(document, "a")["properties"]["n"] == declared


def test_openapi_3_0_ignores_fields_next_to_a_reference() -> None:
    """Fields next to a reference are ignored, except annotations and `nullable`, which many generators write there."""
    schema = {"$ref": "#/components/schemas/Text", "maxLength": 5, "description": "D.", "nullable": True}
    document = spec(
        version="3.0.3",
        schemas={"Text": STRING},
        a={"get": operation(operationId="a", parameters=[parameter("n", schema=schema)])},
    )
    assert arguments(document, "a")["properties"]["n"] == {"type": ["string", "null"], "description": "D."}


def test_invalid_types_are_left_out() -> None:
    """Invalid types are left out, because some generators write `Any` or uppercase names."""
    document = spec(
        version="3.0.0",
        a={
            "post": operation(
                operationId="a",
                requestBody=body({"type": "Object", "properties": {"x": {"type": "STRING"}, "y": {"type": "Any"}}}),
            )
        },
    )
    assert arguments(document, "a")["properties"] == {"x": {"type": "string"}, "y": {}}


def test_a_specification_may_be_text() -> None:
    """A specification is JSON or YAML; in YAML, responses have numbers as keys, and dates are dates."""
    document = spec(a={"get": operation(operationId="a")})
    assert OpenAPIToolset(spec_str=json.dumps(document)).get_tool("a") is not None
    text = """
        openapi: 3.0.1
        info: {title: Pets, version: 2024-01-02}
        servers: [{url: 'https://{region}.pets.example/v1', variables: {region: {default: eu}}}]
        paths:
          /a:
            get:
              operationId: a
              responses: {200: {description: ok}}
    """
    tool = OpenAPIToolset(spec_str=text, spec_str_type="yaml").get_tool("a")
    assert tool is not None
    assert tool.operation.server == "https://eu.pets.example/v1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in ("no", "Yes", "on", "OFF", "y", "2024-01-02", "12:30:45", "1_000", "0b1", "=")),
        *((text, None) for text in ("", "~", "null")),
        ("True", True),
        ("010", 10),
        ("0o10", 8),
        ("-0x", "-0x"),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        (".inf", None),
        ("18446744073709551616", 2.0**64),
    ],
)
def test_yaml_is_read_as_yaml_1_2(text: str, value: Any) -> None:
    """Keys stay strings as they are written."""
    document = f"\ufeffvalue: {text}\nmerged: {{<<: &base {{{text or '~'}: key}}}}"
    assert load(document, "yaml") == {"value": value, "merged": {text or "~": "key"}}


def test_mistakes_in_unused_parts_are_harmless() -> None:
    """Mistakes in unused parts are ignored, for example a version that YAML reads as a number."""
    document = spec(a={"get": operation(operationId="a", externalDocs=7, tags=7, responses={200: 7})})
    document["paths"]["/a"]["get"] |= {"description": 7, "parameters": [parameter("n", description=7)]}
    document |= {"openapi": 3.1, "info": {"version": 1.0}, "tags": [{"name": 7}], "x-own": 7}
    document["servers"][0]["variables"] = {"port": {"default": 8443}}
    document["components"] = {"schemas": {"A": {"type": 7}}, "examples": 7, "responses": 7}
    tool = OpenAPIToolset(spec_str=f"\ufeff{json.dumps(document)}").get_tool("a")
    assert tool is not None
    assert (tool.description, tool.operation.schema["properties"]["n"]["description"]) == ("7", "7")


async def ticks_during(parsing: Awaitable[Any]) -> int:
    """Return how often other code runs on the event loop while a specification is parsed."""
    parsed, ticks = asyncio.ensure_future(parsing), 0
    while not parsed.done():
        await asyncio.sleep(0)
        ticks += 1
    await parsed
    return ticks


ALIASES = "x-a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"x-a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 5)
)
LARGE = f"openapi: 3.1.0\nservers: [{{url: 'https://a.example'}}]\npaths: {{}}\n{ALIASES}"
"""A short document whose references expand to more than 100,000 values."""


async def test_a_specification_is_parsed_outside_the_event_loop() -> None:
    """A specification is parsed in a thread, so the worker keeps sending heartbeats and accepting answers."""
    assert await ticks_during(OpenAPIToolset.create(spec_str=LARGE, spec_str_type="yaml")) > 10


async def test_a_nested_toolset_is_parsed_outside_the_event_loop() -> None:
    """A nested toolset is parsed in a thread, too; a toolset with a plain function often creates one at run time."""

    class Remote(BaseToolset):
        def get_tools(self, readonly_context: Any = None) -> Any:
            OpenAPIToolset(spec_str=LARGE, spec_str_type="yaml")
            return []

    assert await ticks_during(Remote().get_tools_with_prefix()) > 10


async def test_a_mistake_in_a_specification_parsed_in_a_thread_is_raised() -> None:
    """The error of a specification that is parsed in a thread equals that of the class itself."""
    with pytest.raises(InvalidTool, match="the specification must be an object"):
        await OpenAPIToolset.create(spec_str="[]")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "the specification is missing; pass `spec_dict` or `spec_str`."),
        ({"spec_str": "{"}, "the specification is not valid JSON:"),
        ({"spec_str": "a: [", "spec_str_type": "yaml"}, "the specification is not valid YAML:"),
        (
            {"spec_str": BILLION_LAUGHS, "spec_str_type": "yaml"},
            "the specification is not valid YAML: it has over 500,000",
        ),
        ({"spec_str": "[]"}, "the specification must be an object."),
        (
            {"spec_dict": {"swagger": 2.0}},
            "the specification has version '2.0'; use OpenAPI 3.0 or 3.1. `npx swagger2openapi FILE` converts Swagger",
        ),
        (
            {"spec_dict": spec(a={"get": operation(parameters=[parameter("n", schema={"properties": [1]})])})},
            "in GET /a: the schema keyword 'properties' cannot be [1].",
        ),
        (
            {
                "spec_dict": spec(
                    a={"get": operation(parameters=[{"$ref": "#/components/schemas/A"}])}, schemas={"A": {}}
                )
            },
            "in GET /a: the parameter {'$ref': '#/components/schemas/A'} has no `name` or `in`.",
        ),
        (
            {"spec_dict": spec(a={"get": operation(operationId="a", parameters=[{"name": "x"}])})},
            "the specification is invalid at `paths./a.get.parameters",
        ),
    ],
)
def test_an_unusable_specification_is_refused_with_the_place(settings: dict[str, Any], message: str) -> None:
    """The error is raised when the toolset is created."""
    with pytest.raises(InvalidTool) as raised:
        OpenAPIToolset(**settings)
    assert str(raised.value).startswith(f"Tool 'OpenAPIToolset': {message}")


def test_an_unknown_kind_of_text_is_refused() -> None:
    """The error has ADK's text."""
    with pytest.raises(ValueError, match="Unsupported spec type: toml"):
        OpenAPIToolset(spec_str="x", spec_str_type="toml")  # type: ignore[arg-type]  # which is the point


def test_a_specification_without_an_address_is_reported() -> None:
    """The problem is reported by `waystation worker check`, and `server_url` corrects it."""
    document = spec(servers=[{"url": "/v1"}], a={"get": operation(operationId="a")})
    (problem,) = authoring_problems(LlmAgent(name="x", tools=[OpenAPIToolset(spec_dict=document)]))
    assert str(problem) == (
        "Tool 'OpenAPIToolset': in operation 'a': the server URL in the specification is not absolute ('/v1'); pass "
        "`server_url`."
    )
    mended = OpenAPIToolset(spec_dict=document, server_url="https://pets.example/v1")
    assert authoring_problems(LlmAgent(name="x", tools=[mended])) == []


def test_a_path_variable_without_a_parameter_is_reported() -> None:
    """The missing parameter is reported once for all offered operations."""
    document = spec(more={"a/{id}": {"get": operation(operationId="a"), "put": operation(operationId="b")}})
    (problem,) = OpenAPIToolset(spec_dict=document).setting_problems()
    assert problem == (
        "in operation 'a' and 1 more: no parameter is declared for 'id' in its path; add one with `in: path` to the "
        "document."
    )
    assert OpenAPIToolset(spec_dict=document, tool_filter=["c"]).setting_problems() == []


KEYS = {name: {"type": "apiKey", "in": "header", "name": f"X-{name}"} for name in ("app", "api")}
LOGIN = {"type": "http", "scheme": "bearer"}


@pytest.mark.parametrize(
    ("security", "settings", "chosen", "problems"),
    [
        ([{"app": [], "api": []}], {}, {"app", "api"}, 1),
        ([{"app": [], "api": []}], {"auth_credential": {"app": None}}, {"app", "api"}, 1),
        ([{"app": [], "api": []}], {"auth_credential": {"app": None, "api": None}}, {"app", "api"}, 0),
        ([{"app": [], "api": []}], {"header_provider": dict}, {"app", "api"}, 0),
        ([{"app": [], "api": []}, {"login": []}], {}, {"login"}, 0),
        ([{"login": []}, {"app": []}], {"auth_credential": {"auth_type": "apiKey"}}, {"app"}, 0),
        ([{"login": []}, {"app": [], "api": []}], {"auth_credential": {"app": None, "api": None}}, {"app", "api"}, 0),
        ([{"login": [], "again": []}], {}, {"login"}, 0),
        ([{"tls": []}], {}, {""}, 0),
    ],
)
def test_one_complete_set_of_schemes_is_used(security: Any, settings: Any, chosen: Any, problems: int) -> None:
    """All schemes of a set are needed, so a missing credential is reported."""
    document = spec(a={"get": operation(operationId="a", security=security)})
    document["components"]["securitySchemes"] = {**KEYS, "login": LOGIN, "again": LOGIN, "tls": {"type": "mutualTLS"}}
    toolset = OpenAPIToolset(spec_dict=document, **settings)
    tool = toolset.get_tool("a")
    assert tool is not None
    assert tool._required().keys() == chosen
    assert len(toolset.setting_problems()) == problems


@pytest.mark.parametrize("depth", [200, 5000])
def test_a_chain_of_references_may_be_long(depth: int) -> None:
    """References are kept if resolving them would nest too deeply."""
    schemas: dict[str, Any] = {f"S{n}": {"$ref": f"#/components/schemas/S{n + 1}"} for n in range(depth)}
    schemas[f"S{depth}"] = STRING
    request_body = body({"$ref": "#/components/schemas/S0"})
    assert (
        "body"
        in arguments(spec(schemas=schemas, a={"post": operation(operationId="a", requestBody=request_body)}), "a")[
            "properties"
        ]
    )


def test_schemas_that_are_nested_too_deeply_are_refused() -> None:
    """A schema of 5,000 levels is refused as a mistake of the service."""
    schema: Any = STRING
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidTool, match="nested too deeply"):
        OpenAPIToolset(spec_dict=spec(a={"post": operation(operationId="a", requestBody=body(schema))}))


def test_parts_of_a_schema_that_multiply_are_read_once() -> None:
    """Each `allOf` is read once: each contains the next one twice, so sixty would be read 2**60 times."""
    schemas: dict[str, Any] = {
        f"S{n}": {"type": "object", "allOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 2} for n in range(60)
    }
    schemas["S60"] = {"properties": {"name": STRING, "id": {"type": "integer", "readOnly": True}}}
    request_body = body({"$ref": "#/components/schemas/S0"})
    document = spec(schemas=schemas, a={"post": operation(operationId="a", requestBody=request_body)})
    assert arguments(document, "a")["properties"] == {"name": STRING}


def test_mappings_that_are_merged_repeatedly_are_read_once() -> None:
    """Each mapping is read once: each merges the previous one ten times, so thirty would have 10**30 keys."""
    merges = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 30))
    assert load(f"a0: &a0 {{x: 1, y: 2}}\n{merges}", "yaml")["a29"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("server", ["https://pets.example:99999", "https://[pets.example"])
def test_a_server_that_is_not_a_url_is_reported(server: str) -> None:
    """A server that is not a URL is reported by `waystation worker check` instead of a Python error."""
    document = spec(servers=[{"url": server}], a={"get": operation(operationId="a")})
    (problem,) = OpenAPIToolset(spec_dict=document).setting_problems()
    assert f"is not absolute ({server!r})" in problem
