"""A calendar with a login, for this example and for tests: it has one appointment and accepts every login.

    python examples/calendar_login/provider.py [PORT]

In tests, it is an OAuth 2 provider that strictly checks requests:

    with FakeOAuth() as provider:
        config = AuthConfig(auth_scheme=provider.scheme(), raw_auth_credential=provider.client())
        ...
        ended_at = provider.log_in(auth_uri)      # log in like a browser; returns the URI of the last page

The provider runs in a thread, so that even clients that block their event loop receive responses. `secrets` contains
every secret that was issued, so that a test can search for leaks.
"""

import base64
import contextlib
import http.client
import json
import secrets
import sys
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]  # it has no types

from waystation.auth import (
    AuthCredential,
    AuthCredentialTypes,
    OAuth2,
    OAuth2Auth,
    OAuthFlowAuthorizationCode,
    OAuthFlowClientCredentials,
    OAuthFlows,
)
from waystation.core.payload import JsonObject

PORT = 8199
REDIRECT_URI = "http://127.0.0.1:9/callback"
"""A redirect URI with no server behind it. Tests read the code from the URI, like a user who copies it from the
browser.
"""
_ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass(kw_only=True)
class FakeOAuth:
    """A fake provider with one client. Tests may change the fields at any time, except `port` while it is running."""

    client_id: str = "waystation-test"
    client_secret: str = field(default_factory=lambda: f"cs-{secrets.token_hex(12)}", repr=False)
    port: int = 0
    """The port on 127.0.0.1, or 0 for any free port."""
    lifetime_s: int = 3600
    """The lifetime of new access tokens, in seconds."""
    rotates: bool = True
    """Whether refresh tokens rotate, so that each works only once."""
    down: bool = False
    """Whether the token endpoint returns status 503."""
    refreshes: int = 0
    """How many times a token was refreshed."""
    token_requests: list[dict[str, str]] = field(default_factory=list, repr=False)
    """The form fields of every request to the token endpoint."""
    secrets: set[str] = field(default_factory=set, repr=False)
    """All values that must never leave a credential store: the client secret, codes, code verifiers and tokens."""

    def __post_init__(self) -> None:
        self._codes: dict[str, tuple[str, str]] = {}  # code challenge and redirect URI, by code
        self._access: dict[str, float] = {}
        self._refresh: set[str] = set()
        self._guard = threading.Lock()
        self.secrets.add(self.client_secret)

    def __enter__(self) -> Self:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._send(self, provider._get(self))

            def do_POST(self) -> None:
                provider._send(self, provider._post(self))

            def log_message(self, format: str, *args: Any) -> None:
                """Discard the message, which would otherwise go to standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The provider's base URL, which is also its issuer."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def scheme(self, *, scopes: tuple[str, ...] = ("calendar.read",)) -> OAuth2:
        """Return an auth scheme for logging in with this provider."""
        return self.scheme_at(self.url, scopes=scopes)

    @staticmethod
    def scheme_at(url: str, *, scopes: tuple[str, ...] = ("calendar.read",)) -> OAuth2:
        """Return an auth scheme for logging in with a provider at another URL."""
        return OAuth2(
            flows=OAuthFlows(
                authorizationCode=OAuthFlowAuthorizationCode(
                    authorizationUrl=f"{url}/authorize", tokenUrl=f"{url}/token", scopes=dict.fromkeys(scopes, "")
                )
            )
        )

    def own_scheme(self) -> OAuth2:
        """Return an auth scheme for the client credentials flow, which issues a token to the client itself."""
        flow = OAuthFlowClientCredentials(tokenUrl=f"{self.url}/token", scopes={"jobs.run": ""})
        return OAuth2(flows=OAuthFlows(clientCredentials=flow))

    def client(self, **fields: Any) -> AuthCredential:
        """Return a tool's credential that contains the provider's OAuth client. `fields` override its fields."""
        usual = {"client_id": self.client_id, "client_secret": self.client_secret, "redirect_uri": REDIRECT_URI}
        return AuthCredential(auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(**(usual | fields)))

    def log_in(self, auth_uri: str, *, consent: bool = True) -> str:
        """Open the login page, and consent or refuse. Return the URI that the page redirects to.

        Raises:
            AssertionError: The page did not redirect.
        """
        parts = urlsplit(auth_uri)
        connection = http.client.HTTPConnection(parts.netloc, timeout=10)
        connection.request("GET", f"{parts.path}?{parts.query}&{urlencode({'consent': int(consent)})}")
        with contextlib.closing(connection), connection.getresponse() as page:
            if page.status != HTTPStatus.FOUND:
                raise AssertionError(f"The login page did not redirect: {page.read().decode()}")
            return page.headers["Location"]

    def expire(self) -> None:
        """Expire all access tokens."""
        self._access = dict.fromkeys(self._access, 0.0)

    def revoke(self) -> None:
        """Revoke all refresh tokens."""
        self._refresh.clear()

    def _get(self, handler: BaseHTTPRequestHandler) -> tuple[int, JsonObject, dict[str, str]]:
        parts = urlsplit(handler.path)
        match parts.path:
            case "/authorize":
                return self._authorize({name: values[0] for name, values in parse_qs(parts.query).items()})
            case "/calendar":
                token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
                if self._access.get(token, 0.0) <= time.time():
                    return 401, {"error": "invalid_token"}, {}
                return 200, {"events": ["dentist"]}, {}
            case "/done":
                # This page can serve as `redirect_uri`, so that a browser shows a page instead of an error.
                return 200, {"logged_in": "Copy the URL of this page."}, {}
            case "/.well-known/oauth-authorization-server":
                authorization, token = f"{self.url}/authorize", f"{self.url}/token"
                return (
                    200,
                    {"issuer": self.url, "authorization_endpoint": authorization, "token_endpoint": token},
                    {},
                )
        return 404, {}, {}

    def _authorize(self, query: dict[str, str]) -> tuple[int, JsonObject, dict[str, str]]:
        if query.get("client_id") != self.client_id or query.get("response_type") != "code":
            return 400, {"error": "unauthorized_client"}, {}
        if query.get("code_challenge_method") != "S256" or not query.get("state"):
            return 400, {"error": "invalid_request"}, {}
        answer = {"state": query["state"]}
        if query.get("consent") == "0":
            answer |= {"error": "access_denied", "error_description": "The user said no."}
        else:
            code = self._new_secret("code")
            self._codes[code] = query["code_challenge"], query["redirect_uri"]
            answer |= {"code": code}
        return 302, {}, {"Location": f"{query['redirect_uri']}?{urlencode(answer)}"}

    def _post(self, handler: BaseHTTPRequestHandler) -> tuple[int, JsonObject, dict[str, str]]:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0)).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        with self._guard:
            self.token_requests.append(form)
            if "code_verifier" in form:
                self.secrets.add(form["code_verifier"])
            if self.down:
                return 503, {}, {}
            if form.get("grant_type") != _ASSERTION and not self._is_authenticated(handler, form):
                # The error quotes the request, as some real providers do.
                return 401, {"error": "invalid_client", "error_description": f"{body} is not accepted"}, {}
            return self._grant(form)

    def _is_authenticated(self, handler: BaseHTTPRequestHandler, form: dict[str, str]) -> bool:
        basic = (handler.headers.get("Authorization") or "").removeprefix("Basic ")
        if basic:
            return base64.b64decode(basic).decode() == f"{self.client_id}:{self.client_secret}"
        return (form.get("client_id"), form.get("client_secret", "")) == (self.client_id, self.client_secret)

    def _grant(self, form: dict[str, str]) -> tuple[int, JsonObject, dict[str, str]]:
        match form.get("grant_type"):
            case "authorization_code":
                challenge = create_s256_code_challenge(form.get("code_verifier", ""))
                if self._codes.get(form.get("code", "")) != (challenge, form.get("redirect_uri", "")):
                    return self._refuse(form)
                del self._codes[form["code"]]
                return self._issue_tokens(refresh=True)
            case "refresh_token":
                if form.get("refresh_token") not in self._refresh:
                    return self._refuse(form)
                if self.rotates:
                    self._refresh.discard(form["refresh_token"])
                self.refreshes += 1
                return self._issue_tokens(refresh=self.rotates)
            case "client_credentials" | "urn:ietf:params:oauth:grant-type:jwt-bearer":
                return self._issue_tokens(refresh=False)
        return 400, {"error": "unsupported_grant_type"}, {}

    def _refuse(self, form: dict[str, str]) -> tuple[int, JsonObject, dict[str, str]]:
        return 400, {"error": "invalid_grant", "error_description": f"No good: {form}"}, {}

    def _issue_tokens(self, *, refresh: bool) -> tuple[int, JsonObject, dict[str, str]]:
        access = self._new_secret("access")
        self._access[access] = time.time() + self.lifetime_s
        answer: JsonObject = {"access_token": access, "token_type": "Bearer", "expires_in": self.lifetime_s}
        if refresh:
            answer["refresh_token"] = self._new_secret("refresh")
            self._refresh.add(answer["refresh_token"])
        return 200, answer, {}

    def _new_secret(self, kind: str) -> str:
        secret = f"{kind}-{secrets.token_hex(16)}"
        self.secrets.add(secret)
        return secret

    def _send(self, handler: BaseHTTPRequestHandler, response: tuple[int, JsonObject, dict[str, str]]) -> None:
        status, body, headers = response
        data = json.dumps(body).encode()
        handler.send_response(status)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(data))} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)


def main(port: int) -> None:
    """Serve until interrupted."""
    with FakeOAuth(client_id="waystation-example", client_secret="known-to-everyone", port=port) as provider:
        print(f"The calendar is at {provider.url}; end it with Ctrl-C.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PORT)
