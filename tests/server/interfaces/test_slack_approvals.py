"""People answer calls in Slack: a strict fake of Slack, the real server over HTTP, and a real worker."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from tests.fakes.openid import FakeOpenId
from tests.fakes.slack_api import BOT_TOKEN, SIGNING_SECRET, TEAM, FakeSlack, sign
from tests.paths import write_secret
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.logins import DANA, ERIN, browser, logged_in
from tests.server.web.sites import Browser, hidden
from tests.server.workflows.outside import Till, until
from tests.unit.identity.conftest import Installation, installed
from waystation.approvers import Gatekeeper
from waystation.approvers.audit import gather_invocation
from waystation.approvers.gatekeeper import CHAT
from waystation.approvers.identity import WorkerIdentity
from waystation.client import AgentClient
from waystation.core.approval import ApprovalPolicy
from waystation.core.ids import parse_approval
from waystation.interfaces.slack.slack_app import SlackApp, create_server
from waystation.interfaces.slack.slack_settings import SlackSettings
from waystation.web.server import configure, make_access
from waystation.web.web_settings import WebSettings

CHANNEL = "C0FINANCE"
DANA_IN_SLACK, ERIN_IN_SLACK = "U0DANA", "U0ERIN"
FINANCE = ApprovalPolicy(approvers=("role:finance",))


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose workers trust the gateway of the chat."""
    there = installed(tmp_path / "identity", openid)
    workers, chat = there.folder / "workers.toml", there.folder / "chat.toml"
    commented = re.search(r"# \[\[issuers\]\]\n(# .*\n)+?# kind = \"chat\"\n", workers.read_text())
    assert commented is not None
    workers.write_text(workers.read_text().replace(commented[0], commented[0].replace("# ", "")))
    write_secret(there.folder / "oidc-secret", openid.client_secret)
    section = {"issuer": openid.url, "client_id": openid.client_id, "client_secret_file": "oidc-secret"}
    chat.write_text(
        chat.read_text() + "\n[oidc]\n" + "".join(f'{name} = "{value}"\n' for name, value in section.items())
    )
    there.worker = WorkerIdentity.load(workers)
    return there


@dataclass
class Desk:
    """A running server, and Slack."""

    app: SlackApp
    slack: FakeSlack
    url: str
    openid: FakeOpenId

    async def click(self, action: str, user: str = DANA_IN_SLACK, **options: Any) -> None:
        """Click a button of the only message, and wait until the work is done."""
        sent = await self.slack.send(self.url, self.slack.make_click(self.slack.buttons()[action], user, **options))
        assert sent.status_code == 200

    async def link(self, user: str, subject: str, *, roles: tuple[str, ...] = ("finance",)) -> None:
        """Link a user of Slack as a person does: click, log in, confirm, type the code."""
        code = await self.begin_link(user, subject, roles=roles)
        await self.type_code(user, code)
        await self.until_whisper(user, "Your account is linked")

    async def begin_link(self, user: str, subject: str, *, roles: tuple[str, ...] = ("finance",)) -> str:
        """Return the code that the page shows."""
        await self.click("answer:reject", user)
        whisper = await self.until_whisper(user, "Link your account")
        path = urlsplit(whisper["blocks"][1]["elements"][0]["url"]).path
        self.openid.subject, self.openid.roles = subject, roles
        async with browser(self.url) as http:
            page = await http.get((await logged_in(http, self.openid, path)).headers["location"])
            assert all(text in page.text for text in (user, TEAM, subject)), page.text
            shown = await Browser(http).send(path, hidden(page.text))
            assert (await http.get(path)).status_code == 410  # single use
        found = re.search(r"<strong>(\w{4}-\w{4})</strong>", shown.text)
        assert found is not None, shown.text
        return found[1]

    async def type_code(self, user: str, code: str) -> None:
        """Enter a code in Slack."""
        button = {"action_id": "code", "type": "button"}
        before = set(self.slack.modals)
        await self.slack.send(self.url, self.slack.make_click(button, user))

        async def opened() -> set[str]:
            return set(self.slack.modals) - before

        (id,) = await until(opened, "the modal") or ()
        await self.slack.send(self.url, self.slack.make_submission(self.slack.modals[id], user, code=code))

    async def until_whisper(self, user: str, text: str) -> dict[str, Any]:
        """Wait until Slack has shown a text to one user only, and return the newest such message."""

        async def find() -> list[dict[str, Any]]:
            return [each for each in self.slack.whispers if each["user"] == user and text in json.dumps(each["blocks"])]

        return (await until(find, text) or [])[-1]

    async def until_shown(self, *texts: str) -> None:
        """Wait until the messages show all texts."""

        async def find() -> bool:
            return all(text in self.slack.text() for text in texts)

        await until(find, f"{texts} in {self.slack.text()}")

    async def open_modal(self, user: str = DANA_IN_SLACK) -> dict[str, Any]:
        """Click `More…`, and return the modal when it is complete."""
        await self.click("more", user)

        async def complete() -> list[dict[str, Any]]:
            return [
                modal for modal in self.slack.modals.values() if "Loading" not in json.dumps(modal, ensure_ascii=False)
            ]

        return (await until(complete, "the modal") or [])[-1]


