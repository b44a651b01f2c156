"""Paths of the web application that several modules use.

All paths in the application are those below the path where it is mounted. Requests lose that path in `enter_root`, and
links get it from `root`.
"""

from contextvars import ContextVar
from urllib.parse import quote, urlsplit

from starlette.types import Scope

CALLS = "/approvals/"
LOGIN = "/login"
LOGOUT = "/logout"
STATIC = "/static"
CALLBACK = "/login/callback"
LINK = "/link"
API = "/api/"
COMPLETIONS = "/completions/"
HOOKS = "/hooks/"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource"
API_V1 = "/api/v1"
ENCODE = "/encode"
DECODE = "/decode"


_root: ContextVar[str] = ContextVar("root", default="")


def enter_root(scope: Scope, configured: str = "") -> Scope:
    """Return a request without the path where the application is mounted, and remember that path for `root`.

    A server or framework names it as `root_path`. Without one, it is the configured path, which a proxy may have
    removed from the request.
    """
    # Route by the raw path, because it contains the `/` in invocation IDs in escaped form.
    path = raw.decode("latin-1") if (raw := scope.get("raw_path")) else scope["path"]
    place = quote(scope.get("root_path", "").rstrip("/"), safe="/:@!$&'()*+,;=~") or configured
    _root.set(place)
    if path.startswith(f"{place}/") or path == place:
        path = path[len(place) :] or "/"
    return {**scope, "path": path, "root_path": ""}


def root() -> str:
    """Return the path where the application is mounted for the current request, or an empty string."""
    return _root.get()


def format_call_path(approval_id: str) -> str:
    """Return the URL path of a call's page."""
    return f"{CALLS}{quote(approval_id, safe='')}"


def sanitize_next(path: str) -> str:
    """Return `path` if it is a path on this server, or `/` if not: a login must not redirect to another site."""
    # Browsers treat a backslash as a slash, and ignore tabs and line breaks.
    if not (path.startswith("/") and path.isascii() and path.isprintable()) or "\\" in path:
        return "/"
    parts = urlsplit(path)
    return path if not parts.scheme and not parts.netloc and not path.startswith("//") else "/"
