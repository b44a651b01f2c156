"""OpenAPIToolset against a real service: what is sent, and what comes back."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.unit.tools.rest_service import ERROR, Service, body, call, parameter, serving, spec, tool
from waystation.agents.readonly_context import ReadonlyContext
from waystation.tools.outcome import create_outcome
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


# What is sent


async def test_arguments_go_where_the_specification_says(service: Service) -> None:
    """Path, query, header, cookie and body, each under the service's own name."""
    asked = tool(
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
        asked, pet_id="a b/ü", max_age=True, x_trace=7, session_id="s 1;", name="Rex", tags=[1, None], unknown="x"
    )
    assert (answer["method"], answer["target"]) == ("POST", "/v1/pets/a%20b%2F%C3%BC?maxAge=true")
    assert answer["headers"]["x-trace"] == "7"
    assert answer["headers"]["cookie"] == "sessionId=s%201%3B"
    assert answer["headers"]["content-type"] == "application/json"
    assert json.loads(answer["body"]) == {"name": "Rex", "tags": [1, None]}


@pytest.mark.parametrize(
    ("fields", "value", "query"),
    [
        ({}, ["a", "b"], "q=a&q=b"),
        ({"explode": False}, ["a", "b"], "q=a%2Cb"),
        ({"style": "deepObject"}, {"min": 1, "max": 2}, "q%5Bmin%5D=1&q%5Bmax%5D=2"),
        ({"schema": {"type": "object", "properties": {"min": {}}}}, {"min": 1}, "min=1"),
        ({"schema": {"type": "object"}}, {"admin": 1}, "q=admin%2C1"),
        ({}, "a&b=c#d", "q=a%26b%3Dc%23d"),
        ({}, None, ""),
    ],
)
async def test_a_query_is_written_in_the_style_of_the_parameter(
    service: Service, fields: Any, value: Any, query: str
) -> None:
    """And cannot have parameters that the specification does not have."""
    await call(tool(spec(service.url, parameters=[parameter("q", **fields)])), q=value)
    assert service.requests[-1]["target"].partition("?")[2] == query