@contextlib.asynccontextmanager
async def desk(
    client: AgentClient, there: Installation, slack: FakeSlack, openid: FakeOpenId, *, runs: bool = True
) -> AsyncIterator[Desk]:
    """Serve chat approvals. If `runs` is false, messages change only in explicit rounds and after clicks."""
    write_secret(there.folder / "bot-token", BOT_TOKEN)
    write_secret(there.folder / "signing-secret", SIGNING_SECRET)
    file = there.folder / "slack.toml"
    file.write_text(
        f'workspace = "{TEAM}"\nbot_token = "bot-token"\nsigning_secret = "signing-secret"\napi = "{slack.api}"\n'
        f'inbox = "https://approvals.example.com"\nstore = "chat.sqlite"\ndefault = []\n'
        f'[channels.{client.task_queue}]\nid = "{CHANNEL}"\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        keeper = Gatekeeper.from_file(there.folder / "chat.toml", "default", interface="slack", command=CHAT)
        web = WebSettings(url=url)
        app = SlackApp(client, keeper, SlackSettings.read(file), web, url)
        server = uvicorn.Server(configure(create_server(app, make_access(web, keeper), names=web.names)))
        tasks = [asyncio.create_task(server._serve([listening]))]
        board = asyncio.create_task(app.board.run()) if runs else None
        try:
            yield Desk(app, slack, url, openid)
        finally:
            if board:
                board.cancel()
            server.should_exit = True
            await asyncio.gather(*tasks)


def asking(env_queue: str, policy: ApprovalPolicy = FINANCE) -> ApprovalPolicy:
    """Return a policy whose calls are shown only in the channel of one test."""
    return policy.model_copy(update={"notify": (env_queue,)})


@dataclass
class Case:
    """A pending call, which Slack shows."""

    till: Till
    desk: Desk
    invocation: Any
    id: str
    env: Any


@contextlib.asynccontextmanager
async def shown_call(
    serve: Serve, there: Installation, openid: FakeOpenId, policy: ApprovalPolicy = FINANCE, *args: dict[str, Any]
) -> AsyncIterator[Case]:
    """Start an agent whose call needs approval, and wait until Slack shows it."""
    till, queue = Till(), f"slack-{there.folder.parent.name}"
    agent = payer(till, *(args or ({"amount": 5},)), approval=asking(queue, policy))
    async with (
        serve(agent, identity=there.worker, verify=False, task_queue=queue) as env,
        FakeSlack() as slack,
        desk(env.client, there, slack, openid) as server,
    ):
        invocation, id = await begun(env.client, "payer", user_id="frank@example.com")
        await server.until_shown('"header"')
        yield Case(till, server, invocation, id, env)


async def test_a_linked_person_approves_with_a_click(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The audit names the interface, the person and the proof, and the message shows the decision without buttons."""
    async with shown_call(serve, there, openid) as case:
        await case.desk.link(DANA_IN_SLACK, DANA)
        await case.desk.click("answer:approve")
        await case.invocation.result()
        await case.desk.until_shown("This call was approved by dana@example.com (identity verified).")
        assert set(case.desk.slack.buttons()) == set()
        assert case.till.paid == [5]
        account = await gather_invocation(case.env.client, case.invocation.id)
        (decided,) = [line for line in account.by_invocation[case.invocation.id] if line["kind"] == "decided"]
        assert decided["interface"] == "slack"
        assert decided["verified"] == {
            "subject": DANA,
            "roles": ["finance"],
            "issuer": "https://chat-approvals.example.com",
            "kind": "chat",
        }
        assert max(case.desk.slack.acknowledged_s) < 3
