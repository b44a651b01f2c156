"""The web application in tests: an HTTP client that is logged in as a person, and that can send forms."""

import asyncio
import html
import re
import time
from collections.abc import Collection

import httpx2
from starlette.types import Scope

from waystation.approvers import ROLES, Gatekeeper, Role
from waystation.core.actions import Action
from waystation.testing.environment import AgentEnvironment
from waystation.testing.people import VerifiedPerson
from waystation.testing.time_skipping import POLL_S, SETTLE_LIMIT_S
from waystation.web.access import Access
from waystation.web.json_api import CSRF_HEADER
from waystation.web.logins import Login
from waystation.web.paths import format_call_path
from waystation.web.server import create_app
from waystation.web.web_settings import WebSettings

_HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


class WebClient(httpx2.AsyncClient):
    """A client of the web application of `waystation web`, which it runs without a port.

    All requests are those of one logged-in person. Use it in an `async with` block.
    """

    def __init__(
        self, env: AgentEnvironment, person: VerifiedPerson | None = None, *, grant: Collection[Role] = ()
    ) -> None:
        """Log in.

        Args:
            env: The environment whose invocations are shown.
            person: The person. By default, a person without a verified identity, who has all roles of the application.
            grant: The roles that the application grants to the person, as the section `[oidc.grant]` of an identity
                file does. Without any, people see their own invocations, and the calls that they may answer.

        Raises:
            ValueError: There is no such role.
        """
        if unknown := set(grant) - ROLES:
            raise ValueError(f"{min(unknown)!r} is not a role of the application. Use {', '.join(sorted(ROLES))}.")
        if person is None:
            login, gatekeeper = Login("person"), Gatekeeper(interface="web")
        else:
            login = Login(person.subject, verified=person.verified, roles=frozenset(grant))
            gatekeeper = person.gatekeeper
        settings = WebSettings(artifacts=env.services.artifacts or env.store)
        app = create_app(env.client, settings, _LoggedIn(login, gatekeeper))
        self.csrf = login.csrf
        """The value of the hidden field `csrf` that every form of the application has."""
        super().__init__(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://127.0.0.1",
            headers={CSRF_HEADER: self.csrf},
            timeout=SETTLE_LIMIT_S,
            follow_redirects=True,
        )

    async def see(self, path: str, text: str) -> httpx2.Response:
        """Open a page until it contains a text, and return it. Lists show new calls only after a moment.

        Raises:
            AssertionError: The page does not contain the text within half a minute.
        """
        ends = time.monotonic() + SETTLE_LIMIT_S
        while text not in (page := await self.get(path)).text:
            assert time.monotonic() < ends, f"{path} ({page.status_code}) does not show {text!r}:\n{page.text}"
            await asyncio.sleep(POLL_S)
        return page

    async def answer(self, approval_id: str, action: Action, **fields: str) -> httpx2.Response:
        """Open the page of a call, send its form, and return the page that follows, also if it is a refusal.

        Args:
            approval_id: The call.
            action: The button that the person presses.
            fields: What the person enters, such as `comment`, or `args` and `response` as JSON.

        Raises:
            LookupError: The page offers no form to this person. The message contains the page.
        """
        path = format_call_path(approval_id)
        page = await self.get(path)
        hidden = {name: html.unescape(value) for name, value in _HIDDEN.findall(page.text)}
        if "nonce" not in hidden:
            raise LookupError(f"{path} ({page.status_code}) offers no form to this person:\n{page.text}")
        return await self.post(path, data={**hidden, "action": action, **fields})


class _LoggedIn(Access):
    """Access for one person, who is always logged in."""

    def __init__(self, login: Login, gatekeeper: Gatekeeper) -> None:
        super().__init__(announce=lambda _link: None, gatekeeper=gatekeeper)
        self._login = login

    async def find_login(self, scope: Scope, *, with_cookies: bool = True, with_tokens: bool = True) -> Login:
        return self._login
