"""Paths of the web application that several modules use."""

from urllib.parse import quote, urlsplit

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
