"""The program that answers from Slack works unchanged, between a worker and a fake of Slack's API."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.documents import blocks, how_to
from tests.paths import write_secret
from tests.server.approvals.asking import payer
from tests.server.conftest import Serve
from tests.steps import wait_until
from tests.unit.notices.conftest import channels

PAGE = how_to("approve-from-slack")
(PROGRAM,) = [block for block in blocks(PAGE, "python") if block.startswith("# slack_approvals.py")]
SECRET, SIGNING_SECRET = "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0", "signs"
APPROVER, STRANGER = "U024BE7LH", "U0STRANGER"


def pay(amount: int) -> str:
    """Pay."""
    return "paid"


class FakeSlack:
    """A fake of Slack's API that keeps the messages."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []
        self.routes = [
            Route("/api/auth.test", self._authenticate, methods=["POST"]),
            Route("/api/chat.postMessage", self._post, methods=["POST"]),
            Route("/api/response", self._update, methods=["POST"]),
        ]

    async def _authenticate(self, _: Request) -> JSONResponse:
        ids = {"team_id": "T1", "user_id": "U1", "bot_id": "B1", "team": "t", "user": "bot", "url": "https://slack.com"}
        return JSONResponse({"ok": True, **ids})

    async def _post(self, request: Request) -> JSONResponse:
        self.posted.append(await request.json())
        return JSONResponse({"ok": True, "ts": "1.0", "channel": "C1"})

    async def _update(self, request: Request) -> JSONResponse:
        self.updates.append(await request.json())
        return JSONResponse({"ok": True})


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve an application on a port of this machine."""
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
    server, socket = uvicorn.Server(config), config.bind_socket()
    task = asyncio.create_task(server.serve([socket]))
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def click(base: str, button: dict[str, Any], user: str, secret: str = SIGNING_SECRET) -> int:
    """Send Slack's request for a click on a button; return the status of the response."""
    payload = {
        "type": "block_actions",
        "team": {"id": "T1"},
        "user": {"id": user},
        "response_url": f"{base}/api/response",
        "actions": [{**button, "type": "button", "block_id": "b"}],
    }
    body, now = urlencode({"payload": json.dumps(payload)}), str(int(time.time()))
    signature = hmac.new(secret.encode(), f"v0:{now}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {
        "X-Slack-Request-Timestamp": now,
        "X-Slack-Signature": f"v0={signature}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    async with httpx2.AsyncClient() as client:
        return (await client.post(f"{base}/slack", content=body, headers=headers)).status_code


async def test_a_click_in_slack_approves_the_call(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slack gets a message with buttons; forged clicks and those of strangers do not count."""
    for name, value in {
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_SIGNING_SECRET": SIGNING_SECRET,
        "SLACK_CHANNEL": "C1",
        "SLACK_APPROVALS_SECRET": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    program, slack = ModuleType("slack_approvals"), FakeSlack()
    exec(PROGRAM, program.__dict__)
    write_secret(tmp_path / "slack.key", SECRET)
    async with listening(Starlette(routes=[*program.app.routes, *slack.routes])) as base:
        program.slack.client.base_url = f"{base}/api/"
        section = f'[channels.slack]\nwebhook = {{ url = "{base}/waystation", secret_file = "slack.key" }}\n'
        known = channels(tmp_path, section, default=["slack"])
        async with serve(payer(pay), channels=known, task_queue="waystation") as env:
            monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
            invocation = await env.client.start("payer", "go")

            async def posted() -> list[dict[str, Any]]:
                return slack.posted

            await wait_until(posted, "a message in Slack")
            (message,) = slack.posted
            text, buttons = message["blocks"]
            assert text["text"]["text"] == "payer wants to run pay(amount=5). Origin of the tool: declared"
            approve, _ = buttons["elements"]
            assert await click(base, approve, APPROVER, secret="forged") == 401
            assert await click(base, approve, STRANGER) == 200
            assert await invocation.pending()
            assert await click(base, approve, APPROVER) == 200
            assert (await invocation.result()).text == "They said {'result': 'paid'}."
    assert [update["text"] for update in slack.updates] == [
        "You may not answer calls.",
        "approve: pay, by dana@example.com",
    ]
