"""Who is logged in, what a login may send once only, and how often it may knock. All of it bounded, and in memory."""

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from waystation.core.policy import ROLE, Verified

MAX_LOGINS = 100
"""Browsers that are logged in at a time; one more logs out the one that came first."""
MAX_FORMS = 500
"""Forms of a login that may still be sent, or were sent and are remembered; the oldest go first."""
MAX_COUNTED = 10_000
"""Addresses and logins that are counted at a time; who was not heard of for longest is forgotten."""


@dataclass(eq=False)
class Sending:
    """What became of a form that may be sent once."""

    about: str
    """What it was made for; it is good for nothing else."""
    taken: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Login:
    """A person at a browser, or a program with the token."""

    person: str
    """Recorded with answers as a claim, unless a gateway vouches for it."""
    verified: Verified | None = None
    """Who an identity provider says it is."""
    until: float = float("inf")
    """Seconds since 1970."""
    browser: bool = True
    """Whether it may send forms."""
    only: str = ""
    """The one call that it sees, when it came by a link."""
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """In each of its forms, and in nobody else's."""
    seen: OrderedDict[str, None] = field(default_factory=OrderedDict, repr=False)
    """Calls of which it is recorded that this person looked at them."""
    _sendings: OrderedDict[str, Sending] = field(default_factory=OrderedDict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """What policies and claims may call this person, roles included."""
        if self.verified is None:
            return (self.person,)
        return self.verified.subject, *(f"{ROLE}{role}" for role in self.verified.roles)

    def offer(self, about: str) -> str:
        """Return what makes one form usable once."""
        nonce = secrets.token_urlsafe(18)
        self._sendings[nonce] = Sending(about)
        while len(self._sendings) > MAX_FORMS:
            self._sendings.popitem(last=False)
        return nonce

    def sees_first(self, approval_id: str) -> bool:
        """Whether this person has not been noted before as having looked at a call; from now on, so."""
        first = approval_id not in self.seen
        self.seen[approval_id] = None
        while len(self.seen) > MAX_FORMS:
            self.seen.popitem(last=False)
        return first

    def sending(self, nonce: str, about: str) -> Sending | None:
        """Return the form with that nonce; None when it was never offered for this, or is forgotten."""
        found = self._sendings.get(nonce)
        return found if found is not None and found.about == about else None

    def owns(self, csrf: str) -> bool:
        """Whether a form is from one of this login's own pages."""
        return same(csrf, self.csrf)


class Logins:
    """Everybody who is logged in, by what their cookie says."""

    def __init__(self, *, most: int = MAX_LOGINS, clock: Callable[[], float] = time.time) -> None:
        self._held: OrderedDict[str, Login] = OrderedDict()
        self._most, self._clock = most, clock

    def add(self, login: Login) -> str:
        """Return the cookie of a new login."""
        cookie = secrets.token_urlsafe(32)
        self._held[cookie] = login
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        return cookie

    def find(self, cookie: str) -> Login | None:
        """Return whose cookie it is."""
        login = self._held.get(cookie)
        if login is not None and login.until <= self._clock():
            self.end(cookie)
            return None
        return login

    def end(self, cookie: str) -> None:
        """Log out."""
        self._held.pop(cookie, None)


class Rate:
    """How often each of many may do something: a bucket for each, which fills again with time."""

    def __init__(self, times: int, *, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._per_s, self._clock = float(times), per_s, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, who: str) -> float:
        """Count one attempt; return 0 when it is allowed, else after how many seconds another is."""
        now = self._clock()
        left, since = self._left.pop(who, (self._times, now))
        left = min(self._times, left + (now - since) * self._times / self._per_s)
        allowed = left >= 1
        self._left[who] = (left - 1 if allowed else left, now)
        while len(self._left) > MAX_COUNTED:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) * self._per_s / self._times


def same(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
