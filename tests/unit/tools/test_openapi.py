"""OpenAPIToolset with a real service: requests and responses."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.unit.tools.rest_service import ERROR, Service, body, call, parameter, serving, spec, tool
from waystation.agents.readonly_context import ReadonlyContext
from waystation.artifacts import InMemoryArtifactService
from waystation.tools.outcome import FailedAfterEffect, create_outcome
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    running.requests.clear()
    return running


FIELDS = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {}}}}


# Requests


async def test_arguments_are_sent_where_the_specification_says(service: Service) -> None:
    """Each argument is in the path, query, header, cookie or body, under the service's own name."""
    pet_tool = tool(
        spec(
            service.url + "/v1/",
            "/pets/{petId}",
            "post",
            parameters=[
                parameter("petId", "path"),
                parameter("maxAge"),
                parameter("X-Trace", "header"),
                parameter("sessionId", "cookie"),
            ],
            requestBody=body(FIELDS),
        )
    )
    answer = await call(
        pet_tool, pet_id="a b/ü", max_age=True, x_trace=7, session_id="s 1;", name="Rex", tags=[1, None], unknown="x"
    )
    assert (answer["method"], answer["target"]) == ("POST", "/v1/pets/a%20b%2F%C3%BC?maxAge=true")
    assert answer["headers"]["x-trace"] == "7"
    assert answer["headers"]["cookie"] == "sessionId=s%201%3B"
    assert answer["headers"]["content-type"] == "application/json"
    assert json.loads(answer["body"]) == {"name": "Rex", "tags": [1, None]}


LIST, RGB = ["blue", "bl|k", 7, None], {"R": 100, "G": True, "B": None}
OPEN = {"type": "object", "properties": {"R": {}}, "additionalProperties": {}}


@pytest.mark.parametrize(
    ("fields", "value", "query"),
    [
        ({}, LIST, "q=blue&q=bl%7Ck&q=7"),
        ({"explode": False}, LIST, "q=blue,bl%7Ck,7"),
        ({"style": "spaceDelimited", "explode": False}, LIST, "q=blue%20bl%7Ck%207"),
        ({"style": "pipeDelimited", "explode": False}, LIST, "q=blue%7Cbl%7Ck%7C7"),
        ({"style": "pipeDelimited", "explode": True}, LIST, "q=blue&q=bl%7Ck&q=7"),
        ({"style": "pipeDelimited", "explode": False}, RGB, "q=R%7C100%7CG%7Ctrue"),
        (
            {"style": "deepObject"},
            {"min": 1, "in": [{"a": 2}, "x"]},
            "q%5Bmin%5D=1&q%5Bin%5D%5B0%5D%5Ba%5D=2&q%5Bin%5D%5B1%5D=x",
        ),
        ({"style": "deepObject"}, ["x", None], "q%5B0%5D=x"),
        ({"schema": {"allOf": [{"properties": {"R": {}, "G": {}}}]}}, RGB, "R=100&G=true"),
        ({"schema": {"properties": {"R": {}, "G": {}}}, "explode": False}, RGB, "q=R,100,G,true"),
        ({"schema": OPEN}, RGB, "R=100&G=true"),
        ({"schema": OPEN}, {"other": 1}, "q=other,1"),
        ({"schema": {"type": "object"}}, {"admin": 1}, "q=admin,1"),
        ({}, [["a"], {"b": 1}], "q=%5B%22a%22%5D&q=%7B%22b%22%3A1%7D"),
        ({}, "a&b=c#d +%", "q=a%26b%3Dc%23d%20%2B%25"),
        ({"allowReserved": True}, "a/b?c=d,e&f#g+h[%]", "q=a/b?c=d,e%26f%23g%2Bh%5B%25%5D"),
        ({}, None, ""),
        ({}, "", "q="),
        ({"allowEmptyValue": True}, None, "q="),
        ({}, [], ""),
        ({}, 1e16, "q=10000000000000000"),
        ({}, [0.00001, 3.0, -2.5], "q=0.00001&q=3&q=-2.5"),
    ],
)
async def test_a_query_has_the_style_of_the_parameter(service: Service, fields: Any, value: Any, query: str) -> None:
    """A query contains no unknown parameters, and no argument replaces another. Source: OpenAPI 3.1.1."""
    await call(tool(spec(service.url, parameters=[parameter("q", **fields), parameter("other")])), q=value)
    assert service.requests[-1]["target"].partition("?")[2] == query


