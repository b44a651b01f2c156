"""The documented files of identity and channels are valid."""

import json
import re
from pathlib import Path

import pytest

from tests.documents import DOCS, blocks, how_to
from tests.fakes.webhook_receiver import WebhookReceiver
from tests.paths import write_secret
from waystation.activities.notifications import Channels
from waystation.approvers.identity import Configuration, answer_digest

CONTRACT = (DOCS / "reference" / "contract.md").read_text()


def test_the_configurations_are_valid(tmp_path: Path) -> None:
    """The files of workers and links are valid."""
    file = tmp_path / "identity.toml"
    file.write_text("".join(blocks(how_to("verify-approvers"), "toml")))
    read = Configuration.read(file)
    assert read.issuers[0].roles_claim == "realm_access.roles"
    assert read.links is not None


def test_the_channels_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apprise supports each address."""
    monkeypatch.setenv("DESK_CHAT", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/")
    write_secret(tmp_path / "tickets.key", WebhookReceiver().secret)
    (tmp_path / "channels.toml").write_text("".join(blocks(how_to("notify-approvers"), "toml")))
    read = Channels.read(tmp_path / "channels.toml")
    channels = [read.get(name) for name in ("desk", "dana", "tickets")]
    assert [len(channel.targets) for channel in channels if channel] == [2, 1, 1]


def test_the_digest_of_the_contract_is_that_of_its_answer() -> None:
    """The example digest of the contract is correct."""
    match = re.search(r"digest of\s+`(\{.*?\})`\s+is\s+`([0-9a-f]{64})`", CONTRACT)
    assert match is not None
    assert answer_digest(json.loads(match[1])) == match[2]
