"""What a credential adds to a request over HTTP.

Schemes and credentials are read by the names of their fields, so that ADK's own types and plain dictionaries do.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from waystation.agents.readonly_context import ReadonlyContext
from waystation.core.errors import InvalidTool

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, CredentialManager


@dataclass(frozen=True, kw_only=True, slots=True)
class Authorization:
    """What a request carries so that its sender is recognised. Secret: it is neither shown nor logged."""

    headers: dict[str, str] = field(default_factory=dict, repr=False)
    query: dict[str, str] = field(default_factory=dict, repr=False)
    cookies: dict[str, str] = field(default_factory=dict, repr=False)


NO_AUTHORIZATION = Authorization()


async def authorized(
    tool: str, scheme: Any, credential: Any, credential_key: str | None, context: ReadonlyContext | None, *, ask: bool
) -> Authorization | None:
    """Return what a request in this context carries; None when the user has been asked for the credential.

    With `ask` the context must be that of a tool call. Without it nobody is asked, and the request carries what is
    there.

    Raises:
        InvalidTool: The scheme or the credential is wrong.
        AuthorizationFailed: A provider gives no token.
    """
    from waystation.tools.tool_context import ToolContext

    manager, config = _managed(tool, scheme, credential, credential_key)
    if not isinstance(context, ToolContext):
        return authorization_of(config.auth_scheme, config.raw_auth_credential)
    found = await manager.get_auth_credential(context)
    if found is None:
        if not ask:
            return NO_AUTHORIZATION
        await manager.request_credential(context)
        return None
    context.note_credential(found)
    return authorization_of(config.auth_scheme, found)


def authentication_problem(scheme: Any, credential: Any, credential_key: str | None) -> str | None:
    """Return why a configuration can never give a credential, or None."""
    if scheme is None:
        return None
    try:
        _managed("", scheme, credential, credential_key)
    except InvalidTool as error:
        return error.problem
    return None


def _managed(
    tool: str, scheme: Any, credential: Any, credential_key: str | None
) -> "tuple[CredentialManager, AuthConfig]":
    from waystation.auth import AuthConfig, CredentialManager  # few tools need it, and it imports an OAuth library

    given = {"auth_scheme": scheme, "raw_auth_credential": credential, "credential_key": credential_key}
    try:
        config = AuthConfig.model_validate(given)
        return CredentialManager(config), config
    except ValidationError as error:
        # Not the whole report, which may quote the credential.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidTool(tool, f"its authentication is wrong at `{where}`: {first['msg']}.") from None
    except ValueError as error:
        raise InvalidTool(tool, f"its authentication cannot be used: {error}.") from None


def authorization_of(scheme: Any, credential: Any) -> Authorization:
    """Return what requests carry for this credential; nothing when there is none that can be used as it is.

    An OAuth 2 or OpenID Connect credential is usable once it has an access token.

    Raises:
        InvalidTool: The credential does not suit the scheme.
    """
    if credential is None:
        return Authorization()
    key = _text(credential, "api_key", "apiKey")
    if key is not None:
        return _of_key(scheme, key)
    http = _get(credential, "http")
    if http is not None:
        return _of_http(http)
    token = _text(_get(credential, "oauth2"), "access_token", "accessToken")
    return Authorization(headers={"Authorization": f"Bearer {token}"}) if token is not None else Authorization()


def _of_key(scheme: Any, key: str) -> Authorization:
    name = _text(scheme, "name")
    place = _text(scheme, "in_", "in")
    if name is None:
        raise InvalidTool("authentication", "an API key was given, but its scheme does not say under which `name`.")
    match place:
        case "header":
            return Authorization(headers={name: key})
        case "query":
            return Authorization(query={name: key})
        case "cookie":
            return Authorization(cookies={name: key})
    raise InvalidTool("authentication", f"an API key goes into a header, the query or a cookie, not into {place!r}.")


def _of_http(http: Any) -> Authorization:
    credentials = _get(http, "credentials")
    extra = _get(http, "additional_headers", "additionalHeaders") or {}
    headers = {str(name): str.__str__(value) for name, value in extra.items()}
    scheme = (_text(http, "scheme") or "").lower()
    token = _text(credentials, "token")
    user, password = _text(credentials, "username"), _text(credentials, "password")
    if scheme == "basic" and user is not None:
        pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    elif token is not None:
        headers["Authorization"] = f"{'Bearer' if scheme in ('', 'bearer') else _text(http, 'scheme')} {token}"
    return Authorization(headers=headers)


def _get(value: Any, *names: str) -> Any:
    for name in names:
        found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if found is not None:
            return found
    return None


def _text(value: Any, *names: str) -> str | None:
    found = _get(value, *names)
    found = getattr(found, "value", found)  # an enum
    # Exactly a str: a subclass that hides secrets shows only stars in f-strings.
    return str.__str__(found) if isinstance(found, str) and found else None
