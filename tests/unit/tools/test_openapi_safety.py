"""OpenAPIToolset restricts the hosts and content of requests, even for hostile arguments."""

import base64
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.tools.rest_service import ERROR, Service, call, parameter, serving, spec, tool
from waystation.agents import LlmAgent
from waystation.apps.registry import authoring_problems
from waystation.auth import AuthConfig, AuthCredential, AuthCredentialTypes, InMemoryCredentialService
from waystation.core.errors import InvalidTool
from waystation.tools.openapi_tool import OpenAPIToolset
from waystation.tools.openapi_tool.openapi_spec_parser.destination import DestinationRefused, check_destination
from waystation.tools.openapi_tool.openapi_spec_parser.rest_request import RestRequest
from waystation.tools.services import Services
from waystation.tools.tool_context import ToolContext

SECRET = "hunter2-very-secret"


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    running.requests.clear()
    return running


# Targets of requests


@pytest.mark.parametrize(
    "value", ["..", ".", "a/../b", "..\\secret", "a/./b", "", None, "\ud800"], ids=lambda value: repr(value)
)
async def test_an_argument_cannot_leave_the_path(service: Service, value: Any) -> None:
    """Dots and an empty segment are refused, because they would name another path or the whole collection."""
    pet_tool = tool(spec(service.url, "/pets/{id}", "delete", parameters=[parameter("id", "path", required=True)]))
    answer = await call(pet_tool, id=value)
    assert set(answer) == {"error"}
    assert service.requests == []


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("a/b", "/pets/a%2Fb"),
        ("?admin=1", "/pets/%3Fadmin%3D1"),
        ("#x", "/pets/%23x"),
        ("%2e%2e%2fsecret", "/pets/%252e%252e%252fsecret"),
        ("@evil.example", "/pets/%40evil.example"),
        ("..txt", "/pets/..txt"),
        ("a\r\nX: y", "/pets/a%0D%0AX%3A%20y"),
        (["a", "b,/"], "/pets/a,b%2C%2F"),
    ],
)
async def test_an_argument_stays_in_its_segment(service: Service, value: Any, target: str) -> None:
    """Any text is escaped, so it stays in its segment."""
    pet_tool = tool(spec(service.url, "/pets/{id}", parameters=[parameter("id", "path", required=True)]))
    assert (await call(pet_tool, id=value))["target"] == target


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "a\x00b", "ü"])
async def test_a_header_cannot_add_another_one(service: Service, value: str) -> None:
    """A line break in a header is refused, and the model receives an error."""
    answer = await call(tool(spec(service.url, parameters=[parameter("X-Trace", "header")])), x_trace=value)
    assert answer == {"error": ERROR.format("ask", "Header parameter 'X-Trace' must be printable ASCII, on one line.")}
    assert service.requests == []


async def test_a_cookie_cannot_add_another_one(service: Service) -> None:
    """An argument for a cookie adds neither another cookie nor a header."""
    cookie_tool = tool(spec(service.url, parameters=[parameter("a", "cookie")]))
    answer = await call(cookie_tool, a="1; admin=1\r\nX: y, z")
    assert answer["headers"]["cookie"] == "a=1%3B%20admin=1%0D%0AX:%20y%2C%20z"


async def test_redirects_are_not_followed(service: Service) -> None:
    """Redirects are not followed, because they may lead anywhere; the model receives the status."""
    answer = await call(tool(spec(service.url, "/moved")))
    assert answer == {"error": ERROR.format("ask", "Status Code: 302, ")}
    assert [request["target"] for request in service.requests] == ["/moved"]


