"""The logins of the web application, which this process keeps in memory, and the forms that each may send."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachetools import FIFOCache, TLRUCache

from waystation.approvers import Person

CLOCK_CHECK_S = 60.0
"""How often a wait for a login's expiry reads the clock again, which timers do not follow if it is set or suspended."""
MAX_FORMS = 500
"""Maximum number of forms to remember per login, whether sent or not. The oldest forms are dropped first."""


@dataclass(eq=False)
class FormUse:
    """Tracks whether a form, which can be sent only once, has been sent."""

    sent: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, eq=False)
class Login(Person):
    """The login of a person with a browser, or of a program with the token."""

    until: float = float("inf")
    """The time when the login expires, in seconds since 1970, or infinity if it does not expire."""
    browser: bool = True
    """Whether this login may send forms."""
    answers: bool = True
    """Whether this login may answer calls, as far as its other roles allow."""
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """A token that only this login's forms contain."""
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when the person logs out, or when newer logins displace this one."""
    logout_url: str | None = None
    """Where a person that the host has logged in logs out, or an empty string. None if that is here."""
    is_admitted: Callable[[], bool] = field(default=lambda: True, repr=False)
    """Returns whether the person may still use the server. It is asked from time to time."""
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For a login through the provider: the claims that decided whether the person is admitted."""
    _seen: FIFOCache[str, bool] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)
    """The calls that this person has viewed, by approval ID."""
    _forms: FIFOCache[tuple[str, str], FormUse] = field(default_factory=lambda: FIFOCache(MAX_FORMS), repr=False)

    @property
    def owner(self) -> str:
        """The key for limits, which identifies the person or, if the person is not verified, only this login."""
        return f"{self.verified.issuer} {self.verified.subject}" if self.verified else self.csrf

    async def wait_until_over(self) -> None:
        """Wait until the login has ended or expired, or the person is no longer admitted."""
        while not self.over.is_set() and (rest_s := self.until - time.time()) > 0 and self.is_admitted():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(rest_s, CLOCK_CHECK_S)):
                    await self.over.wait()

    def offer_form(self, about: str) -> str:
        """Return a new nonce for a form about `about`. A form with this nonce can be sent only once."""
        nonce = secrets.token_urlsafe(18)
        self._forms[about, nonce] = FormUse()
        return nonce

    def find_form(self, nonce: str, about: str) -> FormUse | None:
        """Return the form about `about` with a nonce, or None if no such form was offered or it has been dropped."""
        return self._forms.get((about, nonce))

    def is_first_view(self, approval_id: str) -> bool:
        """Record that this person has viewed a call, and return whether this was the first time in this login."""
        is_first = approval_id not in self._seen
        self._seen[approval_id] = True
        return is_first


class _LoginCache(TLRUCache[str, Login]):
    """Logins by cookie ID. A login that is removed is over."""

    def __delitem__(self, id: str) -> None:
        if login := self.get(id):
            login.over.set()
        super().__delitem__(id)


def make_login_cache(maxsize: int, clock: Callable[[], float] = time.time) -> TLRUCache[str, Login]:
    """Return a cache of logins by cookie ID. Each entry expires when its login ends."""
    return _LoginCache(maxsize, lambda _id, login, _now: login.until, timer=clock)