@pytest.mark.parametrize(
    ("style", "explode", "text", "array", "fields"),
    [
        ("simple", False, "a%2Fb", "blue,bl%7Ck,7", "R,100,G,true"),
        ("simple", True, "a%2Fb", "blue,bl%7Ck,7", "R=100,G=true"),
        ("label", False, ".a%2Fb", ".blue,bl%7Ck,7", ".R,100,G,true"),
        ("label", True, ".a%2Fb", ".blue.bl%7Ck.7", ".R=100.G=true"),
        ("matrix", False, ";p=a%2Fb", ";p=blue,bl%7Ck,7", ";p=R,100,G,true"),
        ("matrix", True, ";p=a%2Fb", ";p=blue;p=bl%7Ck;p=7", ";R=100;G=true"),
    ],
)
async def test_a_path_has_the_style_of_the_parameter(
    service: Service, style: str, explode: bool, text: str, array: str, fields: str
) -> None:
    """A path follows RFC 6570."""
    path_tool = tool(spec(service.url, "/x/{p}", parameters=[parameter("p", "path", style=style, explode=explode)]))
    for value, expected in (("a/b", text), (LIST, array), (RGB, fields)):
        assert (await call(path_tool, p=value))["target"] == f"/x/{expected}"


@pytest.mark.parametrize(
    ("explode", "value", "header", "cookie"),
    [
        (False, ["a", 1.0, True], "a,1,true", "h=a%2C1%2Ctrue"),
        (True, ["a", "b"], "a,b", "h=a; h=b"),
        (True, {"a": 1}, "a=1", "a=1"),
        (False, {"a": 1}, "a,1", "h=a%2C1"),
        (False, [], None, None),
        (False, None, None, None),
    ],
)
async def test_headers_and_cookies_have_styles(
    service: Service, explode: bool, value: Any, header: str | None, cookie: str | None
) -> None:
    """The styles are `simple` and `form`.

    Several values of a cookie are several cookies, because `&` would be part of a value.
    """
    schema: Any = {"properties": {"a": {}}}
    both = [parameter("h", where, schema=schema, explode=explode) for where in ("header", "cookie")]
    headers = (await call(tool(spec(service.url, parameters=both)), h=value, h_0=value))["headers"]
    assert (headers.get("h"), headers.get("cookie")) == (header, cookie)


async def test_a_parameter_may_be_json(service: Service) -> None:
    """A parameter with a media type instead of a schema is JSON."""
    content = {"application/json": {"schema": {"type": "object"}}}
    parameters = [{"name": "q", "in": where, "content": content} for where in ("query", "header")]
    answer = await call(tool(spec(service.url, parameters=parameters)), q={"a": ["ü"]}, q_0={"a": ["ü"]})
    assert answer["target"] == "/echo?q=%7B%22a%22%3A%5B%22%C3%BC%22%5D%7D"
    assert answer["headers"]["q"] == '{"a":["\\u00fc"]}'


FORM, PARTS = "application/x-www-form-urlencoded", "multipart/form-data"
DEEP = {"style": "deepObject", "explode": True}


@pytest.mark.parametrize(
    ("schema", "media_type", "args", "sent"),
    [
        ({"type": "array", "items": {}}, "application/json", {"array": [1, "b"]}, '[1, "b"]'),
        ({"type": "integer"}, "application/json", {"body": 0}, "0"),
        ({"type": "string"}, "application/json", {"body": "a"}, '"a"'),
        (FIELDS, "application/vnd.pets+json; charset=utf-8", {"name": "ü"}, '{"name": "ü"}'),
        (FIELDS, FORM, {"name": "a&b", "tags": ["x", {"y": 1}]}, "name=a%26b&tags=x&tags=%7B%22y%22%3A1%7D"),
        ({"type": "string"}, "text/plain", {"body": "hello"}, "hello"),
        ({"type": "string", "format": "binary"}, "application/octet-stream", {"body": "ü"}, "ü"),
        ({"oneOf": [{}, {}]}, "application/json", {"body": {"a": 1}}, '{"a": 1}'),
        (FIELDS, "application/json", {}, "{}"),
        ({"type": "string"}, "text/plain", {}, ""),
    ],
)
async def test_a_body_has_its_media_type(service: Service, schema: Any, media_type: str, args: Any, sent: str) -> None:
    """Parameters of the media type, such as the charset, are kept."""
    answer = await call(tool(spec(service.url, method="post", requestBody=body(schema, media_type))), **args)
    assert (answer["body"], answer["headers"].get("content-type")) == (sent, media_type if sent else None)