async def test_requests_go_only_to_allowed_hosts(service: Service) -> None:
    """The allowed hosts are the specification's servers unless the author names others."""
    document = spec(service.url)
    refused = await call(tool(document, allowed_hosts=["pets.example"]))
    assert refused == {
        "error": ERROR.format(
            "ask", f"Requests may not go to {service.host}; the author can allow it with `allowed_hosts`."
        )
    }
    assert service.requests == []
    for named in (service.host, "127.0.0.1"):
        answer = await call(tool(document, allowed_hosts=[named], allow_private_network_access=False))
        assert answer["method"] == "GET"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.1.2.3", "169.254.169.254", "0.0.0.0", "2130706433"],
)
async def test_private_networks_are_closed_by_default(host: str) -> None:
    """Private networks are closed by default, as in ADK, because a foreign specification must not reach them."""
    answer = await call(tool(spec(f"http://{host}:9"), allow_private_network_access=False))
    assert "is in a private network" in answer["error"] or "Unknown host" in answer["error"]


async def test_a_path_that_continues_the_host_is_refused(service: Service) -> None:
    """A path that continues the host is refused: `https://pets.example` and `.evil.example/` would be another host."""
    document = spec("http://127.0.0.1", ".evil.example/x")
    answer = await call(tool(document))
    assert "does not begin with '/'" in answer["error"]


# Authentication


def secured(service: Service, scheme: dict[str, Any]) -> dict[str, Any]:
    document = spec(service.url, security=[{"main": []}])
    return {**document, "components": {"securitySchemes": {"main": scheme}}}


@pytest.mark.parametrize(
    ("scheme", "credential", "where", "sent"),
    [
        (
            {"type": "apiKey", "in": "header", "name": "X-Key"},
            {"auth_type": "apiKey", "api_key": SECRET},
            "x-key",
            SECRET,
        ),
        (
            {"type": "apiKey", "in": "cookie", "name": "key"},
            {"auth_type": "apiKey", "api_key": SECRET},
            "cookie",
            f"key={SECRET}",
        ),
        (
            {"type": "http", "scheme": "bearer"},
            {"auth_type": "http", "http": {"scheme": "bearer", "credentials": {"token": SECRET}}},
            "authorization",
            f"Bearer {SECRET}",
        ),
        (
            {"type": "http", "scheme": "basic"},
            {"auth_type": "http", "http": {"scheme": "basic", "credentials": {"username": "u", "password": SECRET}}},
            "authorization",
            "Basic " + base64.b64encode(f"u:{SECRET}".encode()).decode(),
        ),
        (
            {"type": "openIdConnect", "openIdConnectUrl": "https://login.example/.well-known"},
            {"auth_type": "openIdConnect", "oauth2": {"client_id": "c", "access_token": SECRET}},
            "authorization",
            f"Bearer {SECRET}",
        ),
    ],
)
async def test_a_credential_is_sent_as_the_scheme_says(
    service: Service, scheme: Any, credential: Any, where: str, sent: str
) -> None:
    """The credential is sent by the scheme of the operation, or by one for all operations."""
    for authenticated_tool in (
        tool(secured(service, scheme), auth_credential=credential),
        tool(spec(service.url), auth_scheme=scheme, auth_credential=credential),
    ):
        assert (await call(authenticated_tool))["headers"][where] == sent


async def test_a_key_in_the_query_is_not_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """A key in the query is not logged, although httpx logs URLs; an argument cannot replace the key."""
    scheme = {"type": "apiKey", "in": "query", "name": "key"}
    document = spec(service.url, parameters=[parameter("key"), parameter("q")])
    authenticated_tool = tool(document, auth_scheme=scheme, auth_credential={"auth_type": "apiKey", "api_key": SECRET})
    with caplog.at_level(logging.DEBUG):
        await call(authenticated_tool, key="mine", q="x")
    assert service.requests[-1]["target"] == f"/echo?q=x&key={SECRET}"
    assert SECRET not in caplog.text
    assert SECRET not in repr(authenticated_tool)


