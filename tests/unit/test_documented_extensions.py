"""The package of the page `extend-waystation` adds a command, a channel, a model and stores; mistakes are reported."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.acme_package import acme, install, site
from tests.programs import command
from waystation.activities.model_choice import Models, find_foreign_model_names
from waystation.activities.notifications import KINDS, Channels
from waystation.apps.registry import Registry
from waystation.artifacts import ObjectStoreArtifactService
from waystation.auth.credential_service.store_location import open_store
from waystation.core.errors import CredentialStoreError, InvalidConfiguration, StoreFailed
from waystation.extensions import (
    CHANNELS,
    COMMANDS,
    MODELS,
    STORES,
    ExtensionFailed,
    NotDelivered,
    Notification,
    find_problems,
)
from waystation.memory import InMemoryMemoryService, open_memory
from waystation.models import providers
from waystation.storage import OWN_SCHEMES, Blobs, ObjectFiles

__all__ = ["acme", "site"]
NOTICE = Notification(title="Approval needed", text="x", record={})


async def test_a_command_is_in_the_help_and_has_a_help_of_its_own(acme: Path) -> None:
    """The help of the program shows the summary of the package."""
    shown = (await command("--help")).out
    assert "count" in shown
    assert "Acme's commands, channels, models and stores." in shown
    assert "Count the invocations of an agent." in (await command("count", "--help")).out


async def test_a_channel_delivers_notifications(acme: Path) -> None:
    """The key of the package's channel is next to Waystation's own keys in the channels file."""
    channel = Channels.read(acme / "channels.toml").get("finance")
    assert channel is not None
    for target in channel.targets:
        await target(NOTICE, "msg_1")
    assert (acme / "pages.log").read_text() == "Approval needed\n"


async def test_a_model_serves_the_names_that_its_pattern_matches(acme: Path) -> None:
    """Each name has an instance of its own."""
    agent = runpy.run_path(str(acme / "agent.py"))["root_agent"]
    assert list(find_foreign_model_names(Registry.of(agent))) == []
    models = Models(None)
    assert type(models.of(agent)).__name__ == "AcmeLlm"
    assert [models.named(name, "reader").model for name in ("acme-1", "acme-2")] == ["acme-1", "acme-2"]


async def test_payloads_and_artifacts_are_in_a_store_of_the_package(acme: Path) -> None:
    """The place of both is a URL with the scheme of the package."""
    blobs = Blobs("acme://shelf/payloads")
    assert await blobs.get(await blobs.put(b"content")) == b"content"
    artifacts = ObjectStoreArtifactService("acme://shelf/artifacts")
    where: dict[str, Any] = {"app_name": "a", "user_id": "u", "session_id": "s", "filename": "f.txt"}
    assert [await artifacts.save_artifact(artifact={"text": text}, **where) for text in ("x", "y")] == [0, 1]
    loaded = await artifacts.load_artifact(**where)
    assert loaded is not None
    assert loaded.text == "y"
    assert await artifacts.store_id() == await ObjectStoreArtifactService("acme://shelf/artifacts").store_id() != ""


def test_memories_are_in_a_store_of_the_package(acme: Path) -> None:
    """A store of memories is a module with the functions of the protocol."""
    assert isinstance(open_memory("acme://shelf"), InMemoryMemoryService)


def test_a_kind_of_store_that_the_package_lacks_is_refused(acme: Path) -> None:
    """The error names the URL without its password, and the missing kind."""
    with pytest.raises(CredentialStoreError, match=r"'acme://shelf' is not a CredentialStore.*'open_credentials'\.$"):
        open_store("acme://me:secret@shelf")


def test_waystations_own_extensions_read_no_metadata(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No start pays for reading the metadata of all installed packages."""
    for module in ("waystation.extensions", "waystation.models.providers", "waystation.storage.store_places"):
        monkeypatch.setattr(f"{module}.find_extensions", lambda group: pytest.fail(f"read {group}"))
    for name in ("gemini-3.5-flash", "gpt-5", "openai/gpt-5", "models/gemini-3.5-flash", "projects/p/models/m"):
        assert providers.find_provider(name) is not None
    assert ObjectFiles("memory:///x").unusable() is None
    assert ObjectFiles(acme / "files").unusable() is None


USES: dict[str, Callable[[Path], object]] = {
    CHANNELS: lambda site: Channels.read(site / "channels.toml"),
    MODELS: lambda _: providers.load_class("acme-1"),
    STORES: lambda _: ObjectStoreArtifactService("acme://shelf"),
}
NAMES = {CHANNELS: "pages", MODELS: "acme-*", STORES: "acme", COMMANDS: "count"}
MISTAKES = {
    "acme_missing": "No module named 'acme_missing'",
    "json:lost": "has no attribute 'lost'",
    "json.decoder:NaN": "it is a float, but must be",
}