@pytest.mark.parametrize("media_types", [["application/xml", "application/json"], ["text/xml", "application/a+json"]])
async def test_json_is_preferred_over_xml(service: Service, media_types: list[str]) -> None:
    """JSON is preferred for the request and, by a header, for the response. JSON is never written as XML."""
    content = {media_type: {"schema": FIELDS} for media_type in media_types}
    answer = await call(tool(spec(service.url, method="post", requestBody={"content": content})), name="Rex")
    assert (answer["body"], answer["headers"]["content-type"]) == ('{"name": "Rex"}', media_types[1])
    assert answer["headers"]["accept"].startswith("application/json, ")


async def test_a_reading_request_has_no_empty_body(service: Service) -> None:
    """An empty body is omitted, because many servers refuse a GET with a body.

    Stripe's specification declares an empty form for each GET.
    """
    answer = await call(tool(spec(service.url, requestBody=body({"type": "object", "properties": {}}, FORM))))
    assert (answer["body"], answer["headers"].get("content-type")) == ("", None)


@pytest.mark.parametrize(
    ("encoding", "value", "sent"),
    [
        ({}, {"order": 1}, "f=%7B%22order%22%3A1%7D"),
        (DEEP, {"order": 1, "more": {"a": "b"}}, "f%5Border%5D=1&f%5Bmore%5D%5Ba%5D=b"),
        (DEEP, [{"price": "p"}], "f%5B0%5D%5Bprice%5D=p"),
        ({"style": "pipeDelimited", "explode": False}, ["a", "b"], "f=a%7Cb"),
        ({"explode": False}, ["a", "b"], "f=a,b"),
        ({"explode": True}, {"name": "other", "x": 1}, "f=name,other,x,1"),
        ({"allowReserved": True}, "a/b&c", "f=a/b%26c"),
        ({"contentType": "application/json"}, ["a"], "f=%5B%22a%22%5D"),
        ({"contentType": "application/xml"}, {"a": 1}, "f=%7B%22a%22%3A1%7D"),
        ({"contentType": "text/plain"}, [True, None], "f=true"),
    ],
)
async def test_a_field_of_a_form_has_the_encoding_of_the_specification(
    service: Service, encoding: Any, value: Any, sent: str
) -> None:
    """The encoding covers the model's keys, too: none of them becomes another field."""
    schema = {"type": "object", "properties": {"f": {"type": "object"}, "name": {"type": "string"}}}
    request = body(schema, FORM, encoding={"f": encoding})
    assert (await call(tool(spec(service.url, method="post", requestBody=request)), f=value))["body"] == sent


FILE = {"type": "string", "format": "binary"}
TYPED = "\r\nContent-Type: {}\r\n\r\n"


