"""Link the users of a chat to the people that the identity provider has confirmed.

A link needs both sides. The chat sends a URL to one user, where that person logs in and confirms which user is linked.
The page then shows a code, which the same user types in the chat. Someone who lures another person to their own URL
lacks the code, and someone who guesses codes has one attempt. A user has at most one unfinished link: the newest.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import structlog
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from waystation.approvers import sees_tenant
from waystation.approvers.identity.admission import Admission
from waystation.core.approval import Verified
from waystation.core.errors import NotAllowed
from waystation.interfaces.chat.chat_store import Account, ChatStore
from waystation.web.forms import read_form
from waystation.web.http_responses import RequestRefused, redirect, render_page
from waystation.web.logins import Login
from waystation.web.route_table import RouteRow

log = structlog.get_logger("waystation.interfaces")

LINK_S = 600.0
"""How long each step of linking an account may take."""
LINKED_S = 30 * 86_400.0
"""How long a linked account may answer before the person has to log in again."""
ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
CODE_CHARS = 8
USED = (
    "This link was already used, was replaced by a newer one, or is older than 10 minutes. Use the newest message in "
    "the chat, or answer a call there to get another one."
)
ACCOUNT, LINK = "account", "link"
ACCOUNTS = "/accounts"
"""The path of the pages."""
PERSON = ("subject", "roles", "issuer", "tenant")
"""The fields of the verified person that an account stores."""


class NotLinked(NotAllowed):
    """The user of the chat has no linked account, or the account has to be linked again.

    Click the button *Log in* of the message, and finish both steps within 10 minutes.
    """


class UnfinishedLink(BaseModel):
    """A link that waits for the login or, if the account has a subject, for the code."""

    account: Account
    secret: str
    """The digest of the secret in the URL, or of the code."""


class AccountLinks:
    """Links accounts, and identifies the users of a chat."""

    def __init__(self, store: ChatStore, admission: Admission, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._admission, self._clock = store, admission, clock

    async def begin(self, account: Account) -> str:
        """Return a ticket, with which the person behind a user of the chat can log in once, within `LINK_S`."""
        secret = secrets.token_urlsafe(32)
        await self._put(account, secret)
        return f"{account.id}.{secret}"

    async def read(self, ticket: str) -> Account:
        """Return the user that a ticket is for.

        Raises:
            RequestRefused: The ticket was used, has expired or does not exist.
        """
        return await self._find(ticket, self._store.read)

    async def confirm(self, ticket: str, login: Login) -> tuple[Account, str]:
        """Use a ticket. Return the account that it will link, and the code that the user has to type in the chat.

        Raises:
            NotAllowed: No provider has confirmed who the person is.
            RequestRefused: The ticket was used, has expired or does not exist.
        """
        who = login.verified
        if who is None or not login.browser:
            raise NotAllowed("Only a person who has logged in through the identity provider can link an account.")
        await self.read(ticket)  # a wrong ticket does not use up the right one
        account = await self._find(ticket, self._store.take)
        confirmed = {name: getattr(who, name) for name in PERSON}
        confirmed |= {"name": login.name, "claims": dict(login.claims), "until": self._clock() + LINKED_S}
        account = account.model_copy(update=confirmed)
        code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARS))
        await self._put(account, code)
        return account, code

    async def finish(self, user: Account, code: str) -> Account:
        """Link the user who typed a code. Each code can be tried once.

        Raises:
            NotLinked: The code is wrong, was tried before or has expired.
        """
        link = await self._store.take(LINK, user.id, UnfinishedLink)
        typed = "".join(code.upper().split()).replace("-", "")
        if link is None or not link.account.subject or not _matches(typed, link):
            raise NotLinked(
                "The code is wrong, was tried before, or is older than 10 minutes. Link your account again."
            )
        account = link.account
        await self._store.put(ACCOUNT, account.id, account, until=account.until)
        log.info("account.linked", user=account.id, subject=account.subject, issuer=account.issuer)
        return account

    async def _put(self, account: Account, secret: str) -> None:
        link = UnfinishedLink(account=account, secret=_digest(secret))
        await self._store.put(LINK, account.id, link, until=self._clock() + LINK_S)

    async def _find(self, ticket: str, get: Callable[..., Awaitable[UnfinishedLink | None]]) -> Account:
        id, _, secret = ticket.partition(".")
        link = await get(LINK, id, UnfinishedLink)
        if link is None or link.account.subject or not _matches(secret, link):
            raise RequestRefused(HTTPStatus.GONE, "LinkUsed", USED)
        return link.account

    async def identify(self, user: Account) -> Login:
        """Return the person behind a user of the chat, with the roles that the identity file grants now.

        Raises:
            NotLinked: The user has no linked account, or the link has expired.
            AuthorizationFailed: The identity file no longer admits the person.
        """
        account = await self._store.read(ACCOUNT, user.id, Account)
        if account is None or account.issuer != self._admission.issuer:
            raise NotLinked("Link your account first, so that your answers count as yours.")
        who = Verified(**{name: getattr(account, name) for name in PERSON}, kind="chat")
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


def _matches(secret: str, link: UnfinishedLink) -> bool:
    return hmac.compare_digest(_digest(secret), link.secret)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class AccountPages:
    """The pages. Nothing changes before the person sends a form."""

    def __init__(self, links: AccountLinks, *, chat: str) -> None:
        """Create the pages. `chat` is the name of the chat, as people know it."""
        self._links, self._chat = links, chat

    def make_rows(self) -> list[RouteRow]:
        """Return the rows of the route table."""
        return [
            RouteRow("GET", "/", self.index, "login"),
            RouteRow("POST", "/unlink", self.unlink, "login"),
            RouteRow("GET", f"{ACCOUNTS}/{{ticket}}", self.ask, "login"),
            RouteRow("POST", f"{ACCOUNTS}/{{ticket}}", self.confirm, "login"),
        ]

    async def index(self, request: Request) -> Response:
        """List the accounts that the person may unlink."""
        return self._render(request, accounts=await self._links.list_accounts(request.state.login))

    async def ask(self, request: Request) -> Response:
        """Show the user of the chat and the person, and ask whether to link them."""
        return self._render(request, account=await self._links.read(request.path_params["ticket"]))

    async def confirm(self, request: Request) -> Response:
        """Show the code that the user has to type in the chat."""
        await read_form(request)
        account, code = await self._links.confirm(request.path_params["ticket"], request.state.login)
        return self._render(request, account=account, one_time_code=code)

    async def unlink(self, request: Request) -> Response:
        """Remove a link."""
        form = await read_form(request)
        await self._links.unlink(form.get("id", ""), request.state.login)
        return redirect("/")

    def _render(self, request: Request, **content: Any) -> Response:
        empty = {"accounts": (), "account": None, "one_time_code": ""}
        return render_page("chat_accounts.html", login=request.state.login, chat=self._chat, **{**empty, **content})