def refuse(site: Path, group: str, value: str) -> None:
    """Install a package with a mistake in one group."""
    (site / "channels.toml").write_text('[channels.finance]\npages = "pages.log"\n')
    install(site, "acme-broken", {group: {NAMES[group]: value}})


@pytest.mark.parametrize(("value", "cause"), MISTAKES.items())
@pytest.mark.parametrize("group", USES)
def test_a_mistake_names_package_group_cause_and_remedy(site: Path, group: str, value: str, cause: str) -> None:
    """Only the use of the extension fails."""
    refuse(site, group, value)
    with pytest.raises((ExtensionFailed, StoreFailed, ValueError)) as caught:
        USES[group](site)
    text = str(caught.value)
    assert all(part in text for part in ("'acme-broken'", f"'{group}'", f"'{NAMES[group]}'", cause, "uninstall it."))


@pytest.mark.parametrize(("value", "cause"), MISTAKES.items())
async def test_a_command_with_a_mistake_fails_in_one_line(site: Path, value: str, cause: str) -> None:
    """A command with a mistake fails in one line, and the help still shows all other commands."""
    refuse(site, COMMANDS, value)
    ran = await command("count")
    assert ran.code == 1
    [line] = ran.err.splitlines()
    assert all(part in line for part in ("'acme-broken'", f"'{COMMANDS}'", cause, "uninstall it."))
    assert "approve" in (await command("--help")).out


async def test_waystations_own_extension_takes_precedence_and_doctor_says_so(site: Path) -> None:
    """A package cannot replace what answers calls or stores payloads."""
    taken = {COMMANDS: "approve", CHANNELS: "webhook", MODELS: "claude-*", STORES: "s3"}
    values = {CHANNELS: "json:dumps", COMMANDS: "runpy:lost", MODELS: "json:JSONDecoder", STORES: "json"}
    install(site, "acme-thief", {group: {name: values[group]} for group, name in taken.items()})
    shown = (await command("--help")).out
    assert "Ignored, because Waystation has this command" in shown
    assert "Approve a pending call" in (await command("approve", "--help")).out
    assert providers.is_own("claude-*")
    problems = find_problems({CHANNELS: KINDS.__contains__, STORES: OWN_SCHEMES.__contains__, MODELS: providers.is_own})
    assert [problem for problem in problems if "takes precedence" in problem and "'acme-thief'" in problem] != []
    assert {name for name in taken.values() if any(f"{name!r}" in text and "takes" in text for text in problems)} == {
        *("webhook", "claude-*", "s3")
    }


def test_an_unknown_key_of_a_channel_is_still_refused(acme: Path) -> None:
    """An unknown key is refused, because packages add only the names of their kinds as keys."""
    (acme / "channels.toml").write_text('[channels.finance]\npages = "x"\nurl = "json://x"\n')
    with pytest.raises(InvalidConfiguration, match="has no key 'url'; the valid keys are urls, webhook, person"):
        Channels.read(acme / "channels.toml")


@pytest.mark.parametrize(
    "problem", [ValueError("is not a file."), KeyError("secret"), InvalidConfiguration("f", "k", "bad")]
)
def test_a_value_that_a_package_refuses_is_reported_with_its_place(
    acme: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """The error contains the file and the key."""

    def refuse(value: str, **_: object) -> list[object]:
        raise problem

    monkeypatch.setattr("acme_waystation.channels.create_targets", refuse)
    with pytest.raises(
        InvalidConfiguration, match=r"finance\.pages: is not a file\.$|finance\.pages: KeyError was raised|f, k: bad"
    ):
        Channels.read(acme / "channels.toml")


async def test_errors_of_a_channel_show_no_address(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a package is not shown, because it may contain the address."""

    async def fail(*_: object) -> None:
        raise RuntimeError("https://user:password@pager")

    monkeypatch.setattr("acme_waystation.channels.create_targets", lambda value, **_: [fail])
    channel = Channels.read(acme / "channels.toml").get("finance")
    assert channel is not None
    with pytest.raises(NotDelivered, match=r"^RuntimeError$"):
        await channel.targets[0](NOTICE, "msg_1")


def test_a_package_is_not_imported_before_it_is_used(acme: Path) -> None:
    """An unused package costs a worker nothing, and the help lists its command without importing it."""
    code = (
        "import sys, waystation.worker.main, typer.testing; from waystation.cli.program import app\n"
        "shown = typer.testing.CliRunner().invoke(app, ['--help']).output\n"
        "print('count ' in shown, 'acme_waystation' in sys.modules)"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True, env={"PYTHONPATH": str(acme)})
    assert out == "True False\n"
