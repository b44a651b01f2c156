"""Approvers are notified of pending calls: with a real Temporal server, over real HTTP and SMTP."""

import asyncio
import socket
from collections.abc import Iterator, MutableMapping
from datetime import timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiosmtpd.controller import Controller
from temporalio import activity

from tests.fakes.webhook_receiver import Received, WebhookReceiver
from tests.server.approvals.asking import asks_once
from tests.server.conftest import Serve
from tests.server.workflows.author_code import failure
from tests.steps import approve_and_finish, start_and_wait, wait_until
from tests.unit.identity.conftest import KEY
from tests.unit.notices.conftest import channels, webhook
from waystation.activities.notifications import Channel, Channels
from waystation.agents import Agent
from waystation.approvers.identity import Links
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, Escalation
from waystation.core.log import NoticeReport, Notified
from waystation.core.payload import JsonObject
from waystation.extensions import Notification
from waystation.tools import FunctionTool

TELLS = ApprovalPolicy(notify=("finance",))


def pay(amount: int, password: str = "") -> str:
    """Pay."""
    return "paid"


def payer(
    policy: ApprovalPolicy | None = TELLS, args: JsonObject | None = None, hint: str = "", title: str | None = None
) -> Agent:
    """Return an agent that pays after an approval."""
    tool = FunctionTool(pay, approval=policy, hint=hint, title=title, require_confirmation=policy is None)
    return Agent(name="payer", model=asks_once("pay", args or {"amount": 5}), tools=[tool])


async def reported(invocation: Invocation, occasion: str = "asked") -> NoticeReport:
    """Wait until the history has the report of an occasion, and return it."""

    async def look() -> NoticeReport | None:
        said = [entry.body for entry in (await invocation.log()).entries if isinstance(entry.body, Notified)]
        return next((body.report for body in said if body.occasion == occasion), None)

    found = await wait_until(look, f"a report on {occasion}")
    assert found is not None
    return found


async def received(receiver: WebhookReceiver, count: int = 1) -> list[Received]:
    """Wait until a receiver has accepted a number of notifications, and return them."""

    async def look() -> list[Received] | None:
        return list(receiver.taken) if len(receiver.taken) >= count else None

    found = await wait_until(look, f"{count} notices")
    assert found is not None
    return found


@pytest.mark.slow
async def test_approvers_of_a_policy_are_notified_once(serve: Serve, tmp_path: Path, receiver: WebhookReceiver) -> None:
    """The channel gets one signed request with a link; the history only has the name of the channel."""
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver), inbox="https://approvals.example.com")
    links = Links(KEY, namespace="default", lifetime=timedelta(days=1))
    async with serve(payer(title="Pay {amount} €"), channels=known, sign_link=links.sign) as env:
        invocation = await env.client.start("payer", "go", user_id="dana")
        report = await reported(invocation)
        (call,) = await invocation.pending()
        (got,) = receiver.requests
        assert got.verified
        assert got.body["type"] == "waystation.approval.asked"
        data = got.body["data"]
        page, _, token = data.pop("link").partition("#link=")
        assert page == f"https://approvals.example.com/approvals/{quote(call.approval_id, safe='')}"
        assert links.read(token).approval_id == call.approval_id
        assert data == {
            "approval_id": call.approval_id,
            "namespace": "default",
            "invocation_id": invocation.id,
            "function_call_id": "fc-1",
            "agent": "payer",
            "tool": "pay",
            "tool_origin": "declared",
            "title": "Pay 5 €",
            "summary": "pay(amount=5)",
            "digest": call.digest,
            "question": call.question,
            "user_id": "dana",
            "requester": "dana",
            "tenant": None,
            "requested_at": call.requested_at,
            "deadline": call.deadline,
            "occasion": "asked",
            "number": 0,
        }
        assert (report.delivered, report.failed) == (("finance",), {})
        history = (await invocation.history()).to_json()
        assert not any(secret in history for secret in (receiver.url, receiver.secret, token))
        await approve_and_finish(invocation)


