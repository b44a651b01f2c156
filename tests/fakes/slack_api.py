"""A fake of Slack, as strict as the real one: its Web API, and the signed requests that clicks lead to.

async with FakeSlack() as slack:
    button = slack.button(channel, "answer:approve")
    await slack.click(url, button, user="U1")
"""

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

import httpx2 as httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TEAM, BOT_TOKEN, SIGNING_SECRET = "T024BE7LH", "xoxb-test-token", "8f742231b10e8888abcd99yyyzzz85a5"
TRIGGER_S, ACK_S = 3.0, 3.0
BLOCKS_OF_MESSAGE, BLOCKS_OF_MODAL = 50, 100
MESSAGE_CHARS = 13_000
"""Slack does not document this limit. People met it at about 13,200 characters (slackapi/bolt-js, issue 2509)."""
TEXTS: Mapping[str, int] = {
    "header": 150,
    "section": 3_000,
    "label": 2_000,
    "hint": 2_000,
    "title": 24,
    "context": 3_000,
}


class Invalid(Exception):
    """An error of the Web API."""


@dataclass
class FakeSlack:
    """A workspace. Change the fields at any time."""

    error: str = ""
    """With which all requests fail, such as `ratelimited`. `unreadable` stands for a page of a broken proxy."""
    channels: set[str] = field(default_factory=lambda: {"C0FINANCE"})
    messages: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    whispers: list[dict[str, Any]] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)
    modals: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    acknowledged_s: list[float] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._triggers: dict[str, float] = {}
        methods = {
            "auth.test": self._auth_test,
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.postEphemeral": self._whisper,
            "views.open": self._open,
            "views.update": self._update_view,
        }

        async def handle(request: Request) -> Response:
            method = request.path_params["method"]
            self.calls.append(method)
            if request.headers.get("authorization") != f"Bearer {BOT_TOKEN}":
                return JSONResponse({"ok": False, "error": "invalid_auth"})
            if self.error == "ratelimited":
                return JSONResponse({"ok": False, "error": self.error}, 429, {"Retry-After": "30"})
            if self.error == "unreadable":
                return Response("<html>", 503, media_type="application/json")
            is_json = request.headers.get("content-type", "").startswith("application/json")
            args = await request.json() if is_json else dict(await request.form())
            args = {
                key: json.loads(v) if key in ("blocks", "view") and isinstance(v, str) else v for key, v in args.items()
            }
            try:
                if self.error:
                    raise Invalid(self.error)
                return JSONResponse({"ok": True, **methods[method](args)})
            except Invalid as error:
                return JSONResponse({"ok": False, "error": str(error)})

        app = Starlette(routes=[Route("/api/{method}", handle, methods=["POST"])])
        config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
        self._server, listening = uvicorn.Server(config), config.bind_socket()
        self.api = f"http://127.0.0.1:{listening.getsockname()[1]}/api/"
        self._task = asyncio.create_task(self._server.serve([listening]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task

    def _auth_test(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"team_id": TEAM, "team": "acme", "user_id": "UBOT", "user": "bot", "bot_id": "B1", "url": "https://x"}

    def _post(self, args: dict[str, Any]) -> dict[str, Any]:
        self._check_message(args)
        ts = f"{time.time():.6f}"
        if "thread_ts" in args:
            if (args["channel"], args["thread_ts"]) not in self.messages:
                raise Invalid("thread_not_found")
            self.replies.append(args)
        else:
            self.messages[args["channel"], ts] = args
        return {"ts": ts, "channel": args["channel"]}

    def _update(self, args: dict[str, Any]) -> dict[str, Any]:
        self._check_message(args)
        if (args["channel"], args["ts"]) not in self.messages:
            raise Invalid("message_not_found")
        self.messages[args["channel"], args["ts"]] = args
        return {"ts": args["ts"], "channel": args["channel"]}

    def _whisper(self, args: dict[str, Any]) -> dict[str, Any]:
        self._check_message(args)
        self.whispers.append(args)
        return {"message_ts": f"{time.time():.6f}"}

    def _open(self, args: dict[str, Any]) -> dict[str, Any]:
        opened_at = self._triggers.pop(args["trigger_id"], None)
        if opened_at is None:
            raise Invalid("invalid_trigger_id")
        if time.monotonic() - opened_at > TRIGGER_S:
            raise Invalid("expired_trigger_id")
        return self._keep(f"V{secrets.token_hex(5).upper()}", args["view"])

    def _update_view(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["view_id"] not in self.modals:
            raise Invalid("not_found")
        if args.get("hash") not in (None, self.modals[args["view_id"]]["hash"]):
            raise Invalid("hash_conflict")
        return self._keep(args["view_id"], args["view"])

    def _keep(self, id: str, view: dict[str, Any]) -> dict[str, Any]:
        check_view(view)
        self.modals[id] = {**view, "id": id, "hash": secrets.token_hex(8)}
        return {"view": self.modals[id]}

    def _check_message(self, args: dict[str, Any]) -> None:
        if args.get("channel") not in self.channels:
            raise Invalid("channel_not_found")
        if not args.get("text"):
            raise Invalid("no_text")
        check_blocks(args.get("blocks") or [], BLOCKS_OF_MESSAGE)
        if len(json.dumps(args.get("blocks"), ensure_ascii=False)) > MESSAGE_CHARS:
            raise Invalid("msg_blocks_too_long")

    @property
    def message(self) -> dict[str, Any]:
        """The only message in the workspace."""
        (message,) = self.messages.values()
        return message

    def text(self) -> str:
        """Return everything that the messages show."""
        return json.dumps([message["blocks"] for message in self.messages.values()], ensure_ascii=False)

    def buttons(self) -> dict[str, dict[str, Any]]:
        """Return the buttons of the only message, by `action_id`."""
        return {
            button["action_id"]: button
            for block in self.message["blocks"]
            for button in block.get("elements", ())
            if button["type"] == "button"
        }

    def trigger(self, *, age_s: float = 0.0) -> str:
        """Return a new trigger ID."""
        id = secrets.token_hex(10)
        self._triggers[id] = time.monotonic() - age_s
        return id

    def make_click(
        self,
        button: dict[str, Any],
        user: str,
        *,
        team: str = TEAM,
        user_team: str = TEAM,
        place: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the payload of a click on a button of the only message, or of the message at a place."""
        channel, ts = place or next(iter(self.messages), ("C0FINANCE", "1.1"))
        return {
            "type": "block_actions",
            "api_app_id": "A1",
            "team": {"id": team, "domain": "acme"},
            "user": {"id": user, "username": "dana.d", "team_id": user_team},
            "trigger_id": self.trigger(),
            "container": {"type": "message", "message_ts": ts, "channel_id": channel},
            "channel": {"id": channel, "name": "finance"},
            "actions": [{"block_id": "b", "action_ts": f"{time.time():.6f}", **button}],
        }

    def make_submission(self, modal: dict[str, Any], user: str, **values: str) -> dict[str, Any]:
        """Return the payload of a modal that a person filled in. Other fields keep what the modal shows."""
        state: dict[str, Any] = {}
        for block in modal["blocks"]:
            if block["type"] == "input":
                element, id = block["element"], block["block_id"]
                chosen = values.get(id, element.get("initial_value") or element.get("initial_option", {}).get("value"))
                if not block.get("optional"):
                    assert chosen, f"Slack does not send a modal without {id}"
                is_choice = "options" in element
                if is_choice and chosen is not None:
                    assert chosen in [option["value"] for option in element["options"]]
                value = {"selected_option": chosen and {"value": chosen}} if is_choice else {"value": chosen}
                state[id] = {element["action_id"]: {"type": element["type"], **value}}
        return {
            "type": "view_submission",
            "api_app_id": "A1",
            "team": {"id": TEAM, "domain": "acme"},
            "user": {"id": user, "username": "dana.d", "name": "dana.d", "team_id": TEAM},
            "trigger_id": self.trigger(),
            "view": {**modal, "state": {"values": state}},
        }

    async def send(
        self, url: str, payload: dict[str, Any], *, secret: str = SIGNING_SECRET, age_s: int = 0, **headers: str
    ) -> httpx.Response:
        """Send a signed request. Fail if it is not acknowledged within 3 s, and note how long that took."""
        request = sign(payload, secret=secret, age_s=age_s)
        return await self.send_again(url, request)

    async def send_again(self, url: str, request: tuple[bytes, dict[str, str]]) -> httpx.Response:
        """Send a request that is signed already."""
        body, headers = request
        begun = time.monotonic()
        async with httpx.AsyncClient(timeout=ACK_S) as client:
            response = await client.post(f"{url}/hooks/slack", content=body, headers=headers)
        self.acknowledged_s.append(time.monotonic() - begun)
        return response


def sign(payload: dict[str, Any], *, secret: str = SIGNING_SECRET, age_s: int = 0) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of Slack's request with a payload."""
    body, at = urlencode({"payload": json.dumps(payload)}).encode(), str(int(time.time()) - age_s)
    code = hmac.new(secret.encode(), b"v0:" + at.encode() + b":" + body, hashlib.sha256).hexdigest()
    headers = {
        "X-Slack-Request-Timestamp": at,
        "X-Slack-Signature": f"v0={code}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return body, headers


def check_view(view: dict[str, Any]) -> None:
    """Check a modal by the rules of Slack's reference."""
    if view.get("type") != "modal" or len(view.get("private_metadata", "")) > 3_000:
        raise Invalid("invalid_arguments")
    check_text(view.get("title"), "title")
    has_input = any(block["type"] == "input" for block in view["blocks"])
    if has_input and "submit" not in view:
        raise Invalid("invalid_arguments")
    check_blocks(view["blocks"], BLOCKS_OF_MODAL)


def check_blocks(blocks: list[dict[str, Any]], most: int) -> None:
    """Check blocks by the rules of Slack's reference. No text from a call may be markup."""
    ids = [block["block_id"] for block in blocks if "block_id" in block]
    if len(blocks) > most or len(set(ids)) < len(ids) or any(not 0 < len(id) <= 255 for id in ids):
        raise Invalid("invalid_blocks")
    if "mrkdwn" in json.dumps([block for block in blocks if "mrkdwn" in str(block.get("type"))]):
        raise Invalid("invalid_blocks")
    for block in blocks:
        match block:
            case {"type": "header" | "section" as kind, "text": text}:
                check_text(text, kind)
            case {"type": "context", "elements": [*elements]} if 0 < len(elements) <= 10:
                for element in elements:
                    check_text(element, "context")
            case {
                "type": "rich_text",
                "elements": [{"type": "rich_text_preformatted", "elements": [{"type": "text", "text": str(text)}]}],
            }:
                if not 0 < len(text) <= 3_000:
                    raise Invalid("invalid_blocks")
            case {"type": "actions", "elements": [*elements]} if 0 < len(elements) <= 25:
                names = [element.get("action_id") for element in elements]
                if len(set(names)) < len(names):
                    raise Invalid("invalid_blocks")
                for element in elements:
                    check_element(element)
            case {"type": "input", "label": label, "element": element}:
                check_text(label, "label")
                if "hint" in block:
                    check_text(block["hint"], "hint")
                check_element(element)
            case _:
                raise Invalid("invalid_blocks")


def check_element(element: dict[str, Any]) -> None:
    """Check a button or an input."""
    if not 0 < len(element["action_id"]) <= 255 or not re.fullmatch("[ -~]+", element["action_id"]):
        raise Invalid("invalid_blocks")
    match element["type"]:
        case "button":
            check_text(element["text"], 75)
            is_valid = len(element.get("value", "")) <= 2_000 and element.get("style") in (None, "primary", "danger")
            is_valid &= len(element.get("url", "")) <= 3_000
        case "plain_text_input":
            is_valid = len(element.get("initial_value", "x")) <= 3_000 and element.get("initial_value") != ""
        case "radio_buttons" | "static_select" as kind:
            options = element["options"]
            for option in options:
                check_text(option["text"], 75)
            is_valid = 0 < len(options) <= (10 if kind == "radio_buttons" else 100)
            is_valid &= all(0 < len(option["value"]) <= 150 for option in options)
            is_valid &= "initial_option" not in element or element["initial_option"] in options
        case _:
            is_valid = False
    if not is_valid:
        raise Invalid("invalid_blocks")


def check_text(text: Any, kind: str | int) -> None:
    """Check that a text is plain and not too long."""
    most = kind if isinstance(kind, int) else TEXTS[kind]
    if not isinstance(text, dict) or text.get("type") != "plain_text" or not 0 < len(text.get("text", "")) <= most:
        raise Invalid("invalid_blocks")
