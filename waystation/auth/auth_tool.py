"""The configuration that describes which credential a tool needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, model_validator

from waystation.auth.auth_credential import AuthCredential, CredentialPart
from waystation.auth.auth_schemes import AuthScheme
from waystation.core.payload import JsonObject
from waystation.core.secrets import named_secret

_LOGIN_FIELDS = ("auth_uri", "state", "expires_at", "expires_in", "redirect_uri")


class AuthConfig(CredentialPart):
    """Describes the credential that a tool needs, as in ADK 2.13."""

    auth_scheme: AuthScheme
    raw_auth_credential: AuthCredential | None = None
    """The tool's part of the credential: an OAuth client, a service account, or a complete credential."""
    exchanged_auth_credential: AuthCredential | None = None
    """The user's credential. Before the login, it contains the URI where the user logs in."""
    credential_key: str | None = None
    """The key that the credential is stored under, separately for each user. By default, it is derived from the scheme
    and the client, without secrets. Set it to distinguish services that use the same scheme, such as API keys in
    headers of the same name.
    """

    @classmethod
    def of(cls, value: object) -> AuthConfig | None:
        """Return a configuration, which can be a dictionary with the same fields. Return None for any other value.

        Raises:
            ValidationError: The dictionary is not a configuration. The error does not contain its values.
        """
        return cls.model_validate(value) if isinstance(value, Mapping) else value if isinstance(value, cls) else None

    @model_validator(mode="after")
    def _name_key(self) -> AuthConfig:
        if not self.credential_key:
            # Write to __dict__, because an assignment would call this validator again.
            self.__dict__["credential_key"] = self._find_key() or self._derive_key()
        return self

    def _find_key(self) -> str | None:
        for holder in (self.raw_auth_credential, self.auth_scheme):
            for name in ("credential_key", "credentialKey"):
                value = ((holder and holder.model_extra) or {}).get(name)
                if isinstance(value, str) and value:
                    return str(value)
        return None

    def _derive_key(self) -> str:
        scheme = self.auth_scheme
        kind = getattr(scheme.type_, "value", scheme.type_)
        # As in ADK, but without secrets, because histories contain the key and a digest of a short password can be
        # guessed. This also keeps the key unchanged when a client's secret is renewed.
        raw, client = self.raw_auth_credential, ""
        if raw is not None:
            client = f"{raw.auth_type.value}_{_compute_digest(raw, {'oauth2': set(_LOGIN_FIELDS)})}"
        return f"adk_{kind}_{_compute_digest(scheme)}_{client}"

    @property
    def key(self) -> str:
        """The credential key, which is never empty."""
        return self.credential_key or ""

    def redacted(self) -> JsonObject:
        """Return the JSON for events, which has everything a client needs to obtain the credential, but no secrets."""
        content = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**content, "authScheme": _remove_secrets(content["authScheme"])}


def _compute_digest(model: BaseModel, exclude: Mapping[str, Any] | None = None) -> str:
    """Return the digest of a model as ADK computes it. Unknown fields are ignored."""
    excluded = {**dict.fromkeys(model.model_extra or (), True), **(exclude or {})}
    content = model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=excluded)
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove_secrets(value: Any) -> Any:
    """Return a scheme without text fields whose names suggest secrets. Schemes may have unknown fields with any
    content.
    """
    if isinstance(value, Mapping):
        return {
            name: item if name == "scopes" else _remove_secrets(item)
            for name, item in value.items()
            if not (isinstance(item, str) and named_secret(name))
        }
    return [_remove_secrets(item) for item in value] if isinstance(value, list) else value
