"""Link the users of a chat to the people that the identity provider has confirmed.

A link needs both sides. The chat sends a URL to one user, where that person logs in and confirms which user is linked.
The page then shows a code, which the same user types in the chat. Someone who lures another person to their own URL
lacks the code, and someone who guesses codes has one attempt.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus

import structlog
from pydantic import BaseModel

from waystation.approvers import sees_tenant
from waystation.approvers.identity.admission import Admission
from waystation.core.approval import Verified
from waystation.core.errors import NotAllowed
from waystation.interfaces.chat.chat_store import Account, ChatStore
from waystation.web.http_responses import RequestRefused
from waystation.web.logins import Login

log = structlog.get_logger("waystation.interfaces")

LINK_S = 600.0
"""How long a person may take to link an account."""
ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
CODE_CHARS = 8
USED = "This link was already used, or is older than 10 minutes. Answer a call in the chat to get a new one."
ACCOUNT, TICKET, CODE = "account", "ticket", "code"
DAY_S = 86_400.0


class NotLinked(NotAllowed):
    """The user of the chat has no linked account, or the account has to be linked again.

    Click the button *Log in* of the message, and finish both steps within 10 minutes.
    """


class ExpectedCode(BaseModel):
    """The code that a user has to type, and the account that it links."""

    code: str
    """The digest of the code."""
    account: Account


class AccountLinks:
    """Links accounts, and identifies the users of a chat."""

    def __init__(
        self, store: ChatStore, admission: Admission, *, days: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._admission, self._days, self._clock = store, admission, days, clock

    async def begin(self, account: Account) -> str:
        """Return a ticket, with which the person behind a user of the chat can log in once, within `LINK_S`."""
        ticket = secrets.token_urlsafe(32)
        await self._store.put(TICKET, _digest(ticket), account, until=self._clock() + LINK_S)
        return ticket

    async def read(self, ticket: str) -> Account:
        """Return the user that a ticket is for.

        Raises:
            RequestRefused: The ticket was used, has expired or does not exist.
        """
        account = await self._store.read(TICKET, _digest(ticket), Account)
        if account is None:
            raise RequestRefused(HTTPStatus.GONE, "LinkUsed", USED)
        return account

    async def confirm(self, ticket: str, login: Login) -> tuple[Account, str]:
        """Use a ticket. Return the account that it will link, and the code that the user has to type in the chat.

        Raises:
            NotAllowed: No provider has confirmed who the person is.
            RequestRefused: The ticket was used, has expired or does not exist.
        """
        who = login.verified
        if who is None or not login.browser:
            raise NotAllowed("Only a person who has logged in through the identity provider can link an account.")
        account = await self._store.take(TICKET, _digest(ticket), Account)
        if account is None:
            raise RequestRefused(HTTPStatus.GONE, "LinkUsed", USED)
        confirmed = {name: getattr(who, name) for name in ("subject", "roles", "issuer", "tenant")}
        confirmed |= {"name": login.name, "claims": dict(login.claims)}
        account = account.model_copy(update={**confirmed, "until": self._clock() + self._days * DAY_S})
        code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARS))
        expected = ExpectedCode(code=_digest(code), account=account)
        await self._store.put(CODE, account.id, expected, until=self._clock() + LINK_S)
        return account, code

    async def finish(self, user: Account, code: str) -> Account:
        """Link the user who typed a code. Each code can be tried once.

        Raises:
            NotLinked: The code is wrong, was tried before or has expired.
        """
        expected = await self._store.take(CODE, user.id, ExpectedCode)
        typed = _digest("".join(code.upper().split()).replace("-", ""))
        if expected is None or not hmac.compare_digest(typed, expected.code):
            raise NotLinked(
                "The code is wrong, was tried before, or is older than 10 minutes. Link your account again."
            )
        account = expected.account
        await self._store.put(ACCOUNT, account.id, account, until=account.until)
        log.info("account.linked", user=account.id, subject=account.subject, issuer=account.issuer)
        return account

    async def identify(self, user: Account) -> Login:
        """Return the person behind a user of the chat, with the roles that the identity file grants now.

        Raises:
            NotLinked: The user has no linked account, or the link has expired.
            AuthorizationFailed: The identity file no longer admits the person.
        """
        account = await self._store.read(ACCOUNT, user.id, Account)
        if account is None or account.issuer != self._admission.issuer:
            raise NotLinked("Link your account first, so that your answers count as yours.")
        names = {name: getattr(account, name) for name in ("subject", "roles", "issuer", "tenant")}
        who = Verified(**names, kind="chat")
        return Login(account.name, verified=who, roles=self._admission.check(account.claims, who))

    async def list_accounts(self, login: Login) -> list[Account]:
        """Return the accounts that a person may unlink: their own or, for operators, all of their tenant."""
        accounts = await self._store.find_all(ACCOUNT, Account)
        is_operator = "operator" in login.roles
        return [
            account
            for account in accounts
            if _is_own(login, account) or (is_operator and sees_tenant(login, account.tenant))
        ]

    async def unlink(self, id: str, login: Login) -> None:
        """Remove a link that a person may remove, if there is such a link."""
        if id in [account.id for account in await self.list_accounts(login)]:
            await self._store.take(ACCOUNT, id, Account)
            log.info("account.unlinked", user=id, by=login.subject)


def _is_own(login: Login, account: Account) -> bool:
    who = login.verified
    return who is not None and (who.issuer, who.subject) == (account.issuer, account.subject)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