@pytest.mark.parametrize(
    ("schema", "encoding", "value", "parts"),
    [
        ({"type": "string"}, {}, "hi", ['"\r\n\r\nhi']),
        (FILE, {}, "data", ['"; filename="f"' + TYPED.format("application/octet-stream") + "data"]),
        ({"type": "array", "items": FILE}, {}, ["a", "b"], ['filename="f"', "\r\na\r\n", "\r\nb\r\n"]),
        ({"contentMediaType": "image/png"}, {}, "x", ['filename="f"' + TYPED.format("image/png")]),
        (FILE, {"contentType": "image/*, image/webp"}, "x", ['filename="f"' + TYPED.format("image/webp")]),
        ({}, {"contentType": "text/csv"}, "x", ['"' + TYPED.format("text/csv") + "x"]),
        ({}, {"contentType": "application/json"}, ["a"], ['"' + TYPED.format("application/json") + '["a"]']),
        ({}, {}, {"a": True}, ['"' + TYPED.format("application/json") + '{"a":true}']),
        ({}, {}, [False, 2], ["\r\n\r\nfalse\r\n", "\r\n\r\n2\r\n"]),
        ({}, DEEP, {"a": {"b": 1}}, ['name="f[a][b]"\r\n\r\n1']),
        (FILE, {"headers": {"X-A": {"schema": {"const": 1}}, "X-B": {"schema": {}}}}, "x", ["\r\nX-A: 1\r\n"]),
    ],
)
async def test_a_multipart_form_has_a_part_for_each_value(
    service: Service, schema: Any, encoding: Any, value: Any, parts: list[str]
) -> None:
    """A value is a file only if the specification says so. httpx chooses the boundary."""
    request = body({"type": "object", "properties": {"f": schema}}, PARTS, encoding={"f": encoding})
    answer = await call(tool(spec(service.url, method="post", requestBody=request)), f=value)
    assert answer["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert [part for part in parts if part not in answer["body"]] == []
    assert ("filename" in answer["body"]) is any("filename" in part for part in parts) or "X-A" in answer["body"]


async def test_a_missing_required_argument_has_its_default(service: Service) -> None:
    """A missing required argument has its default, as in ADK."""
    query = parameter("q", required=True, schema={"type": "string", "default": "all"})
    await call(tool(spec(service.url, parameters=[query])))
    assert service.requests[-1]["target"] == "/echo?q=all"


async def test_a_query_in_the_path_is_kept(service: Service) -> None:
    """A query in the path is kept, because some services distinguish operations by it.

    An argument with its name replaces it.
    """
    query_tool = tool(spec(service.url, "/echo?action=list&q=0#x", parameters=[parameter("q")]))
    assert (await call(query_tool))["target"] == "/echo?action=list&q=0"
    assert (await call(query_tool, q="x"))["target"] == "/echo?action=list&q=x"


async def test_an_author_may_add_headers(service: Service) -> None:
    """The author's headers are computed for each context and override arguments."""

    async def provider(context: ReadonlyContext) -> dict[str, str]:
        return {"X-Tenant": str(context.state["tenant"])}

    tenant_tool = tool(spec(service.url, parameters=[parameter("x-tenant", "header")]), header_provider=provider)
    tenant_tool.set_default_headers({"X-Default": "d", "X-Tenant": "default"})
    await tenant_tool.run_async(args={"x_tenant": "evil"}, tool_context=ToolContext(state={"tenant": "t1"}))
    headers = service.requests[-1]["headers"]
    assert (headers["x-tenant"], headers["x-default"]) == ("t1", "d")


async def test_an_author_may_provide_the_client(service: Service) -> None:
    """The author's factory creates a new client for each request."""
    client_tool = tool(
        spec(service.url), httpx_client_factory=lambda: httpx2.AsyncClient(headers={"X-Made": "by hand"})
    )
    for _ in range(2):
        assert (await call(client_tool))["headers"]["x-made"] == "by hand"


def test_a_server_variable_without_a_default_is_reported() -> None:
    """The command `waystation worker check` reports the variable before a request contains its braces."""
    (problem,) = tool(spec("https://{region}.pets.example")).setting_problems()
    assert "('https://{region}.pets.example'); pass `server_url`." in problem


# Responses


async def test_json_is_returned_unchanged(service: Service) -> None:
    """A value that is not an object is wrapped like any tool's result."""
    answer = await call(tool(spec(service.url)))
    assert create_outcome(answer, context=ToolContext()).response == answer


@pytest.mark.parametrize(
    ("media_type", "reply", "answer"),
    [
        ("application/json", b'\xef\xbb\xbf{"id": 7}', {"id": 7}),
        ("application/json", '{"id": "ü"}'.encode("utf-16"), {"id": "ü"}),
        ("application/json; charset=latin-1", b'{"id": "\xfc"}', {"id": "ü"}),
        ("application/json; charset=bogus", b'{"id": 7}', {"id": 7}),
        ("application/json", b'{"id": 7, "text": "\xff"}', {"id": 7, "text": "\ufffd"}),
        ("text/plain", b"[1]", [1]),
        ("application/octet-stream", b"[1]", [1]),
        ("application/json", b"<html>", {"text": "<html>"}),
        ("application/json", b"", {"text": ""}),
        ("application/x-ndjson", b'{"a": 1}\n{"a": 2}\n', {"text": '{"a": 1}\n{"a": 2}\n'}),
        ("text/csv", b"\xef\xbb\xbfa,b", {"text": "a,b"}),
        ("text/plain; charset=latin-1", "grün".encode("latin-1"), {"text": "grün"}),
        ("image/svg+xml", b"<svg/>", {"text": "<svg/>"}),
    ],
)
async def test_a_response_is_json_or_text(service: Service, media_type: str, reply: bytes, answer: Any) -> None:
    """The encoding is that of the service or of JSON. One wrong byte does not lose the rest."""
    service.media_type, service.reply = media_type, reply
    assert await call(tool(spec(service.url, "/reply"))) == answer


@pytest.mark.parametrize("odd", ["NaN", "-1e400", "18446744073709551615", "1" * 5000, '"cut \\ud83d"'])
async def test_one_invalid_value_does_not_lose_the_response(service: Service, odd: str) -> None:
    """The outcome names the invalid value, and the rest arrives."""
    service.media_type, service.reply = "application/json", f'{{"id": 7, "odd": {odd}}}'.encode()
    response = create_outcome(await call(tool(spec(service.url, "/reply"))), context=ToolContext()).response
    assert response is not None
    assert response["id"] == 7
    assert "odd" in str(response["replaced_values"])


async def test_an_empty_response_is_an_empty_text(service: Service) -> None:
    """An empty response is an empty text, as in ADK."""
    assert await call(tool(spec(service.url, "/empty"))) == {"text": ""}


@pytest.mark.parametrize(
    ("media_type", "reply", "ending"),
    [
        ("image/png", b"\x89PNG", ".png"),
        ("application/pdf", b"%PDF-1.7 \xe2\xe3", ".pdf"),
        ("application/pets", b"\0", ".bin"),
        ("application/zip", b"x" * 3_000_000, ".zip"),
    ],
)
async def test_a_binary_response_is_an_artifact(service: Service, media_type: str, reply: bytes, ending: str) -> None:
    """The model receives the name of the artifact, which the service cannot choose."""
    service.media_type, service.reply = media_type, reply
    context = ToolContext(
        function_call_id="fc-1", user_id="ann", services=Services(artifacts=InMemoryArtifactService())
    )
    answer = await tool(spec(service.url, "/reply")).run_async(args={}, tool_context=context)
    assert answer == {"artifact": f"ask-fc-1{ending}", "mime_type": media_type, "bytes": len(reply)}
    saved = await context.load_artifact(answer["artifact"])
    assert saved is not None
    assert saved.inline_data is not None
    assert (saved.inline_data.data, saved.inline_data.mime_type) == (reply, media_type)


async def test_a_binary_response_that_cannot_be_saved_does_not_repeat_the_request(service: Service) -> None:
    """The request is not repeated, because the service has already acted."""
    service.media_type, service.reply = "image/png", b"\x89PNG"
    with pytest.raises(FailedAfterEffect, match="Artifact service is not initialized") as raised:
        await call(tool(spec(service.url, "/reply", "post")))
    assert raised.value.value == {"artifact": None, "mime_type": "image/png", "bytes": 4}


async def test_an_error_of_the_service_reaches_the_model(service: Service) -> None:
    """The model receives ADK's text, so that it may try again."""
    answer = await call(tool(spec(service.url, "/missing")))
    assert answer == {"error": ERROR.format("ask", "Status Code: 404, no such pet")}


async def test_a_response_that_is_too_large_is_not_read(service: Service) -> None:
    """A response that is too large is not read, because it could not be recorded."""
    assert await call(tool(spec(service.url, "/large"))) == {
        "error": ERROR.format("ask", "The response is over 2000000 bytes.")
    }


async def test_an_unreachable_service_raises() -> None:
    """An unreachable service raises an error, so that the activity reports it, and retries if the author allows it."""
    with serving() as gone:
        url = gone.url
    with pytest.raises(httpx2.ConnectError):
        await call(tool(spec(url)))


# Repetition and confirmation


@pytest.mark.parametrize(
    ("method", "settings", "effect"),
    [
        ("get", {}, "read"),
        ("head", {}, "read"),
        ("put", {}, "repeatable"),
        ("delete", {}, "repeatable"),
        ("post", {}, "once"),
        ("patch", {}, "once"),
        ("post", {"effect": "read"}, "read"),
        ("post", {"effect": {"ask": "repeatable"}}, "repeatable"),
        ("post", {"effect": {"other": "repeatable"}}, "once"),
        ("post", {"idempotency_header": "Idempotency-Key"}, "repeatable"),
    ],
)
def test_the_effect_follows_from_the_method(method: str, settings: Any, effect: str) -> None:
    """The effect follows from HTTP's guarantees for the method, unless the author sets it."""
    assert tool(spec("https://pets.example", method=method), **settings).effect == effect


async def test_an_idempotency_key_is_sent_if_it_is_configured(service: Service) -> None:
    """All attempts of a call send the same key; reading needs none."""
    keyed_tool = tool(spec(service.url, method="post"), idempotency_header="Idempotency-Key")
    assert (await call(keyed_tool))["headers"]["idempotency-key"] == "i-1/fc-1"
    keyed_tool = tool(spec(service.url), idempotency_header="Idempotency-Key")
    assert "idempotency-key" not in (await call(keyed_tool))["headers"]


@pytest.mark.parametrize(("required", "expected"), [(True, True), (False, False), (lambda name: name == "Rex", True)])
async def test_a_tool_may_need_a_confirmation(required: Any, expected: bool) -> None:
    """A confirmation is required always, or by a predicate of the arguments."""
    confirmed_tool = tool(spec("https://pets.example"), require_confirmation=required)
    assert await confirmed_tool.check_require_confirmation({"name": "Rex", "age": 1}, ToolContext()) is expected
