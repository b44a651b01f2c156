"""Handle the clicks of people in Slack, and serve the pages on which they link their accounts.

Slack signs each request, and Bolt verifies the signature and its age. The server acknowledges a request before it does
the work, because Slack waits for 3 s.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
from slack_bolt.adapter.starlette.async_handler import AsyncSlackRequestHandler
from slack_bolt.async_app import AsyncApp, AsyncBoltRequest
from slack_bolt.response import BoltResponse
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from waystation.approvers import Gatekeeper
from waystation.client import AgentClient
from waystation.core.payload import JsonObject
from waystation.interfaces.chat.account_links import ACCOUNTS, AccountLinks, AccountPages, NotLinked
from waystation.interfaces.chat.chat_answers import REFUSALS, ChatAnswers
from waystation.interfaces.chat.chat_store import Account, ChatStore
from waystation.interfaces.chat.message_board import ChatFailed, MessageBoard
from waystation.interfaces.slack import blocks
from waystation.interfaces.slack.slack_messenger import SlackMessenger
from waystation.interfaces.slack.slack_settings import SlackSettings
from waystation.web.access import Access
from waystation.web.forms import Form
from waystation.web.guard import FORM, JSON
from waystation.web.limits import Limits
from waystation.web.paths import HOOKS
from waystation.web.route_table import RouteRow, make_login_rows
from waystation.web.server import build_app
from waystation.web.web_services import WebServices
from waystation.web.web_settings import WebSettings

log = structlog.get_logger("waystation.interfaces")

LIMITS = Limits(body_bytes=1_000_000, posts_of_address=6_000)
"""All requests of Slack come from few addresses."""
REQUEST = "request"
PATH = f"{HOOKS}slack"
AGE_S = 600.0
"""How long requests are remembered. Slack's signatures are valid for 300 s."""


