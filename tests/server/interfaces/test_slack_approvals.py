"""People answer calls in Slack: a strict fake of Slack, the real server over HTTP, and a real worker."""

import asyncio
import contextlib
import json
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.fakes.slack_api import BOT_TOKEN, SIGNING_SECRET, TEAM, FakeSlack, sign
from tests.paths import write_secret
from tests.programs import undisturbed
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.logins import DANA, ERIN, browser, logged_in
from tests.server.web.sites import Browser, hidden
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation, installed
from waystation.approvers import Gatekeeper
from waystation.approvers.audit import gather_invocation
from waystation.approvers.gatekeeper import CHAT
from waystation.approvers.identity import Configuration, Gateway, WorkerIdentity
from waystation.client import AgentClient
from waystation.core.approval import ApprovalPolicy
from waystation.core.errors import NotAllowed
from waystation.interfaces.slack.slack_app import SlackApp, create_server
from waystation.interfaces.slack.slack_settings import SlackSettings
from waystation.web.server import configure, make_access
from waystation.web.web_settings import WebSettings

CHANNEL = "C0FINANCE"
DANA_IN_SLACK, ERIN_IN_SLACK = "U0DANA", "U0ERIN"
FINANCE = ApprovalPolicy(approvers=("role:finance",))


@pytest.fixture
def openid(own_openid: FakeOpenId) -> FakeOpenId:
    """Run an identity provider."""
    return own_openid


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

        (id,) = await wait_until(opened, "the modal")
        await self.slack.send(self.url, self.slack.make_submission(self.slack.modals[id], user, code=code))

    async def until_whisper(self, user: str, text: str) -> dict[str, Any]:
        """Wait until Slack has shown a text to one user only, and return the newest such message."""

        async def find() -> list[dict[str, Any]]:
            return [each for each in self.slack.whispers if each["user"] == user and text in json.dumps(each["blocks"])]

        return (await wait_until(find, text) or [])[-1]

    async def until_shown(self, *texts: str) -> None:
        """Wait until the messages show all texts."""

        async def find() -> bool:
            return all(text in self.slack.text() for text in texts)

        await wait_until(find, f"{texts} in {self.slack.text()}")

    async def open_modal(self, user: str = DANA_IN_SLACK) -> dict[str, Any]:
        """Click `More…`, and return the modal when it is complete."""
        await self.click("more", user)

        async def complete() -> list[dict[str, Any]]:
            return [modal for modal in self.slack.modals.values() if modal.get("callback_id") == "answer"]

        return (await wait_until(complete, "the modal") or [])[-1]


def write_settings(there: Installation, slack: FakeSlack, queue: str) -> Path:
    """Write the settings of Slack, with one channel that is named like the task queue."""
    write_secret(there.folder / "bot-token", BOT_TOKEN)
    write_secret(there.folder / "signing-secret", SIGNING_SECRET)
    file = there.folder / "slack.toml"
    file.write_text(
        f'workspace = "{TEAM}"\nbot_token = "bot-token"\nsigning_secret = "signing-secret"\napi = "{slack.api}"\n'
        f'inbox = "https://approvals.example.com"\nstore = "chat.sqlite"\ndefault = []\n'
        f'[channels.{queue}]\nid = "{CHANNEL}"\n'
    )
    return file


@contextlib.asynccontextmanager
async def desk(
    client: AgentClient, there: Installation, slack: FakeSlack, openid: FakeOpenId, *, runs: bool = True
) -> AsyncIterator[Desk]:
    """Serve chat approvals. If `runs` is false, messages change only in explicit rounds and after clicks."""
    file = write_settings(there, slack, client.task_queue)
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
        late = case.desk.slack.make_click(case.desk.slack.buttons()["answer:reject"], DANA_IN_SLACK)
        await case.desk.click("answer:approve")
        await case.invocation.result()
        await case.desk.until_shown("This call was approved by dana@example.com (identity verified).")
        await case.desk.slack.send(case.desk.url, late)
        await case.desk.until_whisper(DANA_IN_SLACK, "This call was approved by dana@example.com")
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


