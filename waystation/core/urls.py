"""Addresses in the net."""

from urllib.parse import urlsplit


def trusted(url: str) -> bool:
    """Whether what goes to, or comes from, an address is seen by its owner only: over TLS, or on this very machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    return parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")