async def test_a_parameter_may_be_a_json_text(service: Service) -> None:
    """When the specification gives it a media type instead of a schema."""
    given = {"name": "q", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    await call(tool(spec(service.url, parameters=[given])), q={"a": [1]})
    assert service.requests[-1]["target"] == "/echo?q=%7B%22a%22%3A+%5B1%5D%7D"


@pytest.mark.parametrize(
    ("schema", "media_type", "args", "sent"),
    [
        ({"type": "array", "items": {}}, "application/json", {"array": [1, "b"]}, '[1, "b"]'),
        (FIELDS, "application/vnd.pets+json", {"name": "ü"}, '{"name": "ü"}'),
        (FIELDS, "application/x-www-form-urlencoded", {"name": "a&b", "tags": ["x", "y"]}, "name=a%26b&tags=x&tags=y"),
        ({"type": "string"}, "text/plain", {"body": "hello"}, "hello"),
        ({"oneOf": [{}, {}]}, "application/json", {"body": {"a": 1}}, '{"a": 1}'),
        (FIELDS, "application/json", {}, "{}"),
        ({"type": "string"}, "text/plain", {}, ""),
    ],
)
async def test_a_body_is_written_in_its_media_type(
    service: Service, schema: Any, media_type: str, args: Any, sent: str
) -> None:
    """The first one of the specification."""
    answer = await call(tool(spec(service.url, method="post", requestBody=body(schema, media_type))), **args)
    assert answer["body"] == sent


async def test_a_form_with_files_has_its_own_boundary(service: Service) -> None:
    """A file is one only where the specification says so."""
    schema = {
        "type": "object",
        "properties": {"note": {"type": "string"}, "scan": {"type": "string", "format": "binary"}},
    }
    asked = tool(spec(service.url, method="post", requestBody=body(schema, "multipart/form-data")))
    answer = await call(asked, note="hi", scan="data")
    assert answer["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert 'name="note"\r\n\r\nhi' in answer["body"]
    assert 'name="scan"; filename="scan"' in answer["body"]


async def test_a_required_argument_that_is_missing_has_its_default(service: Service) -> None:
    """As in ADK."""
    given = parameter("q", required=True, schema={"type": "string", "default": "all"})
    await call(tool(spec(service.url, parameters=[given])))
    assert service.requests[-1]["target"] == "/echo?q=all"


async def test_a_query_in_the_path_is_kept(service: Service) -> None:
    """Some services tell their operations apart by it."""
    await call(tool(spec(service.url, "/echo?action=list", parameters=[parameter("q")])), q="x")
    assert service.requests[-1]["target"] == "/echo?action=list&q=x"


async def test_headers_of_the_author(service: Service) -> None:
    """For each context, and over arguments."""

    async def provider(context: ReadonlyContext) -> dict[str, str]:
        return {"X-Tenant": str(context.state["tenant"])}

    asked = tool(spec(service.url, parameters=[parameter("x-tenant", "header")]), header_provider=provider)
    asked.set_default_headers({"X-Default": "d", "X-Tenant": "default"})
    await asked.run_async(args={"x_tenant": "evil"}, tool_context=ToolContext(state={"tenant": "t1"}))
    headers = service.requests[-1]["headers"]
    assert (headers["x-tenant"], headers["x-default"]) == ("t1", "d")


async def test_a_client_of_the_author(service: Service) -> None:
    """A new one for each request."""
    asked = tool(spec(service.url), httpx_client_factory=lambda: httpx2.AsyncClient(headers={"X-Made": "by hand"}))
    for _ in range(2):
        assert (await call(asked))["headers"]["x-made"] == "by hand"


# What comes back


async def test_json_is_given_as_it_is(service: Service) -> None:
    """Whatever is no object is wrapped like any tool's result."""
    answer = await call(tool(spec(service.url)))
    assert create_outcome(answer, context=ToolContext()).response == answer


async def test_text_and_nothing_are_given_as_text(service: Service) -> None:
    """In the encoding that the service names."""
    assert await call(tool(spec(service.url, "/text"))) == {"text": "grün"}
    assert await call(tool(spec(service.url, "/empty"))) == {"text": ""}


async def test_an_error_of_the_service_is_told(service: Service) -> None:
    """In ADK's words, so that the model may try again."""
    answer = await call(tool(spec(service.url, "/missing")))
    assert answer == {"error": ERROR.format("ask", "Status Code: 404, no such pet")}


async def test_a_response_that_is_too_large_is_not_read(service: Service) -> None:
    """It could not be recorded."""
    assert await call(tool(spec(service.url, "/large"))) == {
        "error": ERROR.format("ask", "The response is over 2000000 bytes.")
    }


async def test_a_service_that_is_not_there_raises() -> None:
    """The activity tells the model, and may try again if the author allows it."""
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
def test_what_a_repetition_does_follows_from_the_method(method: str, settings: Any, effect: str) -> None:
    """As HTTP promises, unless the author knows better."""
    assert tool(spec("https://pets.example", method=method), **settings).effect == effect


async def test_a_key_for_repetitions_is_sent_when_asked_for(service: Service) -> None:
    """The same over all attempts at a call; reading needs none."""
    asked = tool(spec(service.url, method="post"), idempotency_header="Idempotency-Key")
    assert (await call(asked))["headers"]["idempotency-key"] == "i-1/fc-1"
    asked = tool(spec(service.url), idempotency_header="Idempotency-Key")
    assert "idempotency-key" not in (await call(asked))["headers"]


@pytest.mark.parametrize(("required", "expected"), [(True, True), (False, False), (lambda name: name == "Rex", True)])
async def test_a_person_may_have_to_agree(required: Any, expected: bool) -> None:
    """Always, or by those of the arguments that the function takes."""
    asked = tool(spec("https://pets.example"), require_confirmation=required)
    assert await asked.check_require_confirmation({"name": "Rex", "age": 1}, ToolContext()) is expected
