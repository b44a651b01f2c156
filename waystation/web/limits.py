"""Limits that protect a web server from too many requests and too much data."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on what a web server accepts, remembers in memory, and shows."""

    body_bytes: int = 3_500_000
    """Maximum size of a form in bytes. The default is enough for the largest answer with every byte escaped."""
    body_s: float = 30.0
    """How long the body of a request may take, in seconds."""
    headers_s: float = 10.0
    """How long the headers of a request may take, in seconds."""
    connections: int = 600
    """Maximum number of connections. See `waystation.web.connection_limits` for what happens to more."""
    connections_per_address: int = 100
    """Maximum number of connections per address. Behind a proxy, the proxy has to limit them."""
    calls_per_page: int = 50
    """Number of calls on a page of the inbox. A page may have a few more, to keep an invocation's calls together."""
    calls_per_answer: int = 50
    """Maximum number of calls that can be answered with one click."""
    streams: int = 200
    """Maximum number of open event streams. Each stream keeps the log of its invocation in memory."""
    streams_per_login: int = 20
    """Maximum number of open event streams per person, or per login if the person is not verified."""
    program_streams: int = 100
    """Maximum number of open event streams of all programs that use the access token."""
    visibility_per_s: int = 10
    """Maximum number of requests to Temporal's visibility per second, for all pages together."""
    logins: int = 100
    """Maximum number of logged-in browsers. Another login logs out the browser that has been idle longest."""
    visits: int = 1_000
    """Maximum number of logins from links to calls. Links have a separate limit so that they do not log anyone out."""
    window_s: float = 60.0
    """Length of the time window for the limits on attempts and forms, in seconds."""
    login_attempts: int = 30
    """Maximum number of login attempts per address and window."""
    posts: int = 120
    """Maximum number of forms per login and window."""
    posts_of_address: int = 600
    """Maximum number of forms per address and window."""
    counted: int = 10_000
    """Maximum number of addresses or logins that each rate limit counts. The least recently used are dropped first."""
