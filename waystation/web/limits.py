"""Limits of a web server."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much one web server takes, keeps and shows. All of it is in memory, so all of it is bounded."""

    body_bytes: int = 3_500_000
    """Of a form: an answer of the largest size, with each of its bytes escaped."""
    calls_per_page: int = 50
    """In the inbox; the calls of one invocation are never parted, so there may be a few more."""
    calls_per_answer: int = 50
    """Answered with one click."""
    streams: int = 200
    """At a time; each holds the log of its invocation."""
    logins: int = 100
    """Browsers that are logged in at a time; one more logs out the one that was idle for longest."""
    visits: int = 1_000
    """Calls that are open by a link at a time. They are counted apart: opening many logs nobody out."""
    window_s: float = 60.0
    """The time for which attempts are counted."""
    login_attempts: int = 30
    posts: int = 120
    """Forms of one login."""
    posts_of_address: int = 600
    """Forms from one address."""
    counted: int = 10_000
    """Addresses and logins whose attempts are counted at a time."""
