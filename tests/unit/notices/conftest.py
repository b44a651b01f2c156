"""Notifications go to real servers on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.webhook_receiver import WebhookReceiver
from tests.paths import write_secret
from waystation.activities.notifications import Channels


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    """Run a webhook receiver."""
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def other_receiver() -> Iterator[WebhookReceiver]:
    """Run another webhook receiver."""
    with WebhookReceiver() as receiver:
        yield receiver


def webhook(folder: Path, name: str, receiver: WebhookReceiver) -> str:
    """Return the lines of a channel with a webhook."""
    write_secret(folder / f"{name}.key", receiver.secret)
    return f'[channels.{name}]\nwebhook = {{ url = "{receiver.url}", secret_file = "{name}.key" }}\n'


def channels(folder: Path, *sections: str, **top: Any) -> Channels:
    """Return the channels that a file configures."""
    lines = [f"{name} = {value!r}\n" for name, value in top.items()]
    (folder / "channels.toml").write_text("".join([*lines, *sections]))
    return Channels.read(folder / "channels.toml")