async def test_links_need_both_sides(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """A code counts only for the user who was linked, only once, and only if it is right the first time."""
    async with shown_call(serve, there, openid) as case:
        code = await case.desk.begin_link(DANA_IN_SLACK, DANA)
        await case.desk.type_code(ERIN_IN_SLACK, code)
        await case.desk.until_whisper(ERIN_IN_SLACK, "The code is wrong")
        await case.desk.type_code(DANA_IN_SLACK, "AAAA-AAAA")
        await case.desk.until_whisper(DANA_IN_SLACK, "The code is wrong")
        case.desk.slack.whispers.clear()
        await case.desk.type_code(DANA_IN_SLACK, code)
        await case.desk.until_whisper(DANA_IN_SLACK, "The code is wrong")
        await case.desk.click("answer:approve")
        assert case.till.paid == []


async def test_requests_that_slack_did_not_just_send_are_refused(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Forged, old, repeated and foreign requests reach no handler."""
    async with shown_call(serve, there, openid) as case:
        slack, url = case.desk.slack, case.desk.url
        button = slack.buttons()["answer:approve"]

        def click(**options: Any) -> dict[str, Any]:
            return slack.make_click(button, DANA_IN_SLACK, **options)

        statuses = [
            (await slack.send(url, click(), secret="another")).status_code,
            (await slack.send(url, click(), age_s=301)).status_code,
            (await slack.send(url, click(), age_s=-301)).status_code,
            (await slack.send(url, click(team="T0OTHER", user_team="T0OTHER"))).status_code,
            (await slack.send(url, click(user_team="T0OTHER"))).status_code,
        ]
        assert statuses == [401, 401, 401, 403, 403]
        request = sign(click())
        tampered = request[0].replace(b"answer%3Aapprove", b"answer%3Areject"), request[1]
        assert tampered[0] != request[0]
        assert (await slack.send_again(url, tampered)).status_code == 401
        assert (await slack.send_again(url, request)).status_code == 200
        assert (await slack.send_again(url, request)).status_code == 409
        await case.desk.until_whisper(DANA_IN_SLACK, "Link your account")
        assert len(slack.whispers) == 1
        assert case.till.paid == []


async def test_one_of_two_simultaneous_clicks_counts(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The other person alone learns who was faster."""
    async with shown_call(serve, there, openid) as case:
        await case.desk.link(DANA_IN_SLACK, DANA)
        await case.desk.link(ERIN_IN_SLACK, ERIN)
        buttons = case.desk.slack.buttons()
        slack = case.desk.slack
        slack.whispers.clear()
        clicks = [
            (slack.make_click(buttons[f"answer:{action}"], user))
            for action, user in (("approve", DANA_IN_SLACK), ("reject", ERIN_IN_SLACK))
        ]
        await asyncio.gather(*(slack.send(case.desk.url, click) for click in clicks))
        await case.invocation.result()

        async def refused() -> list[dict[str, Any]]:
            return slack.whispers

        await wait_until(refused, "a refusal")
        (whisper,) = slack.whispers
        assert (whisper["user"] == ERIN_IN_SLACK) == (case.till.paid == [5])


async def test_the_message_shows_the_quorum_and_answers_from_elsewhere(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """A second click of the same person does not count. An operator's answer elsewhere removes the buttons."""
    policy = ApprovalPolicy(approvers=("role:finance",), quorum=2)
    async with shown_call(serve, there, openid, policy) as case:
        await case.desk.link(DANA_IN_SLACK, DANA)
        await case.desk.click("answer:approve")
        await case.desk.until_shown("2 approvals; so far dana@example.com")
        await case.desk.click("answer:approve")
        await case.desk.until_whisper(DANA_IN_SLACK, "already")
        token = there.sealer
        proof = there.provider.token(ERIN, roles=["finance"])
        await case.invocation.approve(
            "fc-1",
            by=ERIN,
            token=lambda **about: token.seal(proof, **about),
            digest=(await case.invocation.pending())[0].digest,
        )
        await case.invocation.result()
        await case.desk.until_shown("This call was approved by erin@example.com (identity verified).")
        assert case.till.paid == [5]


async def test_people_edit_and_comment_in_a_modal(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The modal has the fields of the arguments. An invalid value is reported to the person only."""
    async with shown_call(serve, there, openid) as case:
        slack = case.desk.slack
        await case.desk.link(DANA_IN_SLACK, DANA)
        modal = await case.desk.open_modal()
        values = {"action": "edit", "comment": "Only 3.", "value.amount": "three"}
        await slack.send(case.desk.url, slack.make_submission(modal, DANA_IN_SLACK, **values))
        await case.desk.until_whisper(DANA_IN_SLACK, "amount: Enter a")
        await slack.send(case.desk.url, slack.make_submission(modal, DANA_IN_SLACK, **{**values, "value.amount": "3"}))
        await case.invocation.result()
        await case.desk.until_shown("approved with other arguments")
        assert case.till.paid == [3]


async def test_every_click_asks_the_identity_file_and_the_link_again(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """A person that the file no longer admits is refused, and so is one who has removed the link."""
    file = there.folder / "chat.toml"
    before = file.read_text()
    async with shown_call(serve, there, openid) as case:
        await case.desk.link(DANA_IN_SLACK, DANA)
        admission = case.desk.app.links._admission
        file.write_text(before + '\n[oidc.require]\nroles = ["board"]\n')
        admission._looked_at = -100.0  # it looks again every 10 s
        await case.desk.click("answer:approve")
        await case.desk.until_whisper(DANA_IN_SLACK, "none of the roles that this server requires")
        file.write_text(before + " \n")
        admission._looked_at = -100.0
        openid.subject = DANA
        async with browser(case.desk.url) as http:
            page = await http.get((await logged_in(http, openid, "/")).headers["location"])
            assert "U0DANA" in page.text
            await Browser(http).send("/unlink", hidden(page.text))
        case.desk.slack.whispers.clear()
        await case.desk.click("answer:approve")
        await case.desk.until_whisper(DANA_IN_SLACK, "Link your account")
        assert case.till.paid == []


async def test_a_policy_can_refuse_chats(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The message then has no buttons, and workers refuse what the gateway of the chat has signed."""
    policy = ApprovalPolicy(approvers=("role:finance",), chat=False)
    async with shown_call(serve, there, openid, policy) as case:
        slack = case.desk.slack
        assert set(slack.buttons()) == {"open"}
        call = (await case.invocation.pending())[0]
        gateway = Gateway.of(Configuration.read(there.folder / "chat.toml"))
        token = gateway.signer(DANA, ["finance"])

        def seal(**about: Any) -> str:
            return str(there.sealer.seal(token(**about), **about))

        with pytest.raises(NotAllowed, match="does not accept answers from a chat"):
            await case.invocation.approve("fc-1", by=DANA, token=seal, digest=call.digest)
        assert case.till.paid == []


async def test_a_message_for_other_arguments_does_not_count(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The button carries the digest of the call that the message showed."""
    async with shown_call(serve, there, openid) as case:
        await case.desk.link(DANA_IN_SLACK, DANA)
        button = case.desk.slack.buttons()["answer:approve"]
        value = json.loads(button["value"])
        other = {**value, "version": "0" * 64 + value["version"][value["version"].index(" ") :]}
        changed = {**button, "value": json.dumps(other)}
        await case.desk.slack.send(case.desk.url, case.desk.slack.make_click(changed, DANA_IN_SLACK))
        await case.desk.until_whisper(DANA_IN_SLACK, "different arguments")
        assert case.till.paid == []


async def test_text_from_the_model_is_never_markup(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Slack accepts the longest texts, and shows mentions, links and invisible characters as they are."""
    text = "<!channel> *pay* <https://evil.example|bank> :x: \u202e" + "long " * 500
    async with shown_call(serve, there, openid, FINANCE, {"amount": 5, "note": text}) as case:
        shown = case.desk.slack.message["blocks"]
        assert "<!channel> *pay* <https://evil.example|bank> :x: \\\\u202e" in json.dumps(shown)
        assert '"mrkdwn"' not in json.dumps(shown)
        assert "evil" not in case.desk.slack.message["text"]


async def test_after_an_outage_the_pending_calls_are_posted_once(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Neither an outage of Slack nor one of this process loses a call or a link, or repeats a message."""
    till, queue = Till(), f"slack-{there.folder.parent.name}"
    agent = payer(till, {"amount": 5}, approval=asking(queue))
    async with serve(agent, identity=there.worker, verify=False, task_queue=queue) as env, FakeSlack() as slack:
        invocation, id = await begun(env.client, "payer")
        await until_listed(env.client, id)
        for slack.error in ("internal_error", "ratelimited", "unreadable"):
            async with desk(env.client, there, slack, openid, runs=False) as first:
                await first.app.board.sync()
        assert (slack.messages, slack.calls) == ({}, ["chat.postMessage"] * 3)
        slack.error = ""
        async with desk(env.client, there, slack, openid, runs=False) as second:
            await second.app.board.sync()
            await second.link(DANA_IN_SLACK, DANA)
        async with desk(env.client, there, slack, openid, runs=False) as third:
            await third.app.board.sync()
            assert len(slack.messages) == 1
            await third.click("answer:approve")
            await invocation.result()
        assert till.paid == [5]


async def test_a_message_that_was_never_stored_still_works(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """A process that was lost after posting posts again. A click on the first message closes both."""
    async with shown_call(serve, there, openid) as case:
        slack = case.desk.slack
        await case.desk.link(DANA_IN_SLACK, DANA)
        button, place = slack.buttons()["answer:approve"], (CHANNEL, "1.000001")
        slack.messages[place] = dict(slack.message)
        await slack.send(case.desk.url, slack.make_click(button, DANA_IN_SLACK, place=place))
        await case.invocation.result()

        async def closed() -> bool:
            return slack.text().count("This call was approved by") == 2

        await wait_until(closed, "both messages")


async def test_reminders_are_those_of_the_policy(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """However many were missed, people are reminded once."""
    policy = ApprovalPolicy(approvers=("role:finance",), reminders=(timedelta(hours=1), timedelta(hours=2)))
    async with shown_call(serve, there, openid, policy) as case:
        board = case.desk.app.board
        board._clock = lambda: time.time() + 3 * 3600
        for _ in range(2):
            await board.sync()
        assert len(case.desk.slack.replies) == 1


async def test_a_removed_message_is_posted_again(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """This happens when the call changes while it is open."""
    policy = ApprovalPolicy(approvers=("role:finance",), quorum=2)
    async with shown_call(serve, there, openid, policy) as case:
        await case.desk.link(DANA_IN_SLACK, DANA)
        click = case.desk.slack.make_click(case.desk.slack.buttons()["answer:approve"], DANA_IN_SLACK)
        case.desk.slack.messages.clear()
        await case.desk.slack.send(case.desk.url, click)
        await case.desk.until_shown("so far dana@example.com")


async def until_listed(client: AgentClient, id: str) -> None:
    """Wait until visibility lists a call."""

    async def find() -> bool:
        return id in [call.approval_id async for call in client.approvals.each()]

    await wait_until(find, id)


async def test_the_command_serves_until_it_is_stopped(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The process posts the call, verifies clicks, and ends with SIGTERM."""
    queue = f"slack-{there.folder.parent.name}"
    agent = payer(Till(), {"amount": 5}, approval=asking(queue))
    async with serve(agent, identity=there.worker, verify=False, task_queue=queue) as env, FakeSlack() as slack:
        await begun(env.client, "payer")
        options = ["--slack", write_settings(there, slack, queue), "--identity", there.folder / "chat.toml"]
        options += ["--url", "http://127.0.0.1", "--port", "0"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "waystation", "--address", env.server.address, "chat-approvals"),
            *map(str, options),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=undisturbed(),
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(60):
                while not (found := re.search(r"Serving at (\S+);", (await process.stderr.readline()).decode())):
                    assert not process.stderr.at_eof()

            async def posted() -> bool:
                return bool(slack.messages)

            await wait_until(posted, "the message")
            click = slack.make_click(slack.buttons()["answer:approve"], DANA_IN_SLACK)
            assert (await slack.send(found[1], click, secret="another")).status_code == 401
            assert (await slack.send(found[1], click)).status_code == 200
            await until_whispered(slack, "Link your account")
        finally:
            process.terminate()
            await process.communicate()
        assert process.returncode == 0


async def until_whispered(slack: FakeSlack, text: str) -> None:
    """Wait until Slack has shown a text to one user."""

    async def find() -> bool:
        return text in json.dumps(slack.whispers)

    await wait_until(find, text)
