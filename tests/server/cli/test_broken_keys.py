"""Commands with encryption keys or user keys that cannot be used."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.programs import Ran, command
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve, empty_server
from tests.steps import wait_until
from waystation.agents import Agent
from waystation.key_set import EncryptionKeys
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE
from waystation.testing import ScriptedModel, says

Examine: TypeAlias = Callable[[], Awaitable[Ran]]

COMMANDS = (["events", "x"], ["run", "a", "b"], ["pending"], ["approve", "x"], ["list"], ["replay", "x"], ["top"])


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "is empty"),
        ("{", "is not a JSON Web Key Set"),
        ('{"keys": [{"kty": "oct", "kid": "k", "k": "c2hvcnQ"}]}', "at least 32 bytes"),
    ],
)
async def test_a_command_names_the_file_the_cause_the_remedy_and_the_variable(
    content: str | None, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with an unusable key file exits with 2 and one line, before it connects to a server."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(file))
    for arguments in COMMANDS:
        ran = await command("--address", "127.0.0.1:1", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), arguments
        assert ran.err.index(f"{file}: ") < ran.err.index(cause) < ran.err.index(f"`{ENCRYPTION_VARIABLE}` has")
        assert f"`{EncryptionKeys.create_command}`" in ran.err


@pytest.fixture
async def examine(serve: Serve, waystation: Command) -> AsyncIterator[Examine]:
    """Run `waystation doctor` on a server whose only problems are those of the keys."""
    agent = Agent(name="asker", model=ScriptedModel(says("hi")))
    async with empty_server() as server, serve(agent, server=server) as env:

        async def examine() -> Ran:
            return await waystation(env, "doctor", "--json", "--store", str(env.store))

        async def is_sound() -> bool:
            return (await examine()).code == 0

        await wait_until(is_sound, "the polls of the worker")
        yield examine


@pytest.mark.slow
async def test_doctor_reports_unusable_keys_and_completes_all_other_checks(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding names the variable and the cause, and the other checks give the same results as without keys."""
    plain = {record["check"] for record in (await examine()).records}
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(tmp_path / "none.json"))
    ran = await examine()
    findings = {record["check"]: record for record in ran.records}
    assert (ran.code, findings.keys() - plain, plain - findings.keys()) == (1, {"encryption keys"}, set())
    assert {check for check, record in findings.items() if not record["ok"]} == {"encryption keys"}
    assert findings["encryption keys"]["text"].startswith(f"{tmp_path}/none.json: cannot be")
    assert findings["encryption keys"]["fix"] == EncryptionKeys.create_command


@pytest.mark.slow
async def test_doctor_reports_an_unavailable_store_of_user_keys(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding names the store and the variable, also if the store is set without encryption keys."""
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(tmp_path))  # a folder
    [alone] = [record for record in (await examine()).records if not record["ok"]]
    assert (alone["check"], alone["fix"]) == ("user keys", f"set {ENCRYPTION_VARIABLE}, too")
    keys = tmp_path / "keys.json"
    EncryptionKeys.generate().create(keys)
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(keys))
    [broken] = [record for record in (await examine()).records if not record["ok"]]
    assert (broken["check"], USER_KEYS_VARIABLE in broken["fix"]) == ("user keys", True)
    assert str(tmp_path) in broken["text"]
    monkeypatch.setenv(USER_KEYS_VARIABLE, str(tmp_path / "none.db"))
    assert (await examine()).code == 0
    assert not (tmp_path / "none.db").exists()
