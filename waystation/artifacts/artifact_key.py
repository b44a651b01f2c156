"""Which artifact is meant, and the references by which one artifact can stand for another."""

from __future__ import annotations

import re
from typing import NamedTuple

from waystation.core.errors import InputValidationError

USER_PREFIX = "user:"
_REFERENCE = "artifact://"
_REFERENCE_FORM = re.compile(
    r"artifact://apps/(?P<app>.+?)/users/(?P<user>.+?)(?:/sessions/(?P<session>.+?))?"
    r"/artifacts/(?P<name>.+)/versions/(?P<version>[0-9]{1,18})",
    re.DOTALL,
)


class Scope(NamedTuple):
    """Who shares artifacts: the sessions of a user, or the calls of one session."""

    app_name: str
    user_id: str
    session_id: str | None
    """None for what all sessions of the user share."""


class ArtifactKey(NamedTuple):
    """One artifact, whatever its versions."""

    scope: Scope
    filename: str
    """With the prefix `user:`, if it has one."""

    def uri(self, base: str, version: int) -> str:
        """Return ADK's address of a version below `base`, such as `memory:/`."""
        app, user, session = self.scope
        place = f"/sessions/{session}" if session is not None else ""
        return f"{base}/apps/{app}/users/{user}{place}/artifacts/{self.filename}/versions/{version}"


def key_of(app_name: str, user_id: str, filename: str, session_id: str | None) -> ArtifactKey:
    """Return which artifact a caller means.

    Raises:
        InputValidationError: The name belongs to a session and none is given, or a name is not valid Unicode.
    """
    scope = scope_of(app_name, user_id, None if filename.startswith(USER_PREFIX) else session_id)
    if scope.session_id is None and not filename.startswith(USER_PREFIX):
        # ADK's literal.
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    _check("filename", filename)
    return ArtifactKey(scope, filename)


def scope_of(app_name: str, user_id: str, session_id: str | None) -> Scope:
    """Return the scope of a session, or of all sessions of the user.

    Raises:
        InputValidationError: A name is not valid Unicode.
    """
    _check("app_name", app_name)
    _check("user_id", user_id)
    _check("session_id", session_id or "")
    return Scope(app_name, user_id, session_id)


def is_reference(uri: str | None) -> bool:
    """Whether file data with this URI stands for another artifact."""
    return bool(uri and uri.startswith(_REFERENCE))


def referenced(uri: str, scope: Scope) -> tuple[ArtifactKey, int]:
    """Return the artifact and version that a reference names, for a caller who may see `scope`.

    Raises:
        InputValidationError: It is not a reference, or leads to another user, app or session.
    """
    form = _REFERENCE_FORM.fullmatch(uri)
    if form is None:
        raise InputValidationError(f"Invalid artifact reference URI: {uri}")
    app, user, session, name, version = form.groups()
    if (app, user) != (scope.app_name, scope.user_id):
        raise InputValidationError("Artifact references must stay within the same app and user scope.")
    if session is not None and session != scope.session_id:
        raise InputValidationError("Session-scoped artifact references must stay within the same session scope.")
    return key_of(app, user, name, session), int(version)


def _check(field: str, name: str) -> None:
    if not isinstance(name, str):
        raise InputValidationError(f"{field} must be a string, not {type(name).__name__}.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputValidationError(f"{field} {name!a} is not valid Unicode: it has a lone surrogate.") from None
