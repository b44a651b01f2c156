"""Limits of a web server."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on what one web server accepts, remembers and shows. All of it is in memory."""

    body_bytes: int = 3_500_000
    """Size of a form. The default fits the largest answer with every byte escaped."""
    calls_per_page: int = 50
    """Calls on a page of the inbox. The calls of one invocation stay together, so there may be a few more."""
    calls_per_answer: int = 50
    """Calls answered with one click."""
    streams: int = 200
    """Open event streams. Each holds the log of its invocation."""
    logins: int = 100
    """Logged-in browsers. One more logs out the browser that was idle longest."""
    visits: int = 1_000
    """Calls opened by a link. They have a limit of their own, so that opening many logs nobody out."""
    window_s: float = 60.0
    """Window in which attempts are counted."""
    login_attempts: int = 30
    """Login attempts per address."""
    posts: int = 120
    """Forms per login."""
    posts_of_address: int = 600
    """Forms per address."""
    counted: int = 10_000
    """Addresses and logins with a counter."""
