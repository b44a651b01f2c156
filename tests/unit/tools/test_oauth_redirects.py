"""Nothing secret is sent to a provider whose token endpoint or metadata leads elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import pytest

from examples.calendar_login.provider import FakeOAuth
from tests.unit.tools.logins import auth_uri, calling, config_with_issuer, login
from waystation.auth import complete_authorization
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.core.errors import AuthorizationFailed
from waystation.core.payload import JsonObject

Reply = tuple[int, JsonObject, dict[str, str]]


@dataclass(kw_only=True)
class Misleading(FakeOAuth):
    """A provider that redirects requests or whose metadata names other endpoints."""

    status: int = 200
    """The status of the answers to requests for tokens and metadata."""
    location: str = ""
    endpoint: str = ""
    """The token endpoint or login page in its metadata."""
    name: str = "token_endpoint"

    def _post(self, handler: BaseHTTPRequestHandler) -> Reply:
        reply = super()._post(handler)
        return reply if self.status == 200 else (self.status, {}, {"Location": self.location})

    def _get(self, handler: BaseHTTPRequestHandler) -> Reply:
        status, body, headers = super()._get(handler)
        if "issuer" in body and self.status != 200:
            return self.status, {}, {"Location": self.location}
        if "issuer" in body and self.endpoint:
            body = {**body, self.name: self.endpoint}
        return status, body, headers


@pytest.fixture
def misleading() -> Iterator[Misleading]:
    """Return a provider that leads elsewhere."""
    with Misleading() as provider:
        yield provider


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_of_the_token_endpoint_is_not_followed(
    misleading: Misleading, provider: FakeOAuth, store: InMemoryCredentialService, status: int
) -> None:
    """The other server would receive the code, its verifier and the client's secret."""
    context = calling(store)
    context.request_credential(login(misleading))
    ended_at = misleading.log_in(auth_uri(context))
    misleading.status, misleading.location = status, f"{provider.url}/token"
    with pytest.raises(AuthorizationFailed) as caught:
        await complete_authorization(store, auth_response_uri=ended_at)
    assert provider.url not in str(caught.value)
    assert provider.token_requests == []


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_of_the_metadata_is_not_followed(
    misleading: Misleading, provider: FakeOAuth, store: InMemoryCredentialService, status: int
) -> None:
    """A redirect of the metadata is not followed, because the login could lead to a page of another server."""
    misleading.status, misleading.location = status, f"{provider.url}/.well-known/oauth-authorization-server"
    with pytest.raises(AuthorizationFailed, match="Provider metadata was not found"):
        calling(store).request_credential(config_with_issuer(misleading, "issuer"))


@pytest.mark.parametrize("name", ["token_endpoint", "authorization_endpoint"])
@pytest.mark.parametrize(
    "endpoint",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/token",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "x",
    ],
)
def test_metadata_must_use_https(
    misleading: Misleading, store: InMemoryCredentialService, name: str, endpoint: str
) -> None:
    """Addresses in the metadata must use https or this machine: the worker sends secrets there, and users open them."""
    misleading.name, misleading.endpoint = name, endpoint
    with pytest.raises(AuthorizationFailed, match="Provider metadata was not found"):
        calling(store).request_credential(config_with_issuer(misleading, "issuer"))
