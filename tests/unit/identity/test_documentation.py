"""What the documentation says of identity and channels is so."""

import json
import re
from pathlib import Path

import pytest

from tests.fakes.webhook_receiver import WebhookReceiver
from tests.paths import ROOT
from waystation.activities.notifications import Channels
from waystation.identity import Configuration, answer_digest

APPROVALS = (ROOT / "docs" / "how-to" / "require-approval.md").read_text()
CONTRACT = (ROOT / "docs" / "reference" / "contract.md").read_text()


def toml(section: str) -> str:
    """Return the TOML of a section of the documentation."""
    found = re.search(r"^```toml\n(.*?)^```", APPROVALS.split(f"## {section}\n")[1], re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_configurations_are_whole(tmp_path: Path) -> None:
    """Of workers, and of links."""
    file = tmp_path / "identity.toml"
    file.write_text(toml("Who answered") + toml("Links"))
    read = Configuration.read(file)
    assert read.issuers[0].roles_claim == "realm_access.roles"
    assert read.links is not None


def test_the_channels_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address is one that apprise knows."""
    monkeypatch.setenv("DESK_CHAT", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/")
    (tmp_path / "tickets.key").write_text(WebhookReceiver().secret)
    (tmp_path / "channels.toml").write_text(toml("Telling people"))
    read = Channels.read(tmp_path / "channels.toml")
    found = [read.get(name) for name in ("desk", "dana", "tickets")]
    assert [len(channel.targets) for channel in found if channel] == [2, 1, 1]


def test_the_digest_of_the_contract_is_that_of_its_answer() -> None:
    """So other languages can compare."""
    found = re.search(r"For `(\{.*?\})` the digest is\n`([0-9a-f]{64})`", CONTRACT)
    assert found is not None
    assert answer_digest(json.loads(found[1])) == found[2]
