"""An OpenID provider for tests: `FakeOAuth` with discovery, published keys and signed id tokens.

with FakeOpenId() as provider:
    token = provider.token("dana", roles=["finance"])     # as an approver would have it
    ended_at = provider.log_in(auth_uri)                   # what a browser does
"""

import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from examples.calendar_login.provider import FakeOAuth
from waystation.core.payload import JsonObject


@dataclass(kw_only=True)
class FakeOpenId(FakeOAuth):
    """A provider whose word workers may take for who somebody is. Change the fields at any time."""

    audience: str = "waystation-test"
    """Of the tokens issued from now on."""
    subject: str = "dana@example.com"
    """Who logs in next."""
    roles: tuple[str, ...] = ("finance",)
    claims: JsonObject = field(default_factory=dict)
    """Further claims of the tokens issued from now on. A claim that is None is left out."""
    keys_down: bool = False
    """Whether its keys cannot be had."""
    issuer: str | None = None
    """The issuer that it claims; None for its own."""
    key_reads: int = 0
    """How often its keys were read."""
    nonce: str | None = None
    """The nonce in ID tokens; None for that of the login."""
    keys: list[ECKey | RSAKey] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._nonces: dict[str, str | None] = {}
        if not self.keys:
            self.rotate()

    def rotate(self) -> None:
        """Sign with a new key, and withdraw the others."""
        self.keys[:] = [ECKey.generate_key("P-256", {"use": "sig"}, auto_kid=True)]

    def token(self, subject: str | None = None, *, roles: object = None, **claims: Any) -> str:
        """Return a signed token; `claims` are further ones, or None to leave one out."""
        now = int(time.time())
        said = {
            "iss": self.issuer or self.url,
            "aud": self.audience,
            "sub": self.subject if subject is None else subject,
            "roles": self.roles if roles is None else roles,
            "iat": now,
            "exp": now + self.lifetime_s,
            **self.claims,
        } | claims
        return self.signed({name: value for name, value in said.items() if value is not None})

    def signed(self, claims: JsonObject, **header: Any) -> str:
        """Return these very claims, signed."""
        key = self.keys[0]
        algorithm = "ES256" if isinstance(key, ECKey) else "RS256"
        made = jwt.encode({"alg": algorithm, "kid": key.kid, **header}, claims, key, algorithms=[algorithm])
        self.secrets.add(made)
        return made

    def _get(self, handler: BaseHTTPRequestHandler) -> tuple[int, JsonObject, dict[str, str]]:
        match urlsplit(handler.path).path:
            case "/.well-known/openid-configuration":
                places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
                metadata = {
                    "issuer": self.issuer or self.url,
                    "id_token_signing_alg_values_supported": ["ES256", "RS256"],
                }
                return 200, metadata | {name: f"{self.url}/{path}" for name, path in places.items()}, {}
            case "/jwks":
                self.key_reads += 1
                published: JsonObject = dict(KeySet(list(self.keys)).as_dict(private=False))
                return (503, {}, {}) if self.keys_down else (200, published, {})
        return super()._get(handler)

    def _authorize(self, query: dict[str, str]) -> tuple[int, JsonObject, dict[str, str]]:
        status, body, headers = super()._authorize(query)
        ended = {name: values[0] for name, values in parse_qs(urlsplit(headers.get("Location", "")).query).items()}
        if "code" in ended:
            self._nonces[ended["code"]] = query.get("nonce")
        return status, body, headers

    def _grant(self, form: dict[str, str]) -> tuple[int, JsonObject, dict[str, str]]:
        status, body, headers = super()._grant(form)
        if status == 200 and form.get("grant_type") == "authorization_code":
            nonce = self.nonce or self._nonces.pop(form["code"], None)
            body = body | {"id_token": self.token(aud=self.client_id, nonce=nonce)}
        return status, body, headers