@pytest.mark.parametrize("where", ["header", "cookie"])
@pytest.mark.parametrize("ending", ["\n", "ü"])
async def test_a_credential_that_is_invalid_in_a_header_is_not_shown(service: Service, where: str, ending: str) -> None:
    """An invalid credential is not shown, although httpx quotes it, unmasked, in its error.

    The last line of a file often ends with a line break.
    """
    authenticated_tool = tool(
        spec(service.url),
        auth_scheme={"type": "apiKey", "in": where, "name": "X-Key"},
        auth_credential={"auth_type": "apiKey", "api_key": SECRET + ending},
    )
    with pytest.raises(InvalidTool, match=r"the header '(X-Key|Cookie)' cannot be sent; use printable") as raised:
        await call(authenticated_tool)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "encoding",
    [{"contentType": "text/plain\r\nX-Evil: 1"}, {"headers": {"X-A": {"schema": {"const": "1\r\nX-Evil: 1"}}}}],
)
async def test_a_part_of_a_form_cannot_add_a_header(service: Service, encoding: Any) -> None:
    """A part of a form adds no header, even if the specification is hostile.

    Headers that cannot be sent are left out, as among parameters.
    """
    schema = {"type": "object", "properties": {"f": {"type": "string"}}}
    content = {"multipart/form-data": {"schema": schema, "encoding": {"f": encoding}}}
    answer = await call(tool(spec(service.url, method="post", requestBody={"content": content})), f="x")
    assert "X-Evil" not in answer["body"]


async def test_a_media_type_cannot_add_a_header(service: Service) -> None:
    """A media type that contains another header is refused, like a header of the settings."""
    content = {"text/plain\r\nX-Evil: 1": {"schema": {"type": "string"}}}
    with pytest.raises(InvalidTool, match="the header 'Content-Type' cannot be sent"):
        await call(tool(spec(service.url, method="post", requestBody={"content": content})), body="x")
    assert service.requests == []


async def test_credentials_that_are_required_together_are_all_sent(service: Service) -> None:
    """The missing credentials are requested from the user, one after the other."""
    schemes = {name: {"type": "apiKey", "in": "header", "name": f"X-{name}"} for name in ("app", "api")}
    document = {**spec(service.url, security=[{"app": [], "api": []}]), "components": {"securitySchemes": schemes}}
    key = {"auth_type": "apiKey", "api_key": SECRET}
    credentials = {"app": key, "api": {**key, "api_key": "second"}}
    headers = (await call(tool(document, auth_credential=credentials)))["headers"]
    assert (headers["x-app"], headers["x-api"]) == (SECRET, "second")
    services = Services(credentials=InMemoryCredentialService())
    authenticated_tool = tool(document, auth_credential={"app": None, "api": None}, credential_key="pets")
    for name in schemes:
        context = ToolContext(function_call_id="fc-1", user_id="ann", services=services)
        assert (await authenticated_tool.run_async(args={}, tool_context=context))["pending"]
        (requested,) = context.recorded_actions().requested_auth_configs.values()
        assert (requested["authScheme"]["name"], requested["credentialKey"]) == (f"X-{name}", f"pets_{name}")
        config = AuthConfig.model_validate({"auth_scheme": schemes[name], "credential_key": f"pets_{name}"})
        config.exchanged_auth_credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=name)
        await context.save_credential(config)
    context = ToolContext(function_call_id="fc-1", user_id="ann", services=services)
    headers = (await authenticated_tool.run_async(args={}, tool_context=context))["headers"]
    assert (headers["x-app"], headers["x-api"]) == ("app", "api")


async def test_an_argument_cannot_replace_the_credential(service: Service) -> None:
    """The names of headers are compared without case, so no argument replaces the credential."""
    scheme = {"type": "apiKey", "in": "header", "name": "X-Key"}
    document = spec(service.url, parameters=[parameter("x-key", "header")])
    authenticated_tool = tool(document, auth_scheme=scheme, auth_credential={"auth_type": "apiKey", "api_key": SECRET})
    assert (await call(authenticated_tool, x_key="mine"))["headers"]["x-key"] == SECRET


