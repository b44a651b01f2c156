"""Obtain the credentials that tools need, and add them to HTTP requests."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog
from pydantic import ValidationError

from waystation import auth
from waystation.core.errors import InvalidTool
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject
from waystation.tools import ReadonlyContext, ToolContext, invoke, validation_mistakes

log = structlog.get_logger(__name__)

PENDING = "Pending User Authorization."
"""The same string as in ADK."""


class ToolCredential:
    """One tool's credential, and the response that the model receives until the user has provided it."""

    def __init__(
        self, tool: str, auth_config: auth.AuthConfig | JsonObject | None, response: JsonObject | str | None
    ) -> None:
        """Validate `auth_config`.

        Raises:
            InvalidTool: The configuration can never yield a credential.
        """
        self._response = response or PENDING
        self._manager: auth.CredentialManager | None = None
        if auth_config is None:
            log.warning(
                "authentication.missing", tool=tool, problem="no auth_config; the tool runs without a credential"
            )
            return
        try:
            config = auth.AuthConfig.of(auth_config)
            if config is None:
                raise InvalidTool(tool, f"`auth_config` is {with_article(auth_config)}; use an AuthConfig.")
            self._manager = auth.CredentialManager(config)
        except ValueError as error:
            raise InvalidTool(tool, str(error)) from None

    async def use(self, context: ToolContext, run: Callable[[auth.AuthCredential | None], Awaitable[Any]]) -> Any:
        """Call `run` with the credential, or with None if the tool has no `auth_config`.

        If the credential is missing, ask the user for it and return the response for the model instead.
        """
        credential = None if self._manager is None else await _obtain(self._manager, context)
        return self._response if self._manager and credential is None else await run(credential)


async def _obtain(
    manager: auth.CredentialManager, context: ToolContext, *, ask: bool = True
) -> auth.AuthCredential | None:
    """Return the credential. If it is missing, ask the user for it (unless `ask` is False) and return None."""
    context.lacks_credential.set()
    credential = context.note_credential(await manager.get_auth_credential(context))
    if credential is None and ask:
        await manager.request_credential(context)
    context.lacks_credential.clear()
    return credential


@dataclass(frozen=True, kw_only=True, slots=True)
class Authorization:
    """Secret headers, query parameters and cookies to send with a request. Never displayed or logged."""

    headers: dict[str, str] = field(default_factory=dict, repr=False)
    query: dict[str, str] = field(default_factory=dict, repr=False)
    cookies: dict[str, str] = field(default_factory=dict, repr=False)


NO_AUTHORIZATION = Authorization()


async def authorize(
    tool: str, scheme: Any, credential: Any, credential_key: str | None, context: ReadonlyContext | None, *, ask: bool
) -> Authorization | None:
    """Return the authorization for a request in this context, which is empty if `scheme` is None.

    If `ask` is true, `context` must belong to a tool call. If the credential is missing, ask the user for it and
    return None. If `ask` is false, the request is sent with whatever credentials are available.

    Raises:
        InvalidTool: The scheme or the credential is invalid.
        AuthorizationFailed: A provider did not return a token.
    """
    if scheme is None:
        return NO_AUTHORIZATION
    manager, config = _create_manager(tool, scheme, credential, credential_key)
    if not isinstance(context, ToolContext):
        return _create_authorization(config.auth_scheme, config.raw_auth_credential)
    obtained = await _obtain(manager, context, ask=ask)
    return None if obtained is None and ask else _create_authorization(config.auth_scheme, obtained)


async def call_header_provider(provider: Callable[[ReadonlyContext], Any], context: ReadonlyContext) -> dict[str, str]:
    """Call a user-supplied `header_provider`, which may be sync or async, and return its headers."""
    headers: dict[str, str] | None = await invoke(provider, inspect.signature(provider).bind(context))
    return headers or {}


def authentication_problems(scheme: Any, credential: Any, credential_key: str | None) -> Iterator[str]:
    """Yield the reasons why a configuration can never provide a credential."""
    if scheme is not None:
        try:
            _create_manager("", scheme, credential, credential_key)
        except InvalidTool as error:
            yield error.problem


def _create_manager(
    tool: str, scheme: Any, credential: Any, credential_key: str | None
) -> tuple[auth.CredentialManager, auth.AuthConfig]:
    settings = {"auth_scheme": scheme, "raw_auth_credential": credential, "credential_key": credential_key}
    try:
        config = auth.AuthConfig.model_validate(settings)
        return auth.CredentialManager(config), config
    except ValidationError as error:
        path, reason = validation_mistakes(error)[0]
        raise InvalidTool(tool, f"its authentication is invalid at `{path}`: {reason}.") from None
    except ValueError as error:
        raise InvalidTool(tool, f"its authentication cannot be used: {error}.") from None


def _create_authorization(scheme: auth.AuthScheme, credential: auth.AuthCredential | None) -> Authorization:
    """Return the headers, query parameters or cookies that send this credential.

    The result is empty if the credential is not usable yet. An OAuth 2 or OpenID Connect credential becomes usable
    when it has an access token.

    Raises:
        InvalidTool: The credential does not match the scheme.
    """
    if credential is None:
        return NO_AUTHORIZATION
    if credential.api_key:
        return _authorize_key(scheme, _reveal(credential.api_key))
    if credential.http is not None:
        return _authorize_http(credential.http)
    if credential.oauth2 is not None and credential.oauth2.access_token:
        return Authorization(headers={"Authorization": f"Bearer {_reveal(credential.oauth2.access_token)}"})
    return NO_AUTHORIZATION


def _authorize_key(scheme: auth.AuthScheme, key: str) -> Authorization:
    name = getattr(scheme, "name", None)
    if not name:
        raise InvalidTool(
            "authentication",
            "the API key scheme has no `name`; set it to the name of the header, query parameter or cookie.",
        )
    match getattr(scheme, "in_", None):
        case "header":
            return Authorization(headers={name: key})
        case "query":
            return Authorization(query={name: key})
        case "cookie":
            return Authorization(cookies={name: key})
        case place:
            raise InvalidTool(
                "authentication", f"an API key cannot be sent in {place!r}; use `header`, `query` or `cookie`."
            )


def _authorize_http(http: auth.HttpAuth) -> Authorization:
    headers = {name: _reveal(value) for name, value in (http.additional_headers or {}).items()}
    scheme, credentials = http.scheme.lower(), http.credentials
    if scheme == "basic" and credentials.username:
        pair = f"{credentials.username}:{_reveal(credentials.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif credentials.token:
        headers["Authorization"] = (
            f"{'Bearer' if scheme in ('', 'bearer') else http.scheme} {_reveal(credentials.token)}"
        )
    return Authorization(headers=headers)


def _reveal(secret: str) -> str:
    return str.__str__(secret)  # f-strings mask a Secret
