"""Receivers that redirect, flood or do not answer, and calls whose texts try to change a notification."""

import asyncio
import functools
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.webhook_receiver import WebhookReceiver
from tests.unit.core.story import log_of, model_calls, user_message
from tests.unit.notices.conftest import channels, webhook
from waystation.activities.notifications import build_notice
from waystation.core.log import NotifyInput
from waystation.extensions import NotDelivered, Notification

NOTICE = Notification(title="t", text="x", record={"type": "waystation.approval.asked", "data": {}})
REDIRECTS = (301, 302, 303, 307, 308)
HOSTILE = 'x"}\r\nWebhook-Id: forged\r\n\r\n{"decision": 1}\x00\u202e\u2028<!channel> @here http://evil.example'


@pytest.mark.parametrize("kind", ["webhook", "apprise"])
@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirect_of_a_receiver_is_not_followed(
    tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver, kind: str, status: int
) -> None:
    """The notification, with its link, goes only to the configured address and does not count as delivered."""
    apprise = f'[channels.x]\nurls = "{receiver.apprise_url}"\n'
    channel = channels(tmp_path, webhook(tmp_path, "x", receiver) if kind == "webhook" else apprise).get("x")
    assert channel is not None
    receiver.location, receiver.statuses = other_receiver.url, [status]
    with pytest.raises(NotDelivered) as caught:
        await channel.targets[0](NOTICE, "msg_1")
    assert other_receiver.url not in str(caught.value)
    assert (len(receiver.requests), other_receiver.requests, other_receiver.others) == (1, [], [])


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/meta-data/", "//127.0.0.1:1/", "file:///etc/passwd", "gopher://x", "\\\\x", ""],
)
async def test_a_redirect_to_a_private_address_is_permanent(
    tmp_path: Path, receiver: WebhookReceiver, location: str
) -> None:
    """A redirect to a private address is not followed, and the delivery is not repeated."""
    channel = channels(tmp_path, webhook(tmp_path, "x", receiver)).get("x")
    assert channel is not None
    receiver.location, receiver.statuses = location, [302]
    with pytest.raises(NotDelivered, match=r"^Status302$") as caught:
        await channel.targets[0](NOTICE, "msg_1")
    assert caught.value.retryable is False


async def test_the_body_of_a_response_is_not_read(tmp_path: Path, receiver: WebhookReceiver) -> None:
    """A receiver that answers without end neither delays the delivery nor fills the memory."""
    channel = channels(tmp_path, webhook(tmp_path, "x", receiver)).get("x")
    assert channel is not None
    receiver.body_s, receiver.statuses = 30.0, [200]
    await channel.targets[0](NOTICE, "msg_1")
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("kind", ["webhook", "apprise"])
async def test_a_receiver_that_does_not_answer_times_out(tmp_path: Path, kind: str) -> None:
    """The delivery fails after a limit and may be repeated."""
    with WebhookReceiver() as configured, socket.create_server(("127.0.0.1", 0)) as silent:
        text = webhook(tmp_path, "x", configured)
        if kind == "apprise":
            text = f'[channels.x]\nurls = "{configured.apprise_url}?rto=1"\n'
        port = configured.url.split(":")[2].split("/")[0]
        channel = channels(tmp_path, text.replace(f":{port}/", f":{silent.getsockname()[1]}/")).get("x")
        assert channel is not None
        target: Any = channel.targets[0]
        with pytest.raises(NotDelivered, match="Time") as caught:
            await functools.partial(target, limit_s=0.05)(NOTICE, "msg_1")
        assert caught.value.retryable


async def test_services_that_hang_do_not_stop_other_blocking_work(tmp_path: Path) -> None:
    """Other blocking work continues, because Apprise, which blocks, has its own threads."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"json://127.0.0.1:{silent.getsockname()[1]}/?rto=1"
        channel = channels(tmp_path, f'[channels.x]\nurls = "{url}"\n').get("x")
        assert channel is not None
        target: Any = functools.partial(channel.targets[0], limit_s=0.2)  # type: ignore[call-arg]  # for tests
        sending = [asyncio.ensure_future(target(NOTICE, f"msg_{number}")) for number in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "done") == "done"
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        assert {str(outcome) for outcome in outcomes} == {"TimeoutError"}


async def test_hostile_text_changes_no_header_and_no_field(tmp_path: Path, receiver: WebhookReceiver) -> None:
    """Names and arguments of a call stay in their fields, and titles stay one line."""
    log = log_of(
        user_message("go", user_id=HOSTILE), model_calls("pay", args={"note": HOSTILE, HOSTILE: 1}, gated=True)
    )
    call = log.state.calls["fc-1"]
    params = NotifyInput(
        function_call_id="fc-1", occasion="asked", channels=("x",), requested_at=1.0, deadline=2.0, at=1, new=()
    )
    notice = build_notice(log, call, params, namespace="default", link=None, at=1.0)
    channel = channels(tmp_path, webhook(tmp_path, "x", receiver), f'urls = "{receiver.apprise_url}"\n').get("x")
    assert channel is not None
    for target in channel.targets:
        await target(notice, "msg_1")
    posted, signed = sorted(receiver.requests, key=lambda request: request.verified)
    assert signed.body == notice.record
    assert "decision" not in signed.body["data"]
    assert signed.id == "msg_1"
    assert posted.headers.keys() & {"webhook-id", "webhook-signature"} == set()
    assert [char for char in notice.title if not char.isprintable()] == []
    assert [char for line in notice.text.split("\n") for char in line if not char.isprintable()] == []
