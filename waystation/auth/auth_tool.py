"""What a tool asks for: a scheme, the client it comes with, and the key under which the credential is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, model_validator

from waystation.auth.auth_credential import AuthCredential, CredentialPart
from waystation.auth.auth_schemes import AuthScheme
from waystation.core import JsonObject, named_secret

_OF_ONE_LOGIN = ("auth_uri", "state", "expires_at", "expires_in", "redirect_uri")


class AuthConfig(CredentialPart):
    """What a tool needs a credential for. Source: adk-semantics 11.1."""

    auth_scheme: AuthScheme
    raw_auth_credential: AuthCredential | None = None
    """What the tool brings itself: an OAuth client, a service account, or a credential that is complete."""
    exchanged_auth_credential: AuthCredential | None = None
    """What the user gave, or where the user logs in."""
    credential_key: str | None = None
    """Under which the credential is kept, for each user. By default derived from scheme and client, without any
    secret; name one when two services have the same scheme, such as a key in the same header."""

    @model_validator(mode="after")
    def _name_key(self) -> AuthConfig:
        if not self.credential_key:
            # Not by assignment, which would validate, and so come here, again.
            self.__dict__["credential_key"] = self._given_key() or self._derived_key()
        return self

    def _given_key(self) -> str | None:
        for holder in (self.raw_auth_credential, self.auth_scheme):
            for name in ("credential_key", "credentialKey"):
                value = ((holder and holder.model_extra) or {}).get(name)
                if isinstance(value, str) and value:
                    return str(value)
        return None

    def _derived_key(self) -> str:
        scheme = self.auth_scheme
        kind = getattr(scheme.type_, "value", scheme.type_)
        # As in ADK, but for secrets, which do not enter: the key stands in histories, where a digest of a short
        # password could be tried out; and a client whose secret was renewed is the same client.
        given, client = self.raw_auth_credential, ""
        if given is not None:
            client = f"{given.auth_type.value}_{_digest(given, {'oauth2': set(_OF_ONE_LOGIN)})}"
        return f"adk_{kind}_{_digest(scheme)}_{client}"

    @property
    def key(self) -> str:
        """The credential key, which is always set."""
        return self.credential_key or ""

    def redacted(self) -> JsonObject:
        """Return the JSON for events: what a client needs to obtain the credential, and no secret."""
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        written["authScheme"] = _open_fields(written["authScheme"])
        return written


def _digest(model: BaseModel, exclude: Mapping[str, Any] | None = None) -> str:
    """Return ADK's digest of a model, without fields that its class does not have."""
    excluded = {**dict.fromkeys(model.model_extra or (), True), **(exclude or {})}
    content = model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=excluded)
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _open_fields(value: Any) -> Any:
    """Return a scheme without fields that are named like secrets; an author may have put anything there."""
    if isinstance(value, Mapping):
        return {
            name: item if name == "scopes" else _open_fields(item)
            for name, item in value.items()
            if not (isinstance(item, str) and named_secret(name))
        }
    return [_open_fields(item) for item in value] if isinstance(value, list) else value