class SlackApp:
    """The answers of people in one Slack workspace."""

    def __init__(
        self, client: AgentClient, gatekeeper: Gatekeeper, settings: SlackSettings, web: WebSettings, url: str
    ) -> None:
        """Create the app. The gatekeeper must have a provider, and `url` is where people reach this server.

        Raises:
            InvalidConfiguration: A secret is missing.
        """
        assert gatekeeper.oidc is not None
        self._workspace, self._url = settings.workspace, url.rstrip("/")
        self._store = ChatStore(settings.place)
        slack = AsyncWebClient(settings.secret("bot_token"), base_url=settings.api, retry_handlers=[])
        self._messenger = SlackMessenger(slack, settings.inbox)
        services = WebServices.of(client, gatekeeper, web)
        self.links = AccountLinks(self._store, gatekeeper.oidc.admission)
        self.board = MessageBoard(
            services.client, self._store, self._messenger, channels=settings.channels, default=settings.default
        )
        self._answers = ChatAnswers(services.approvals.answers, self.links)
        self._bolt = AsyncApp(client=slack, signing_secret=settings.secret("signing_secret"))
        self._bolt.middleware(self._admit)
        self._bolt.action(re.compile(f"{blocks.ANSWER}:"))(self._click)
        self._bolt.action(blocks.MORE)(self._open_modal)
        self._bolt.action(blocks.CODE)(self._open_code_modal)
        self._bolt.action(re.compile(f"open|{blocks.LINK}"))(_acknowledge)
        self._bolt.view(blocks.ANSWER)(self._submit)
        self._bolt.view(blocks.CODE)(self._link)
        self._handler = AsyncSlackRequestHandler(self._bolt)

    def make_rows(self) -> Sequence[RouteRow]:
        """Return the route for Slack's requests, and those of the pages that link accounts."""
        pages = AccountPages(self.links, chat="Slack").make_rows()
        return [RouteRow("POST", PATH, self._receive, "machine", accepts=(FORM, JSON)), *pages]

    async def _receive(self, request: Request) -> Response:
        return await self._handler.handle(request)

    async def _admit(self, req: AsyncBoltRequest, next: Callable[[], Awaitable[BoltResponse]]) -> BoltResponse:
        """Refuse requests that were sent before, and those about people or channels of another workspace.

        Bolt has verified the signature.
        """
        body: JsonObject = req.body
        team, user = body.get("team") or {}, body.get("user") or {}
        if {team.get("id"), user.get("team_id")} != {self._workspace}:
            log.warning("request.of_foreign_workspace", team=team.get("id"), user_team=user.get("team_id"))
            return BoltResponse(status=403)
        (signature,) = req.headers["x-slack-signature"]
        until = time.time() + AGE_S
        if not await self._store.claim(REQUEST, signature, secrets.token_hex(16), until=until):
            log.warning("request.repeated", user=user.get("id"))
            return BoltResponse(status=409)
        return await next()

    async def _click(self, ack: Any, body: JsonObject, action: JsonObject) -> None:
        await ack()
        form = Form({"action": action["action_id"].partition(":")[2]})
        await self._answer(body, _read_reference(body, action), form)

    async def _submit(self, ack: Any, body: JsonObject, view: JsonObject) -> None:
        await ack()
        await self._answer(body, json.loads(view["private_metadata"]), blocks.read_form(view["state"]))

    async def _answer(self, body: JsonObject, reference: JsonObject, form: Form) -> None:
        """Answer the call in a reference, and show a refusal to the person only. The board shows the outcome."""
        user, id = blocks.read_user(body), reference["id"]
        answer_id = hashlib.sha256(f"{user.id} {body['trigger_id']}".encode()).hexdigest()[:40]
        try:
            await self._answers.answer(user, id, reference["version"], form, answer_id=f"slack-{answer_id}")
        except REFUSALS as refused:
            log.info("answer.refused", approval_id=id, user=user.id, kind=type(refused).__name__)
            await self._refuse(user, reference["channel"], refused)

    async def _open_modal(self, ack: Any, body: JsonObject, action: JsonObject, client: AsyncWebClient) -> None:
        await ack()
        # Slack lets a modal open for 3 s after the click only, so it is filled in later.
        opened = await client.views_open(trigger_id=body["trigger_id"], view=blocks.make_notice("Loading…"))
        user, reference = blocks.read_user(body), _read_reference(body, action)
        try:
            _, call = await self._answers.read(user, reference["id"], reference["version"])
            modal = blocks.make_modal(call, reference)
        except REFUSALS as refused:
            modal = blocks.make_notice(str(refused))
            if isinstance(refused, NotLinked):
                await self._refuse(user, reference["channel"], refused)
        try:
            await client.views_update(view_id=opened["view"]["id"], view=modal)
        except SlackApiError:  # Slack does not show these fields
            notice = blocks.make_notice("Slack cannot show this call. Answer it in the inbox.")
            await client.views_update(view_id=opened["view"]["id"], view=notice)

    async def _open_code_modal(self, ack: Any, body: JsonObject, client: AsyncWebClient) -> None:
        await ack()
        modal = blocks.make_code_modal(body["container"]["channel_id"])
        await client.views_open(trigger_id=body["trigger_id"], view=modal)

    async def _link(self, ack: Any, body: JsonObject, view: JsonObject) -> None:
        await ack()
        user, channel = blocks.read_user(body), view["private_metadata"]
        try:
            account = await self.links.finish(user, blocks.read_form(view["state"]).get(blocks.CODE, ""))
        except REFUSALS as refused:
            await self._refuse(user, channel, refused)
        else:
            text = f"Your account is linked: you answer as {account.subject}. Now answer the call."
            await self._messenger.whisper(channel, user.user, text)

    async def _refuse(self, user: Account, channel: str, refused: Exception) -> None:
        """Show a refusal to the person who clicked or, if the account is not linked, how to link it."""
        content: Sequence[JsonObject] = ()
        if isinstance(refused, NotLinked):
            url = f"{self._url}{ACCOUNTS}/{await self.links.begin(user)}"
            content = blocks.make_link_request(str(refused), url)
        try:
            await self._messenger.whisper(channel, user.user, str(refused), content)
        except ChatFailed as error:
            log.warning("refusal.not_shown", user=user.id, problem=str(error))


async def _acknowledge(ack: Any) -> None:
    """Acknowledge a click on a button that only opens a URL."""
    await ack()


def _read_reference(body: JsonObject, action: JsonObject) -> JsonObject:
    """Return what a button is about: the ID and the version of the call, and the channel."""
    reference: JsonObject = json.loads(action["value"])
    return {**reference, "channel": body["container"]["channel_id"]}


def create_server(app: SlackApp, access: Access, *, names: Sequence[str]) -> Starlette:
    """Return the web server for Slack's requests and for linking accounts."""
    return build_app([*app.make_rows(), *make_login_rows(access)], access, names=names, limits=LIMITS)
