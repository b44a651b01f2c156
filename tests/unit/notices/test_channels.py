"""Errors in the configuration of channels name the file and the key, and contain no address."""

import os
from pathlib import Path

import pytest

from tests.fakes.webhook_receiver import WebhookReceiver
from tests.paths import write_secret
from tests.unit.notices.conftest import channels, webhook
from waystation.activities.notifications import Channels, read_channels
from waystation.core.errors import InvalidConfiguration
from waystation.extensions import NotDelivered, Notification

HOOK = 'webhook = { url = "https://hooks.example/SECRET", secret_file = "KEY" }\n'
NOTICE = Notification(title="t", text="x", record={"type": "waystation.approval.asked", "data": {}})


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("[channels\n", "", "is not TOML"),
        (
            "[channel.x]\n",
            "",
            "has no key 'channel'; the valid keys are endpoints, channels, default, operators, inbox",
        ),
        ('[channels.x]\nurl = "SECRET"\n', "channels.x", "has no key 'url'; the valid keys are urls, webhook, person"),
        ("[channels.x]\n", "channels.x", "has neither `urls` nor a `webhook`"),
        ('default = ["x"]\n', "default", "names 'x', but there is no [channels.x]"),
        ('inbox = "http://approvals.example/SECRET"\n', "inbox", "is not an https URL"),
        ('[channels.x]\nurls = ["SECRET"]\n', "channels.x.urls.0", "is not a URL that apprise supports"),
        ('[channels.x]\nurls = ["json://a", "nothing://SECRET"]\n', "channels.x.urls.1", "is not a URL"),
        ('[channels.x]\nurls = ["env:NOT_SET"]\n', "channels.x.urls.0", "the variable NOT_SET is not set"),
        ("[channels.x]\nurls = [7]\n", "channels.x.urls.0", "valid string"),
        ("[channels.x]\n" + HOOK.replace("https", "http"), "channels.x.webhook.url", "is not an https URL"),
        ("[channels.x]\n" + HOOK, "channels.x.webhook.secret_file", "cannot be read"),
        (
            "[channels.x]\n" + HOOK.replace("KEY", "bad.key"),
            "channels.x.webhook.secret_file",
            "needs at least 24 bytes as base64",
        ),
        ("[channels.x]\n" + HOOK.replace("KEY", "empty"), "channels.x.webhook.secret_file", "the file empty is empty"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, text: str, key: str, problem: str) -> None:
    """A mistake is reported when the worker starts."""
    write_secret(tmp_path / "bad.key", "whsec_SECRET!!")
    write_secret(tmp_path / "empty", "")
    file = tmp_path / "channels.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfiguration) as caught:
        Channels.read(file)
    assert caught.value.key == key
    assert problem in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_addresses_may_be_in_a_variable_which_is_then_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: WebhookReceiver
) -> None:
    """A variable may contain several addresses, and tools and their programs do not see it."""
    monkeypatch.setenv("OUR_CHATS", f"{receiver.apprise_url} json://127.0.0.1/other")
    monkeypatch.setenv("OUR_HOOK", receiver.secret)
    text = f'urls = "env:OUR_CHATS"\nwebhook = {{ url = "{receiver.url}", secret_file = "env:OUR_HOOK" }}\n'
    channel = channels(tmp_path, "[channels.x]\n", text).get("x")
    assert channel is not None
    assert len(channel.targets) == 3
    assert {"OUR_CHATS", "OUR_HOOK"} & os.environ.keys() == set()


def test_the_environment_may_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option overrides the variable; without both there are no channels."""
    (tmp_path / "a.toml").write_text('default = ["x"]\n[channels.x]\nurls = "json://127.0.0.1"\n')
    monkeypatch.delenv("WAYSTATION_CHANNELS", raising=False)
    assert read_channels(None) is None
    monkeypatch.setenv("WAYSTATION_CHANNELS", str(tmp_path / "a.toml"))
    configured = read_channels(None)
    assert configured is not None
    assert configured.default == ("x",)
    with pytest.raises(InvalidConfiguration, match=r"b\.toml: cannot be read"):
        read_channels(tmp_path / "b.toml")


@pytest.mark.parametrize(
    ("status", "passing"),
    [(200, None), (299, None), (307, False), (400, False), (404, False), (408, True), (429, True), (500, True)],
)
async def test_the_status_of_a_webhook_decides_about_a_retry(
    tmp_path: Path, receiver: WebhookReceiver, status: int, passing: bool | None
) -> None:
    """The status decides whether the delivery is retried; redirects are not followed."""
    channel = channels(tmp_path, webhook(tmp_path, "x", receiver)).get("x")
    assert channel is not None
    (target,) = channel.targets
    receiver.statuses = [status]
    if passing is None:
        await target(NOTICE, "msg_1")
    else:
        with pytest.raises(NotDelivered, match=str(status)) as caught:
            await target(NOTICE, "msg_1")
        assert caught.value.retryable is passing
        assert receiver.url not in str(caught.value)
    (got,) = receiver.requests
    assert got.verified
    assert got.id == "msg_1"


async def test_a_signature_covers_the_body_the_time_and_the_id(tmp_path: Path, receiver: WebhookReceiver) -> None:
    """The receiver detects a change of the body, the time or the id."""
    channel = channels(tmp_path, webhook(tmp_path, "x", receiver)).get("x")
    assert channel is not None
    await channel.targets[0](NOTICE, "msg_1")
    (got,) = receiver.requests
    body = '{"type":"waystation.approval.asked","data":{}}'
    assert receiver.verifies(body, got.headers)
    assert not receiver.verifies(body.replace("asked", "decided"), got.headers)
    for name in ("webhook-id", "webhook-timestamp"):
        changed = got.headers | {name: got.headers[name][:-1] + ("1" if got.headers[name][-1] == "0" else "0")}
        assert not receiver.verifies(body, changed)


async def test_an_unreachable_channel_is_retried(tmp_path: Path, receiver: WebhookReceiver) -> None:
    """Both kinds of channels are retried, and the error contains no address."""
    text = webhook(tmp_path, "x", receiver) + f'urls = ["{receiver.apprise_url}"]\n'
    port = receiver.url.split(":")[2].split("/")[0]
    channel = channels(tmp_path, text.replace(f":{port}/", ":9/")).get("x")
    assert channel is not None
    for target in channel.targets:
        with pytest.raises(NotDelivered) as caught:
            await target(NOTICE, "msg_1")
        assert caught.value.retryable
        assert "127.0.0.1" not in str(caught.value)