async def test_optional_authentication_requests_no_login(service: Service) -> None:
    """An empty requirement makes it optional."""
    document = spec(service.url, security=[{}, {"main": []}])
    document["components"] = {"securitySchemes": {"main": {"type": "apiKey", "in": "header", "name": "X-Key"}}}
    assert (await call(tool(document)))["method"] == "GET"


async def test_a_missing_credential_is_requested_from_the_user(service: Service) -> None:
    """The tool requests the credential, and runs again after the login. Source: adk-semantics 11.2."""
    store = InMemoryCredentialService()
    scheme = {"type": "apiKey", "in": "header", "name": "X-Key"}
    authenticated_tool = tool(secured(service, scheme), credential_key="pets")
    context = ToolContext(function_call_id="fc-1", user_id="ann", services=Services(credentials=store))
    pending = {"pending": True, "message": "Needs your authorization to access your data."}
    assert await authenticated_tool.run_async(args={}, tool_context=context) == pending
    assert context.recorded_actions().requested_auth_configs.keys() == {"fc-1"}
    assert service.requests == []
    config = AuthConfig.model_validate({"auth_scheme": scheme, "credential_key": "pets"})
    config.exchanged_auth_credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=SECRET)
    await context.save_credential(config)
    answer = await authenticated_tool.run_async(args={}, tool_context=context)
    assert answer["headers"]["x-key"] == SECRET
    assert SECRET in set(context.secrets_given())


def test_an_unusable_credential_is_reported() -> None:
    """An unusable credential is reported by `waystation worker check`, which does not show it."""
    toolset = OpenAPIToolset(
        spec_dict=spec("https://pets.example"),
        auth_scheme={"type": "http", "scheme": "bearer"},
        auth_credential={"auth_type": "carrier pigeon", "api_key": SECRET},
    )
    (problem,) = authoring_problems(LlmAgent(name="a", tools=[toolset]))
    assert str(problem).startswith(
        "Tool 'OpenAPIToolset': its authentication is invalid at `raw_auth_credential.auth_type`"
    )
    assert SECRET not in str(problem)


# Addresses of hosts


async def test_the_checked_address_of_a_host_is_used() -> None:
    """The checked address is used, because a second DNS lookup could return another one."""
    checked = await check_destination("http://8.8.8.8/x", allowed={"8.8.8.8"}, named=(), private=False)
    assert checked == "8.8.8.8"
    assert await check_destination("http://8.8.8.8/x", allowed={"8.8.8.8"}, named={"8.8.8.8"}, private=False) is None


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::10.0.0.1",
        "2002:a00:1::1",
        "2002:7f00:1::",
        "2001:0:808:808::f5ff:fffe",
        "fec0::1",
        "fe80::1%eth0",
        "::1",
        "::",
    ],
)
async def test_an_ipv6_form_of_a_private_address_is_refused(address: str) -> None:
    """An IPv6 form of a private address is refused, because a gateway would translate it into the private address."""
    with pytest.raises(DestinationRefused):
        await check_destination(f"http://[{address}]/x", allowed={address}, named=(), private=False)


@pytest.mark.parametrize("address", ["64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8", "2606:4700::1111"])
async def test_an_ipv6_form_of_a_public_address_is_allowed(address: str) -> None:
    """An IPv6 form of a public address is allowed, because networks without IPv4 reach public services this way."""
    assert await check_destination(f"http://[{address}]/x", allowed={address}, named=(), private=False)


async def test_a_request_to_a_checked_address_has_the_name_of_the_host(service: Service) -> None:
    """The request has the name of the host, because services with many names need it."""
    host_tool = tool(spec(f"http://pets.example:{service.server_port}"))
    request = RestRequest(method="GET", url=f"http://pets.example:{service.server_port}/echo")
    answer = await host_tool._answer(request, "127.0.0.1", ToolContext())
    assert answer["headers"]["host"] == f"pets.example:{service.server_port}"