@pytest.mark.slow
async def test_default_channels_are_used_without_a_policy(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """Default channels apply to calls whose policy names none; without a configuration nothing is sent."""
    known = channels(tmp_path, webhook(tmp_path, "all", receiver), default=["all"], inbox="https://inbox.example")
    async with serve(payer(None), channels=known) as env:
        invocation = await env.client.start("payer", "go")
        assert (await reported(invocation)).delivered == ("all",)
        await invocation.approve(by="erin")
        asked, decided = await received(receiver, 2)
        # No key signs links here: a person who follows this one logs in first.
        page = f"https://inbox.example/approvals/{quote(f'{invocation.id}/fc-1', safe='')}"
        assert asked.body["data"]["link"] == page
        assert decided.body["data"]["decision"] == {"action": "approve", "by": "erin", "verified": None}
        await invocation.result()
    async with serve(payer(None)) as env:
        quiet = await start_and_wait(env.client.start("payer", "go"))
        await approve_and_finish(quiet)
        assert not any(isinstance(entry.body, Notified) for entry in (await quiet.log()).entries)


async def test_a_failed_notification_is_retried_under_the_same_id(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    """A retry sends the notification only to receivers that lack it, even to single addresses of a channel."""
    receiver.statuses = [503]
    good = f'urls = ["{other_receiver.apprise_url}"]\n'
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver) + good)
    async with serve(payer(), channels=known) as env:
        invocation = await env.client.start("payer", "go")
        assert (await reported(invocation)).delivered == ("finance",)
        assert len(receiver.requests) == 2
        assert len({request.id for request in receiver.requests}) == 1
        assert len({str(request.body) for request in receiver.requests}) == 1
        assert all(request.verified for request in receiver.requests)
        assert len(other_receiver.requests) == 1
        await approve_and_finish(invocation)


@pytest.mark.slow
async def test_another_worker_continues_the_deliveries_of_a_stopped_one(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    """Another worker reads the completed deliveries from the heartbeats on the server."""
    receiver.statuses = [503] * 99
    good = f'urls = ["{other_receiver.apprise_url}"]\n'
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver) + good)
    async with serve(payer(), channels=known, task_queue="notices", verify=False) as env:
        invocation = await env.client.start("payer", "go")

        async def tried() -> bool:
            return bool(receiver.requests and other_receiver.taken)

        await wait_until(tried, "that both were tried")
    receiver.statuses.clear()
    async with serve(payer(), channels=known, task_queue="notices") as env:
        going_on = env.client.invocation(invocation.id)
        assert (await reported(going_on)).delivered == ("finance",)
        assert len({request.id for request in receiver.requests}) == 1
        assert (len(receiver.taken), len(other_receiver.taken)) == (1, 1)
        await approve_and_finish(going_on)


@pytest.mark.slow
async def test_each_event_has_its_own_id(serve: Serve, tmp_path: Path, receiver: WebhookReceiver) -> None:
    """A pending call, a reminder, an escalation and an answer have different IDs."""
    policy = ApprovalPolicy(
        approvers=("dana", "role:finance"),
        verified=None,
        deadline=timedelta(hours=1),
        reminders=(timedelta(milliseconds=300),),
        escalation=(Escalation(after=timedelta(milliseconds=1200), to=("role:board",), notify=("board",)),),
        notify=("finance",),
    )
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver), webhook(tmp_path, "board", receiver))
    async with serve(payer(policy), channels=known) as env:
        invocation = await env.client.start("payer", "go")
        await reported(invocation, "escalation2")
        await received(receiver, 3)
        await invocation.handle.cancel()
        kinds = [request.body["data"]["occasion"] for request in receiver.taken]
        assert sorted(kinds) == ["asked", "escalation", "reminder"]
        assert len({request.id for request in receiver.taken}) == 3


@pytest.mark.slow
async def test_a_permanent_refusal_is_recorded_and_not_retried(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver, logs: list[MutableMapping[str, Any]]
) -> None:
    """Neither a permanent refusal nor an unknown channel blocks anything, and no address is recorded."""
    receiver.statuses = [410] * 9
    policy = ApprovalPolicy(notify=("finance", "nobody"))
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver))
    async with serve(payer(policy), channels=known) as env:
        invocation = await env.client.start("payer", "go")
        report = await reported(invocation)
        assert (report.delivered, report.failed) == ((), {"finance": "Status410", "nobody": "UnknownChannel"})
        assert len(receiver.requests) == 1
        assert (await approve_and_finish(invocation)).status == "completed"
    assert receiver.url not in str(logs)


@pytest.mark.slow
async def test_a_permanent_refusal_is_not_retried_together_with_another_channel(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    """Only the unavailable channel is retried, not the one that refused."""
    receiver.statuses, other_receiver.statuses = [410], [503, 503]
    policy = ApprovalPolicy(notify=("finance", "board"))
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver), webhook(tmp_path, "board", other_receiver))
    async with serve(payer(policy), channels=known) as env:
        invocation = await env.client.start("payer", "go")
        report = await reported(invocation)
        assert (report.delivered, report.failed) == (("board",), {"finance": "Status410"})
        assert (len(receiver.requests), len(other_receiver.requests)) == (1, 3)
        await approve_and_finish(invocation)


async def test_nothing_waits_for_a_notification(serve: Serve, tmp_path: Path, receiver: WebhookReceiver) -> None:
    """The agent continues and finishes while a channel accepts nothing."""
    receiver.statuses = [503] * 999
    known = channels(tmp_path, webhook(tmp_path, "finance", receiver))
    async with serve(payer(), channels=known) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"))
        assert (await approve_and_finish(invocation)).text == "They said {'result': 'paid'}."
        history = (await invocation.history()).to_json()
        assert receiver.url not in history
        assert receiver.secret not in history


@pytest.mark.slow
async def test_approvers_are_notified_of_an_expiry_that_fails_the_invocation(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """The notification survives the end of the invocation, and is recorded before it."""
    policy = ApprovalPolicy(deadline=timedelta(seconds=1), on_expiry="fail", notify=("finance",))
    async with serve(payer(policy), channels=channels(tmp_path, webhook(tmp_path, "finance", receiver))) as env:
        invocation = await env.client.start("payer", "go")
        assert (await failure(invocation))[0] == "Expired"
    assert sorted(got.body["data"]["occasion"] for got in await received(receiver, 2)) == ["asked", "expired"]
    assert (await reported(invocation, "expired")).delivered == ("finance",)


@pytest.mark.slow
async def test_a_failure_waits_only_briefly_for_an_unavailable_channel(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """A channel that accepts nothing does not delay the failure for long."""
    receiver.statuses = [503] * 999
    policy = ApprovalPolicy(deadline=timedelta(seconds=1), on_expiry="fail", notify=("finance",))
    async with serve(payer(policy), channels=channels(tmp_path, webhook(tmp_path, "finance", receiver))) as env:
        invocation = await env.client.start("payer", "go")
        assert (await failure(invocation))[0] == "Expired"
    assert "expired" in [got.body["data"]["occasion"] for got in receiver.requests]
    assert receiver.taken == []


@pytest.mark.slow
async def test_a_running_delivery_is_completed_after_the_end_of_the_invocation(serve: Serve) -> None:
    """The server reports to its heartbeat that the activity is gone, but the delivery continues."""

    taken = asyncio.Event()

    async def deliver(notice: Notification, id: str) -> None:
        """Finish only after the invocation has ended."""
        if notice.record["type"] == "waystation.approval.decided":
            while not activity.is_cancelled():
                await asyncio.sleep(0.02)
            await asyncio.sleep(0)
            taken.set()

    async with serve(payer(), channels=Channels({"finance": Channel([deliver])})) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"))
        await approve_and_finish(invocation)
        await taken.wait()


@pytest.mark.slow
async def test_a_summary_has_no_secret_and_no_second_line(
    serve: Serve, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    """Secrets and line breaks in arguments never reach a summary."""
    args = {"amount": 5, "password": "hunter22", "note\r\nBcc: x": "\u202eevil\nX-Header: 1"}
    known = channels(tmp_path, f'[channels.finance]\nurls = "{receiver.apprise_url}"\n')
    async with serve(payer(args=args, hint="Because\r\nI say so"), channels=known) as env:
        invocation = await env.client.start("payer", "go", user_id="dana\nBcc: y")
        (got,) = await received(receiver)
        assert "hunter22" not in str(got.body)
        assert "\u202e" not in str(got.body)
        title, text = got.body["title"], got.body["message"]
        assert "\n" not in title
        assert "\r" not in title
        lines = text.splitlines()
        assert [line.split(":")[0] for line in lines[1:]] == ["Agent", "Origin of the tool", "Reason", "Until"]
        await approve_and_finish(invocation)


class Mailbox:
    """An SMTP server that keeps its messages."""

    def __init__(self) -> None:
        self.taken: list[EmailMessage] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Accept one message."""
        self.taken.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    """Run an SMTP server; yield it and its port."""
    box = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()


async def test_approvers_are_notified_by_mail(serve: Serve, tmp_path: Path, mailbox: tuple[Mailbox, int]) -> None:
    """The mail has the link of the owner of the channel."""
    box, port = mailbox
    url = f"mailto://127.0.0.1:{port}?from=agents@example.com&to=dana@example.com&mode=insecure"
    section = f'[channels.finance]\nurls = ["{url}"]\nperson = "dana@example.com"\n'
    known = channels(tmp_path, section, inbox="https://approvals.example.com/")
    links = Links(KEY, namespace="default", lifetime=timedelta(days=1))
    async with serve(payer(), channels=known, sign_link=links.sign) as env:
        invocation = await env.client.start("payer", "go")
        assert (await reported(invocation)).delivered == ("finance",)
        (mail,) = box.taken
        assert mail["To"] == "dana@example.com"
        assert mail["Subject"] == "Approval needed: pay(amount=5)"
        body = mail.get_body(("plain", "html"))
        assert body is not None
        text = body.get_content()
        assert "Agent: payer, for user" in text
        token = text.split("#link=")[1].split()[0].split("<")[0]
        assert links.read(token).person == "dana@example.com"
        await approve_and_finish(invocation)
